"""Bind what is known of the inputs, then infer shape and type of every value."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir
from onnx_shape_inference import infer_symbolic_shapes

from app.engine import graph
from app.engine.errors import InputError
from app.engine.plan import Compilation

BOUND = "stowplan.bound_inputs"  # key of model.meta: (position, name, type, shape) of inputs that became constants


@dataclass(frozen=True)
class InferTypes:
    """Dimensions first (a free one is an error), values second, inference third."""

    name: ClassVar[str] = "infer_types"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """The same graph with types on its values.

        Raises:
            InputError: a binding names no input, contradicts the model, or leaves a dimension free.
        """
        bindings = compilation.bindings
        inputs = {v.name or "": v for v in compilation.graph.inputs}
        for field, named in (("input_shapes", bindings.shapes), ("input_values", bindings.values)):
            for name in named:
                if name not in inputs:
                    raise InputError(
                        f"input {name!r} is unknown; the model has {', '.join(map(repr, inputs)) or 'none'}",
                        pointer=f"/{field}/{name}",
                    )
        _bind_shapes(inputs, compilation)
        _bind_values(compilation)
        # What the file declares of inner values and outputs is unreliable; inference says it anew.
        for node in compilation.graph:
            for value in node.outputs:
                value.shape = None
        infer_symbolic_shapes(compilation.model, warn_on_missing=False)
        return compilation


def _bind_shapes(inputs: dict[str, ir.Value], compilation: Compilation) -> None:
    symbols: dict[str, int] = {}
    for name, value in inputs.items():
        if name in compilation.bindings.shapes:
            value.shape = _bound(name, value, compilation.bindings.shapes[name], symbols)
    for name, value in inputs.items():
        if value.shape is None or not isinstance(value.type, ir.TensorType | None):
            if isinstance(value.type, ir.SequenceType | ir.OptionalType):
                continue
            raise InputError(
                f"input {name!r} has no rank: bind it with input_shapes", pointer=f"/input_shapes/{name}"
            )
        if name in compilation.bindings.values:
            value.shape = ir.Shape([1 if not _is_fixed(d) else d for d in value.shape])
        dims = [d if _is_fixed(d) else symbols.get(str(getattr(d, "value", None)), d) for d in value.shape]
        free = [
            f"{axis} ({getattr(d, 'value', None) or 'unnamed'})"
            for axis, d in enumerate(dims)
            if not _is_fixed(d)
        ]
        if free:
            raise InputError(
                f"input {name!r}: dimension {', '.join(free)} is free; bind it with input_shapes, for example "
                f'{{"{name}": {[d if _is_fixed(d) else 1 for d in dims]}}}',
                pointer=f"/input_shapes/{name}",
            )
        value.shape = ir.Shape(dims)


def _is_fixed(dim: object) -> bool:
    """A dimension that is not positive is unknown: exporters write -1. Zero elements are legal."""
    return isinstance(dim, int) and dim >= 0


def _bound(name: str, value: ir.Value, given: tuple[int, ...], symbols: dict[str, int]) -> ir.Shape:
    pointer = f"/input_shapes/{name}"
    if any(d < 0 for d in given):
        raise InputError(
            f"input {name!r}: dimensions must not be negative, found {list(given)}", pointer=pointer
        )
    if value.shape is None:
        return ir.Shape(given)
    declared = [d if _is_fixed(d) else getattr(d, "value", None) for d in value.shape]
    if len(declared) != len(given):
        raise InputError(
            f"input {name!r}: the model declares {len(declared)} dimensions {declared}, given are {list(given)}",
            pointer=pointer,
        )
    for axis, (dim, bound) in enumerate(zip(declared, given, strict=True)):
        if isinstance(dim, int) and dim != bound:
            raise InputError(
                f"input {name!r}: dimension {axis} is {dim} in the model, {bound} was given", pointer=pointer
            )
        if isinstance(dim, str):  # exporters give one name to different sizes: it is only a default
            symbols.setdefault(dim, bound)
    return ir.Shape(given)


def _bind_values(compilation: Compilation) -> None:
    """An input that is bound to a value becomes an initializer; the signature is kept for the export."""
    model = compilation.model
    for position, value in reversed(list(enumerate(model.graph.inputs))):
        name = value.name or ""
        if name not in compilation.bindings.values:
            continue
        given = compilation.bindings.values[name]
        kind = graph.dtype(value)
        if kind is None:
            raise InputError(
                f"input {name!r} is no tensor and cannot be bound", pointer=f"/input_values/{name}"
            )
        array = np.full(graph.static_shape(value), given, kind)
        constant = ir.Value(
            name=f"{name}.bound",
            type=value.type,
            shape=value.shape,
            const_value=ir.tensor(array, name=f"{name}.bound"),
        )
        model.graph.inputs.remove(value)
        model.graph.register_initializer(constant)
        value.replace_all_uses_with(constant)
        rows = model.meta.setdefault(BOUND, [])
        rows.insert(0, (position, value, array))
