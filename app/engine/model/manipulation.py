"""Graphs taken apart and put together by the names of their values, as NNVM does with symbols.

A function leaves the model it is given as it is unless it says that it is used up; weights are shared, not
copied. Nodes keep their spelling.
"""

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
from onnx_ir.passes.common import (
    InlinePass,
    RemoveInitializersFromInputsPass,
    RemoveUnusedFunctionsPass,
    RemoveUnusedOpsetsPass,
    ShapeInferencePass,
)

from app.engine.core import graph
from app.engine.types import map_type
from app.engine.types.errors import GraphError, InputError

Role = Literal["input", "output", "weight", "internal"]
Dims = tuple[int | str | None, ...]
_SHOWN = 8  # names that an error lists


@dataclass(frozen=True, slots=True)
class Listed:
    """A value of the main graph.

    Attributes:
        roles: one or two: an output may be an input too.
        dtype: of the elements, empty where it is unknown; `sequence(...)` and `optional(...)` around it.
        shape: a number where fixed, a name where free, None where free and unnamed; None as a whole where
            the rank is unknown.
        operator: that makes it; empty for inputs and weights.
        node: name of the node that makes it.
    """

    name: str
    roles: tuple[Role, ...]
    dtype: str
    shape: Dims | None
    operator: str
    node: str


def typed(model: ir.Model) -> ir.Model:
    """The model with the types and shapes that follow from those it states."""
    return ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model).model


def values(model: ir.Model) -> list[Listed]:
    """Inputs, weights and what nodes make, in the order of the graph; values of nested graphs are no part."""
    main = model.graph
    found: list[Listed] = []
    for value in _own(main):
        node = value.producer()
        role: Role = "internal"
        if node is None:
            role = "weight" if value.is_initializer() else "input"
        roles: tuple[Role, ...] = (role,)
        if value.is_graph_output():
            roles = ("output",) if role == "internal" else (role, "output")
        operator, name = ("", "") if node is None else (node.op_type, node.name or "")
        found.append(Listed(value.name or "", roles, _dtype(value.type), _dims(value), operator, name))
    return found


