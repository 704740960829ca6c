"""Values of a graph under construction, with the arithmetic of Python."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import constant

Attribute = int | float | str | Sequence[int]
BOOL = ir.DataType.BOOL
FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


class Maker:
    """Nodes under construction, in order; equal constants are one value."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.nodes: list[ir.Node] = []
        self._constants: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Attribute], outputs: int = 1
    ) -> ir.Node:
        """A new node, named after its place."""
        given = [
            _attribute(name, value) for name, value in attributes.items() if value != 0 or name != "allowzero"
        ]
        made = ir.Node("", op, inputs, given, num_outputs=outputs, name=f"{self.prefix}{len(self.nodes)}")
        for index, value in enumerate(made.outputs):
            value.name = f"{made.name}.{op}" + (f".{index}" if index else "")
        self.nodes.append(made)
        return made

    def constant(self, array: Any, dtype: ir.DataType) -> "Term":
        """A constant of a type."""
        elements = np.asarray(array).astype(dtype.numpy())
        key = dtype, elements.shape, elements.tobytes()
        if key not in self._constants:
            name = f"{self.prefix}constant{len(self._constants)}"
            self._constants[key] = constant(elements, name, dtype)
        return Term(self, self._constants[key])

    def integers(self, numbers: Sequence[int]) -> "Term":
        """A list of axes or sizes."""
        return self.constant(np.array(numbers, np.int64), ir.DataType.INT64)

    def zeros(self, shape: Sequence[int], dtype: ir.DataType) -> "Term":
        """Zeros of a shape, filled in when the graph runs: the file holds the shape alone."""
        return self.constant(0, dtype).op("Expand", self.integers(shape))


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A value; numbers beside it become constants of its type."""

    maker: Maker
    value: ir.Value

    @property
    def dtype(self) -> ir.DataType:
        """Type of the elements."""
        found = self.value.dtype
        if found is None:
            raise ValueError(f"value {self.value.name!r}: expected a typed value, found none")
        return found

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a value of the forward graph."""
        return graph.static_shape(self.value)

    def op(
        self,
        op: str,
        *others: "Term | float | None",
        dtype: ir.DataType | None = None,
        **attributes: Attribute,
    ) -> "Term":
        """First output of an operator whose first operand this is; of its type unless `dtype` is given."""
        inputs = [self.value, *(None if o is None else self.like(o).value for o in others)]
        made = self.maker.node(op, inputs, attributes)
        made.outputs[0].type = ir.TensorType(dtype or self.dtype)
        return Term(self.maker, made.outputs[0])

    def like(self, other: "Term | float") -> "Term":
        """A number as a constant of this type; a term as it is."""
        return other if isinstance(other, Term) else self.maker.constant(other, self.dtype)

    def __add__(self, other: "Term | float") -> "Term":
        return self.op("Add", other)

    def __sub__(self, other: "Term | float") -> "Term":
        return self.op("Sub", other)

    def __rsub__(self, other: float) -> "Term":
        return self.like(other).op("Sub", self)

    def __mul__(self, other: "Term | float") -> "Term":
        return self.op("Mul", other)

    def __truediv__(self, other: "Term | float") -> "Term":
        return self.op("Div", other)

    def __rtruediv__(self, other: float) -> "Term":
        return self.like(other).op("Div", self)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "Term":
        return self.op("Neg")

    def __gt__(self, other: "Term | float") -> "Term":
        return self.op("Greater", other, dtype=BOOL)

    def __lt__(self, other: "Term | float") -> "Term":
        return self.op("Less", other, dtype=BOOL)

    def __ge__(self, other: "Term | float") -> "Term":
        return self.op("GreaterOrEqual", other, dtype=BOOL)

    def __le__(self, other: "Term | float") -> "Term":
        return self.op("LessOrEqual", other, dtype=BOOL)

    def __and__(self, other: "Term") -> "Term":
        return self.op("And", other)

    def equals(self, other: "Term | float") -> "Term":
        """Elementwise equality."""
        return self.op("Equal", other, dtype=BOOL)

    def cast(self, dtype: ir.DataType) -> "Term":
        """The same elements in another type."""
        return self if dtype == self.dtype else self.op("Cast", dtype=dtype, to=int(dtype))

    def where(self, yes: "Term | float", no: "Term | float") -> "Term":
        """Elements of `yes` where this condition holds, else of `no`; one of them is a term."""
        first = yes if isinstance(yes, Term) else no.like(yes) if isinstance(no, Term) else None
        if first is None:
            raise TypeError("where: expected a term among the choices, found two numbers")
        return self.op("Where", first, first.like(no), dtype=first.dtype)

    def sum(self, axes: Sequence[int], *, keepdims: bool = True) -> "Term":
        """Sum over axes; over none, the term itself."""
        if not axes:
            return self
        return self.op("ReduceSum", self.maker.integers(axes), keepdims=int(keepdims))

    def mean(self, axes: Sequence[int]) -> "Term":
        """Mean over axes, which stay with extent 1."""
        return self.op("ReduceMean", self.maker.integers(axes), keepdims=1) if axes else self

    def reshape(self, shape: Sequence[int]) -> "Term":
        """The same elements in another shape."""
        return self.op("Reshape", self.maker.integers(shape), allowzero=int(0 in shape))

    def transpose(self, perm: Sequence[int]) -> "Term":
        """Axes in another order."""
        return self if tuple(perm) == tuple(range(len(perm))) else self.op("Transpose", perm=tuple(perm))

    def expand(self, shape: Sequence[int]) -> "Term":
        """Repeated along axes of extent 1."""
        return self.op("Expand", self.maker.integers(shape))

    def slice(self, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int]) -> "Term":
        """Half-open ranges of axes."""
        if not axes:
            return self
        return self.op("Slice", *(self.maker.integers(n) for n in (starts, ends, axes)))

    def pad(self, before: Sequence[int], after: Sequence[int]) -> "Term":
        """Zeros around; negative amounts crop."""
        if not any(before) and not any(after):
            return self
        return self.op("Pad", self.maker.integers((*before, *after)))

    def reduced_to(self, shape: tuple[int, ...], own: tuple[int, ...]) -> "Term":
        """The adjoint of broadcasting from `shape` to `own`, the shape of this term."""
        if shape == own:
            return self
        lead = len(own) - len(shape)
        axes = [i for i, n in enumerate(own) if i < lead or (shape[i - lead] == 1 and n != 1)]
        found = self.sum(axes)
        return found.reshape(shape) if lead else found

    def scattered(self, indices: "Term", size: int) -> "Term":
        """Sums of the elements by index in a line of `size` places; indices are int64, as many."""
        line = self.maker.zeros((size,), self.dtype)
        return line.op(
            "ScatterElements", indices.reshape((-1,)), self.reshape((-1,)), axis=0, reduction="add"
        )


def _attribute(name: str, value: Attribute) -> ir.Attr:
    if isinstance(value, int):
        return ir.AttrInt64(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    if isinstance(value, str):
        return ir.AttrString(name, value)
    return ir.AttrInt64s(name, tuple(value))
