"""Binds what is known of the inputs, then infers the type of every value."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.registry import Registry
from app.engine.model import given_tensors, naming, operand_types
from app.engine.model.shape_inference import inference
from app.engine.storage.inference import declared
from app.engine.types.errors import GraphError, InputError
from app.engine.types.limits import memory_bytes
from app.engine.types.sparse_array import LARGEST
from app.engine.types.storage import DeclaredStorage

# Keys of model.meta: inputs that became constants; element types, and shapes, that the file gives its
# outputs; whether all types are inferred.
BOUND = "stowplan.bound_inputs"
DECLARED = "stowplan.declared_outputs"
DECLARED_SHAPES = "stowplan.declared_shapes"
TYPED = "stowplan.typed"


@dataclass(frozen=True, slots=True)
class BoundInput:
    """An input that was bound to a value: no longer an input of the plan, still one of the export.

    `position` counts among all inputs of the file. `value` belongs to no graph any more.
    """

    position: int
    value: ir.Value
    array: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class InferTypes:
    """Every input gets a static shape; bound values become constants; types follow from these.

    Where operands do not fit an operator, values stay without a type, and `canonicalize` tells.
    """

    name: ClassVar[str] = "infer_types"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """The same graph, bound and typed, in place.

        Raises:
            InputError: a binding fits no input, or a dimension is left free.
            GraphError: an operand has a type that its operator does not take.
        """
        bindings = compilation.bindings
        model = compilation.model
        for pointer, names in (
            ("inputs", bindings.tensors),
            ("input_shapes", bindings.shapes),
            ("input_values", bindings.values),
            ("input_storage", bindings.storage),
        ):
            _check_names(model.graph, names, pointer)
        bind_shapes(model.graph, bindings.shapes, given_tensors.shapes(bindings.tensors))
        _check_memory(model.graph)
        bind_values(model, bindings.values)
        for value in model.graph.inputs:
            _check_static(value)
            if (storage := bindings.storage.get(value.name or "")) is not None:
                _check_storage(value, storage, "input")
        naming.make_unique(model)  # errors name nodes
        model.meta[DECLARED] = {
            v.name or "": v.dtype for v in model.graph.outputs if v.dtype not in (None, ir.DataType.UNDEFINED)
        }
        model.meta[DECLARED_SHAPES] = {
            v.name or "": v.shape for v in model.graph.outputs if v.shape is not None
        }
        # The weights are shared with the copy.
        source = model.clone() if _races(compilation) else None
        # A branch that is never taken may not fit the bound shapes; folding removes it.
        with suppress(GraphError):
            inference.infer(model)
            # Of a nested graph that does not fit, inference leaves what the file claims.
            model.meta[TYPED] = not any(map(graph.bodies, model.graph))
        _check_value_storage(compilation)
        operand_types.check(model)
        check_attributes(model.graph, compilation.registry)
        returned = {v.name or "": kind for v in model.graph.outputs if (kind := declared(v)) is not None}
        return replace(compilation, source=source, bindings=replace(bindings, returned=returned))


def check_attributes(main: ir.Graph, registry: Registry) -> None:
    """Ask the rows of operators whether attributes fit, in nested graphs too.

    Raises:
        GraphError: those of a node do not.
    """
    for node in main.all_nodes():
        row = registry.operator(node)
        if row is not None and row.check is not None:
            row.check(node)


def _races(compilation: Compilation) -> bool:
    """True if a library may be given the model as it is, see `app.engine.planning.backend_assignment`.

    Not one with bodies: bindings decide which branches are taken, and the others may not fit them. What
    onnxruntime does with a branch that does not fit and a condition that is constant is to crash.
    """
    return (
        compilation.options.choose != "first"
        and bool(compilation.registry.libraries(compilation.target.backends))
        and not any(map(graph.bodies, compilation.graph))
    )


def bound_inputs(model: ir.Model) -> tuple[BoundInput, ...]:
    """The inputs that were bound to values, in order of position."""
    found: tuple[BoundInput, ...] = model.meta.get(BOUND, ())
    return found


def _check_names(main: ir.Graph, names: Mapping[str, object], option: str) -> None:
    known = [v.name or "" for v in main.inputs]
    for name in names:
        if name not in known:
            raise InputError(
                f"no input is called {name!r}; the model has {', '.join(map(repr, known)) or 'none'}",
                pointer=f"/{option}/{name}",
            )


def free_dimension(dimension: int | ir.SymbolicDim) -> str | None:
    """The name of a free dimension, empty where it has none; None for a fixed one.

    Exporters write negative numbers or question marks where they know nothing.
    """
    if isinstance(dimension, int):
        return "" if dimension < 0 else None
    name = dimension.value or ""
    return name if any(c.isalnum() for c in name) else ""


def bind_shapes(
    main: ir.Graph,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> None:
    """Set the shapes of inputs, as stated or as the tensors given for them have them.

    A name bound by one input is bound for all. A dimension may be 0, as in a model file; a negative one
    means nothing. Every way to the engine leaves it to this function.

    Raises:
        InputError: a shape has another rank or contradicts the model, itself, a tensor or another one.
    """
    sizes: dict[str, tuple[int, str]] = {}  # by name of a dimension: size, and the input that said so
    for value in main.inputs:
        name = value.name or ""
        stated, tensor = shapes.get(name), tensors.get(name)
        if stated is not None and tensor is not None and stated != tensor:
            raise InputError(
                f"input {name!r}: the shape is stated as {list(stated)}, the tensor given has {list(tensor)}",
                pointer=f"/input_shapes/{name}",
            )
        if stated is not None:
            _bind_shape(value, stated, sizes, f"/input_shapes/{name}")
        elif tensor is not None:
            _bind_shape(value, tensor, sizes, f"/inputs/{name}")
    for value in main.inputs:
        if value.shape is not None:
            dims = [
                sizes[free][0] if (free := free_dimension(d)) and free in sizes else d for d in value.shape
            ]
            value.shape = ir.Shape(dims)


def _bind_shape(
    value: ir.Value, shape: tuple[int, ...], sizes: dict[str, tuple[int, str]], pointer: str
) -> None:
    name = value.name or ""
    if any(d < 0 for d in shape):
        raise InputError(f"input {name!r}: shape {list(shape)} has a negative dimension", pointer=pointer)
    if graph.is_composite(value):
        raise InputError(f"input {name!r} is no tensor and has no shape to bind", pointer=pointer)
    if value.shape is not None:
        if len(value.shape) != len(shape):
            raise InputError(
                f"input {name!r}: the model expects {len(value.shape)} dimensions, "
                f"found {len(shape)} in {list(shape)}",
                pointer=pointer,
            )
        for axis, (declared, given) in enumerate(zip(value.shape, shape)):
            free = free_dimension(declared)
            if free is None and declared != given:
                raise InputError(
                    f"input {name!r}: dimension {axis} is {declared} in the model, found {given}",
                    pointer=pointer,
                )
            if free and sizes.setdefault(free, (given, name))[0] != given:
                size, other = sizes[free]
                raise InputError(
                    f"input {name!r}: dimension {axis} ({free!r}) is {size} in {other!r}, found {given}",
                    pointer=pointer,
                )
    value.shape = ir.Shape(shape)


def bind_values(model: ir.Model, values: Mapping[str, float | int | bool]) -> None:
    """Make constants of inputs. A free dimension of such an input is taken to be 1.

    Raises:
        InputError: the input is no tensor of numbers, or its type cannot hold the value.
    """
    bound = []
    taken = {v.name or "" for v in graph.values(model.graph)}
    for position, value in enumerate(tuple(model.graph.inputs)):
        name = value.name or ""
        if name not in values:
            continue
        if value.shape is not None:
            dims = [d if free_dimension(d) is None else 1 for d in value.shape]
            value.shape = ir.Shape(dims)
        array = _filled(value, values[name])
        title = naming.free(f"{name}.bound", taken)
        fixed = ir.Value(
            name=title,
            type=value.type,
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, dtype=value.dtype, name=title),
        )
        model.graph.register_initializer(fixed)
        value.replace_all_uses_with(fixed, replace_graph_outputs=True)
        model.graph.inputs.remove(value)
        bound.append(BoundInput(position, value, array))
    if bound:
        model.meta[BOUND] = (*bound_inputs(model), *bound)


def _filled(value: ir.Value, given: float | int | bool) -> np.ndarray[Any, Any]:
    """The value in the input's type and shape."""
    pointer = f"/input_values/{value.name}"
    kind = graph.dtype(value) if graph.is_tensor(value) else None
    if kind is None or value.shape is None:
        raise InputError(
            f"input {value.name!r} cannot be bound to a value: it is no tensor of numbers of known rank",
            pointer=pointer,
        )
    shape = graph.static_shape(value)
    try:
        with np.errstate(all="ignore"):
            array = np.full(shape, np.asarray(given).astype(kind), kind)
    except (OverflowError, ValueError, TypeError):
        raise InputError(
            f"input {value.name!r} is {kind}, which cannot hold {given!r}", pointer=pointer
        ) from None
    if kind.kind in "iub" and not np.all(array == given):
        raise InputError(f"input {value.name!r} is {kind}, which cannot hold {given!r}", pointer=pointer)
    return array