def extract(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """The part that computes values from others; the model is used up.

    Args:
        model: with its types, see `typed`.
        inputs: names of values that become inputs, in this order; empty for those inputs of the model
            that the outputs need.
        outputs: names of values that become outputs, in this order.

    Raises:
        InputError: a name is unknown or given twice, or the outputs need an input that is not given.
        GraphError: the type of a value at the border cannot be told.
    """
    model = _with_fixed_weights(model)
    known = {value.name or "": value for value in _own(model.graph)}
    for place, names in (("inputs", inputs), ("outputs", outputs)):
        _check_names(known, place, names)
    ends = [known[name] for name in outputs]
    needed = _needed(ends, {known[name] for name in inputs})
    missing = [v.name or "" for v in model.graph.inputs if v in needed]
    if not inputs:
        inputs = missing
    elif missing:
        raise InputError(
            f"the outputs need {_listed(missing)} besides the inputs given: name these too",
            pointer="/inputs",
        )
    for name in (*inputs, *outputs):
        _check_type(known[name])
    for name in inputs:
        _make_input(model.graph, known[name], known)
    made = ir.convenience.extract(model.graph, list(inputs), list(outputs))
    for name in (name for name in model.graph.initializers if name in made.initializers):
        made.register_initializer(
            made.initializers.pop(name)
        )  # in the order of the file: the library has none
    return _tidy(_like(model, made))


def compose(first: ir.Model, second: ir.Model, connect: Mapping[str, str], prefix: str) -> ir.Model:
    """The second model on what the first computes; both are used up.

    Inputs are those of the first, then those of the second that stay open; outputs are those of the first
    that the second does not read, then those of the second. Local functions are inlined.

    Args:
        first: with its types, see `typed`.
        second: likewise.
        connect: the output of the first by the input of the second that reads it; empty for all that have
            the same name.
        prefix: what a name of the second gets where the first has it too.

    Raises:
        InputError: a name is unknown, types do not fit, or names collide even with the prefix.
        GraphError: the models use different versions of a set of operators.
    """
    first, second = (_with_fixed_weights(m) for m in (first, second))
    first, second = (InlinePass()(m).model if m.functions else m for m in (first, second))
    opsets = _common_opsets(first, second)
    made = {value.name or "": value for value in first.graph.outputs}
    read = {value.name or "": value for value in second.graph.inputs}
    connect = connect or {name: name for name in read if name in made}
    if not connect:
        raise InputError(
            f"no input of the second model ({_listed(read)}) has the name of an output of the first "
            f"({_listed(made)}): say which reads which",
            pointer="/connect",
        )
    for target, source in connect.items():
        _check_known(read, target, "the second model has no input", f"/connect/{target}")
        _check_known(made, source, "the first model has no output", f"/connect/{target}")
        _check_fits(made[source], read[target])
    wires = [(read[target], made[source]) for target, source in connect.items()]
    _copy_through(second.graph, (target for target, _ in wires))
    _unify_dimensions(first, second, wires, prefix)
    _rename(first, second, prefix, {target for target, _ in wires})
    inputs = [*first.graph.inputs, *(v for v in second.graph.inputs if v not in {t for t, _ in wires})]
    used = {source for _, source in wires}
    outputs = [v for v in first.graph.outputs if v not in used]
    for reader, writer in wires:
        reader.replace_all_uses_with(writer)
    outputs.extend(second.graph.outputs)
    weights = [*first.graph.initializers.values(), *second.graph.initializers.values()]
    nodes = [*first.graph, *second.graph]
    name = "_".join(n for n in (first.graph.name, second.graph.name) if n)
    view = ir.GraphView(
        inputs, outputs, nodes=nodes, initializers=weights, opset_imports=opsets, name=name or "composed"
    )
    whole = view.clone()
    first.ir_version = max(first.ir_version, second.ir_version)
    return _tidy(_like(first, whole))


def _with_fixed_weights(model: ir.Model) -> ir.Model:
    """The model whose weights are no inputs; files that need them as such have another version."""
    model.ir_version = max(model.ir_version, 4)
    return RemoveInitializersFromInputsPass()(model).model


def _own(main: ir.Graph) -> Iterator[ir.Value]:
    """Values of the main graph that have names, each once."""
    made = (v for node in main for v in node.outputs)
    every = itertools.chain(main.inputs, main.initializers.values(), made)
    return iter(dict.fromkeys(v for v in every if v.name))


def _needed(ends: Iterable[ir.Value], border: set[ir.Value]) -> set[ir.Value]:
    """Values that these are computed from, and they themselves, not looking behind the border."""
    found: set[ir.Value] = set()
    pending = [v for v in ends if v not in border]
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        node = value.producer()
        if node is not None:
            read = (*node.inputs, *graph.captures(node))
            pending.extend(v for v in read if v is not None and v not in border)
    return found


def _make_input(main: ir.Graph, value: ir.Value, known: Container[str]) -> None:
    """Let all that reads a value read an input of its name; its node may be needed for what else it makes."""
    if value.is_graph_input():
        return
    name = free = value.name or ""
    while free in known:
        free += ".cut"
    if value.is_initializer():
        del main.initializers[name]
    given = ir.Value(name=name, type=value.type, shape=value.shape)
    value.replace_all_uses_with(given, replace_graph_outputs=True)
    value.name = free
    main.inputs.append(given)


def _copy_through(main: ir.Graph, inputs: Iterable[ir.Value]) -> None:
    """Let outputs that are inputs be copies of them, which keep the name."""
    for value in (v for v in inputs if v.is_graph_output()):
        copy = ir.Node("", "Identity", [value], name=f"Identity {value.name}")
        (output,) = copy.outputs
        output.name, output.type, output.shape = value.name, value.type, value.shape
        main.append(copy)
        for place in (i for i, v in enumerate(tuple(main.outputs)) if v is value):
            main.outputs[place] = output


def _like(model: ir.Model, main: ir.Graph) -> ir.Model:
    """A model around a graph, otherwise as this one."""
    return ir.Model(
        main,
        ir_version=model.ir_version,
        producer_name="stowplan",
        functions=tuple(model.functions.values()),
        metadata_props=dict(model.metadata_props),
    )


def _tidy(model: ir.Model) -> ir.Model:
    """The model without functions and sets of operators that nothing uses."""
    used = RemoveUnusedFunctionsPass()  # type: ignore[no-untyped-call]  # the library gives no types
    return RemoveUnusedOpsetsPass()(used(model).model).model


def _check_names(known: Mapping[str, ir.Value], place: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        _check_known(known, name, "the main graph has no value", f"/{place}/{index}")
        if name in names[:index]:
            raise InputError(f"{place}: {name!r} is named twice", pointer=f"/{place}/{index}")


def _check_known(known: Mapping[str, ir.Value], name: str, what: str, pointer: str) -> None:
    if name not in known:
        raise InputError(f"{what} {name!r}; it has {_listed(known)}", pointer=pointer)


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (", ".join(map(repr, found[:_SHOWN])) or "none") + more


def _check_type(value: ir.Value) -> None:
    if value.type is None:
        raise GraphError(
            f"value {value.name!r} cannot be an input or output: its type is neither stated nor follows from "
            "the operators; choose another value",
            pointer=f"value:{value.name}",
        )


def _check_fits(source: ir.Value, target: ir.Value) -> None:
    """Refuse to connect what has another type, rank or extent."""
    differs = source.type is not None and target.type is not None and source.type != target.type
    if source.shape is not None and target.shape is not None:
        fixed = [
            (a, b) for a, b in zip(source.shape, target.shape) if isinstance(a, int) and isinstance(b, int)
        ]
        differs = differs or len(source.shape) != len(target.shape) or any(a != b for a, b in fixed)
    if differs:
        raise InputError(
            f"input {target.name!r} of the second model is {_dtype(target.type)}{_text(target)}, "
            f"output {source.name!r} of the first {_dtype(source.type)}{_text(source)}",
            pointer=f"/connect/{target.name}",
        )


def _common_opsets(first: ir.Model, second: ir.Model) -> dict[str, int]:
    for domain, version in second.opset_imports.items():
        other = first.opset_imports.get(domain, version)
        if other != version:
            raise GraphError(
                f"the models use versions {other} and {version} of the operators of "
                f"{domain or 'ai.onnx'!r}; convert one (`stowplan convert --opset`)"
            )
    return dict(first.opset_imports) | dict(second.opset_imports)


def _unify_dimensions(
    first: ir.Model, second: ir.Model, wires: Sequence[tuple[ir.Value, ir.Value]], prefix: str
) -> None:
    """Let free dimensions of the second model have the extents or names of what it is connected to.

    Any other name that both models use becomes another one: they need not be equal.
    """
    names: dict[str, int | str] = {}
    for target, source in wires:
        for inner, outer in zip(_dims(target) or (), _dims(source) or ()):
            if isinstance(inner, str) and outer is not None:
                names.setdefault(inner, outer)
    taken = {d for v in _all_values(first) for d in _dims(v) or () if isinstance(d, str)}
    for value in _all_values(second):
        shape = value.shape
        if shape is None or all(isinstance(d, int) for d in shape):
            continue
        dims: list[int | str | None] = []
        for dimension in (_dim(d) for d in shape):
            if isinstance(dimension, str):
                other = f"{prefix}{dimension}" if dimension in taken else dimension
                dims.append(names.get(dimension, other))
            else:
                dims.append(dimension)
        value.shape = ir.Shape(dims)


def _rename(first: ir.Model, second: ir.Model, prefix: str, open_ended: set[ir.Value]) -> None:
    """Prefix the names of the second model that the first has too; those of connected inputs vanish."""
    taken = {v.name for v in _all_values(first)}
    own = {v.name for v in _all_values(second)}
    for value in _all_values(second):
        if value not in open_ended and value.name in taken:
            value.name = _prefixed(value.name or "", prefix, taken | own)
    nodes = {node.name for node in first.graph.all_nodes()}
    others = {node.name for node in second.graph.all_nodes()}
    for node in second.graph.all_nodes():
        if node.name and node.name in nodes:
            node.name = _prefixed(node.name, prefix, nodes | others)


def _prefixed(name: str, prefix: str, taken: set[str | None]) -> str:
    made = f"{prefix}{name}"
    if made in taken:
        raise InputError(
            f"both models have the name {name!r}, and {made!r} is taken too; give another prefix",
            pointer="/prefix",
        )
    return made


def _all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Values with names, those of nested graphs included."""
    for part in model.graphs():
        every = itertools.chain(part.inputs, part.initializers.values(), (v for n in part for v in n.outputs))
        yield from dict.fromkeys(v for v in every if v.name)


def _dim(dimension: int | ir.SymbolicDim) -> int | str | None:
    """A number where fixed, a name where free, None where free and unnamed."""
    if isinstance(dimension, int):
        return dimension if dimension >= 0 else None
    return dimension.value or None


def _dims(value: ir.Value) -> Dims | None:
    return None if value.shape is None else tuple(_dim(d) for d in value.shape)


def _text(value: ir.Value) -> str:
    dims = _dims(value)
    return "" if dims is None else f"[{', '.join('?' if d is None else str(d) for d in dims)}]"


def _dtype(type_: ir.TypeProtocol | None) -> str:
    """NumPy name of the elements, as inspections tell it."""
    if type_ is None:
        return ""
    if isinstance(type_, ir.SequenceType | ir.OptionalType):
        around = "sequence" if isinstance(type_, ir.SequenceType) else "optional"
        return f"{around}({_dtype(type_.elem_type)})"
    if isinstance(type_, map_type.MapType):
        return f"map({type_.key.name.lower()}, {type_.value.name.lower()})"
    element = type_.dtype
    if element == ir.DataType.UNDEFINED:
        return ""
    return "string" if element == ir.DataType.STRING else str(element.numpy().name)
