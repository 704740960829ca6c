"""An ONNX graph under construction, with shapes inferred node by node: operators of MXNet ask for ranks."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext, registry

from app.engine.model import dropout_masks
from app.engine.model.mxnet.attributes import Attributes
from app.engine.model.mxnet.symbol_file import Symbol, SymbolNode
from app.engine.model.shape_inference import tensor_rules
from app.engine.model.shape_inference.tensor_rules import BACKWARD
from app.engine.types.errors import GraphError, ModelTooLargeError
from app.engine.types.storage import MXNET

OPSET = 21  # of what is built; the floor of `load`
Array = np.ndarray[Any, Any]


def dimension(name: str) -> str:
    """The name of a dimension, in which only letters, digits and underscores are no arithmetic."""
    return re.sub(r"\W", "_", name)


@dataclass(slots=True)
class Room:
    """Numbers of outputs of nodes, and of bytes of constants, that may still be made."""

    outputs: int
    nbytes: int

    def take(self, outputs: int = 0, nbytes: int = 0) -> None:
        """Count what is made.

        Raises:
            ModelTooLargeError: it is more than there may be.
        """
        self.outputs -= outputs
        self.nbytes -= nbytes
        if self.outputs < 0 or self.nbytes < 0:
            raise ModelTooLargeError("the symbol makes more nodes or larger constants than are allowed")


Turns: TypeAlias = tuple[int | ir.SymbolicDim, ir.Value]


class Builder:
    """Nodes of one graph. Names and constants are shared with the graphs nested in it.

    In a training graph layers are those of a training step: statistics are those of the batch, and masks, by
    the name of the node and of those around it, are inputs.

    Attributes:
        turns: of the loops around the graph, from the outermost: how many, and the value that counts them.
    """

    def __init__(
        self,
        room: Room,
        outer: "Builder | None" = None,
        *,
        is_training: bool = False,
        name: str = "",
        turns: tuple[Turns, ...] = (),
    ) -> None:
        self.room = room
        self.turns: tuple[Turns, ...] = turns if outer is None else (*outer.turns, *turns)
        self._path: tuple[str, ...] = () if outer is None else (*outer._path, name)
        self.is_training: bool = is_training if outer is None else outer.is_training
        self.masks: dict[tuple[str, ...], ir.Value] = {} if outer is None else outer.masks
        self.nodes: list[ir.Node] = []
        self._names: dict[str, int] = {} if outer is None else outer._names
        self.constants: list[ir.Value] = [] if outer is None else outer.constants
        self._context: ShapeInferenceContext = (
            ShapeInferenceContext({"": OPSET}) if outer is None else outer._context
        )
        if outer is None:
            tensor_rules.complete()

    def unique(self, name: str) -> str:
        """The name, with a number if it is taken."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if not count else self.unique(f"{name}.{count}")

    def constant(self, array: Array, name: str) -> ir.Value:
        """An initializer."""
        self.room.take(nbytes=array.nbytes)
        name = self.unique(name)
        tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.constants.append(value)
        return value

    def mask(
        self, name: str, like: ir.Value, shape: Sequence[int | ir.SymbolicDim], share: float
    ) -> ir.Value:
        """The mask of a node, the same each time: an input of the model, of the element type of a value.

        In loops it is the part of this turn of a mask of all turns, which are the first axes.
        """
        key = (*self._path, name)
        if key not in self.masks:
            whole = [*(count for count, _ in self.turns), *shape]
            self.masks[key] = dropout_masks.mask(self.unique(f"{name}_mask"), whole, like, share)
        found = self.masks[key]
        for _, turn in self.turns:
            (found,) = self.add("Gather", [found, turn], {"axis": 0}, 1, name)
        return found

    def add(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: dict[str, Any], count: int, name: str
    ) -> tuple[ir.Value, ...]:
        """Add a node; returns its outputs.

        Raises:
            GraphError: its operands do not fit.
        """
        return self._add(("", op), inputs, attributes, count, name)

    def backward(
        self,
        gradients: Sequence[ir.Value],
        values: Sequence[ir.Value],
        asked: Sequence[ir.Value],
        name: str,
    ) -> tuple[ir.Value, ...]:
        """Add a node that asks for gradients, given those of values: see `app.engine.gradient.expand`."""
        operands = [*gradients, *values, *asked]
        return self._add(BACKWARD, operands, {"count": len(values)}, len(asked), name)

    def opaque(self, node: SymbolNode, inputs: Sequence[ir.Value], count: int) -> tuple[ir.Value, ...]:
        """Add a node as MXNet spells it, which can be planned and not run.

        Raises:
            GraphError: the shape of an output is not known.
        """
        outputs = self._add((MXNET, node.op), inputs, dict(node.attributes), count, node.name)
        for place, value in enumerate(outputs):
            if value.shape is None or value.dtype is None:
                raise GraphError(
                    f"{node.op} {node.name!r}: the shape of output {place} is not known; the operator can "
                    "only be planned, and that needs the shapes of its operands, or `__shape__` of the node",
                    pointer=f"node:{node.name}",
                )
        return outputs

    def _add(
        self,
        key: tuple[str, str],
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any],
        count: int,
        name: str,
    ) -> tuple[ir.Value, ...]:
        domain, op = key
        self.room.take(outputs=count)
        given = {k: v for k, v in attributes.items() if v is not None}
        node = ir.node(op, inputs, given, domain=domain, num_outputs=count, name=self.unique(name))
        for value in node.outputs:
            value.name = self.unique(f"{name}.{op}")
        self.nodes.append(node)
        rule = registry.get(domain, op, version=1 if domain else OPSET)
        if rule is not None:
            try:
                rule(self._context, node)
            except Exception as cause:  # rules raise many types, and any of them means the same
                raise GraphError(f"{name!r}: operands do not fit: {cause}", pointer=f"node:{name}") from cause
        return tuple(node.outputs)

    def nested(self, name: str, *turns: Turns) -> "Builder":
        """A graph of the node of this name inside of this one; of a loop, with its turns."""
        return Builder(self.room, self, name=name, turns=turns)

    def graph(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str) -> ir.Graph:
        """The nodes as a nested graph; what it does not compute it takes from around it."""
        return ir.Graph(inputs, self.distinct(inputs, outputs, name), nodes=self.nodes, name=name)

    def distinct(
        self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str
    ) -> tuple[ir.Value, ...]:
        """Outputs that nodes of this graph compute, each another value."""
        own, seen = {v for n in self.nodes for v in n.outputs}, set(inputs)
        found = []
        for value in outputs:
            if value in seen or value not in own:
                (value,) = self.add("Identity", [value], {}, 1, name)
            seen.add(value)
            found.append(value)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Call:
    """A node of a symbol, its operands in ONNX, and the graph that its translation goes to.

    `convert` adds the nodes of a subgraph to a graph, given its variables, and returns its outputs.
    """

    node: SymbolNode
    inputs: tuple[ir.Value, ...]
    attributes: Attributes
    builder: Builder
    convert: Callable[[Symbol, Builder, Sequence[ir.Value]], tuple[ir.Value, ...]]

    @property
    def title(self) -> str:
        """The node in errors."""
        return f"{self.node.op} {self.node.name!r}"

    def error(self, text: str) -> GraphError:
        """An error of this node."""
        return GraphError(f"{self.title}: {text}", pointer=f"node:{self.node.name}")

    def many(self, op: str, *inputs: ir.Value | None, count: int, **attributes: Any) -> tuple[ir.Value, ...]:
        """Outputs of a new node."""
        return self.builder.add(op, inputs, attributes, count, self.node.name)

    def one(self, op: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        return self.builder.add(op, inputs, attributes, 1, self.node.name)[0]

    def const(self, value: Any, like: ir.Value | np.dtype[Any]) -> ir.Value:
        """A constant of another value's element type.

        Raises:
            GraphError: integers do not hold it.
        """
        array = np.asarray(value)
        dtype = like if isinstance(like, np.dtype) else self.dtype(like).numpy()
        if dtype.kind in "iub" and array.dtype.kind == "f" and not np.all(array == np.floor(array)):
            raise self.error(f"{dtype} operands and a fractional constant; expected floats")
        with np.errstate(over="ignore", invalid="ignore"):
            return self.builder.constant(array.astype(dtype), f"{self.node.name}.constant")

    def ints(self, *values: int) -> ir.Value:
        """A list of whole numbers."""
        return self.builder.constant(np.array(values, np.int64), f"{self.node.name}.constant")

    def cast(self, value: ir.Value, dtype: ir.DataType | np.dtype[Any]) -> ir.Value:
        """The value in another element type, or as it is where it has it."""
        kind = dtype if isinstance(dtype, ir.DataType) else ir.DataType.from_numpy(dtype)
        return value if value.dtype == kind else self.one("Cast", value, to=kind.value)

    def dtype(self, value: ir.Value) -> ir.DataType:
        """The element type of a value."""
        if value.dtype is None:
            raise self.error(
                f"the element type of {value.name!r} is not known; declare `__dtype__` of its inputs"
            )
        return value.dtype

    def rank(self, value: ir.Value) -> int:
        """The number of axes of a value.

        Raises:
            GraphError: it is not known.
        """
        if value.shape is None:
            raise self.error(
                f"the rank of {value.name!r} is not known; declare the shapes of the symbol's inputs with "
                "`__shape__` (mx.sym.var(name, shape=...), 0 for a free dimension)"
            )
        return len(value.shape)

    def axis(self, name: str, rank: int | None, default: int | None = None) -> int:
        """An axis, counted from the front where the rank is known."""
        axis = self.attributes.integer(name, default)
        if rank is None:
            return axis
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} of {rank}")
        return axis % rank

    def dims(self, value: ir.Value) -> tuple[int, ...] | None:
        """The shape of a value if all of it is known."""
        if value.shape is None or not value.shape.is_static():
            return None
        return tuple(int(d) for d in value.shape if isinstance(d, int))

    def extent(self, value: ir.Value, axis: int) -> int | None:
        """The size of an axis if it is known."""
        size = None if value.shape is None or axis >= len(value.shape) else value.shape[axis]
        return size if isinstance(size, int) else None