def _check_memory(main: ir.Graph) -> None:
    """Refuse inputs that this process cannot hold, before anything of their size is made."""
    available, needed = memory_bytes(), 0
    for value in main.inputs:
        shape, kind = graph.shape(value), graph.dtype(value)
        if shape is None or kind is None or graph.is_composite(value):
            continue
        nbytes = math.prod(max(d, 1) for d in shape) * kind.itemsize  # no array has strides beyond memory
        needed += nbytes
        if needed > available:
            others = f", all inputs up to it {needed} byte" if needed > nbytes else ""
            raise InputError(
                f"input {value.name!r}: {kind}{list(shape)} takes {nbytes} byte{others}; "
                f"the job may use {available} byte of memory: bind smaller dimensions",
                pointer=f"/input_shapes/{value.name}",
            )


def _check_value_storage(compilation: Compilation) -> None:
    """Refuse storage types of values that no node of the main graph makes, or that they cannot have."""
    declared = compilation.bindings.value_storage
    if declared and compilation.options.semantics != "stowplan":
        raise InputError(
            f"{compilation.options.semantics} infers how values are stored; state storage types of inputs, "
            "or take the semantics stowplan",
            pointer="/value_storage",
        )
    made = {v.name: v for node in compilation.graph for v in node.outputs}
    for name, storage in declared.items():
        if name not in made:
            raise InputError(
                f"no node of the main graph makes a value that is called {name!r}; "
                "`input_storage` declares inputs",
                pointer=f"/value_storage/{name}",
            )
        _check_storage(made[name], storage, "value")


def _check_storage(value: ir.Value, storage: DeclaredStorage, role: str) -> None:
    """Refuse a storage type that an input or another value cannot have."""
    reason = None
    kind = None if graph.is_composite(value) else graph.dtype(value)
    if kind is None or kind.kind != "f":
        reason = f"its elements are {kind or 'none'}, those of sparse {role}s are floats"
    elif graph.shape(value) is None:
        reason = "its shape is not known before a run"
    elif storage.kind not in ("csr", "row_sparse"):
        reason = f"{role}s are csr or row_sparse, found {storage.kind!r}"
    elif (storage.entries is None) == (storage.density is None):
        reason = "state either how many elements or rows it stores, or its density"
    elif storage.density is not None and not 0 < storage.density <= 1:
        reason = f"a density is above 0 and at most 1, found {storage.density:g}"
    elif storage.entries is not None and storage.entries < 0:
        reason = f"the number of what it stores must not be negative, found {storage.entries}"
    elif not (shape := graph.static_shape(value)) or (storage.kind == "csr" and len(shape) != 2):
        axes = "2 axes" if storage.kind == "csr" else "rows"
        reason = f"values of this storage type have {axes}, its shape is {list(shape)}"
    elif max(shape) > LARGEST:
        reason = f"sparse values have axes of at most {LARGEST}, its shape is {list(shape)}"
    if reason is not None:
        raise InputError(
            f"{role} {value.name!r} cannot be stored {storage.kind}: {reason}",
            pointer=f"/{role}_storage/{value.name}",
        )


def _check_static(value: ir.Value) -> None:
    """Refuse a tensor with a free dimension, and tell how to bind it."""
    if graph.is_composite(value):
        return
    name = value.name or ""
    pointer = f"/input_shapes/{name}"
    if value.shape is None:
        raise InputError(f"input {name!r}: its rank is unknown; bind its shape (`--input`)", pointer=pointer)
    free = [(axis, free_dimension(d)) for axis, d in enumerate(value.shape)]
    for axis, label in free:
        if label is not None:
            shape = ["?" if free_dimension(d) is not None else str(d) for d in value.shape]
            raise InputError(
                f"input {name!r}: dimension {axis}{f' ({label!r})' if label else ''} is free; "
                f"bind its shape, [{', '.join(shape)}] (`--input {name}={'x'.join(shape)}`)",
                pointer=pointer,
            )
