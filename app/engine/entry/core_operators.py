"""The core operators as documents: JSON for the API and the pages, Markdown for docs/core-operators.md.

What a row does not state comes from where the passes read it: operands, element types and defaults from the
schemas of ONNX, implementations with their layouts, storage types and in-place pairs from the registry,
storage types of MXNet from its rows, spellings of MXNet from its reader, the reference from the evaluator.

`python -m app.engine.entry.core_operators` prints JSON, with `--docs` the page.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir

from app.engine.core.registry import (
    Implementation,
    Registry,
    all_dense,
    all_plain,
    load,
    no_pairs,
    no_views,
)
from app.engine.model.mxnet.spellings import NESTED, main_operator, spellings
from app.engine.operators import movement
from app.engine.reference import evaluator
from app.engine.rewrites.axis_permutation import FAMILIES
from app.engine.types.core_operator import LEVELS, SHAPES, CoreOperator, CoreSet
from app.engine.types.storage import LETTERS, MODES, MXNET, StorageRow

Json: TypeAlias = dict[str, Any]
ANY = "*"  # operator of rows that apply to all
ELEMENTWISE = "Elementwise"  # operator of rows for groups of elementwise nodes
_HOW = {
    "direct": "it is a core operator",
    "alias": "one core operator with other operands or attributes",
    "rule": "several core operators",
    "body": "the core operators of its function body in ONNX",
}
_PERMUTED = frozenset(op for family in FAMILIES for op in family.ops)
_PARTS = frozenset(op for op, _, _ in movement.PARTS)


def document(registry: Registry) -> Json:
    """All core operators, every operator of ONNX with what it becomes, and every one of MXNet."""
    core = registry.core
    from_mxnet = _mxnet()
    names = {op: _names(op, core) for op in core.ops}
    return {
        "schema": "stowplan.core_operators/1",
        "levels": [{"level": n, "title": title} for n, title in LEVELS.items()],
        "operators": [operator(row, registry, names, from_mxnet) for row in core.operators],
        "onnx": [_becoming(op, core, names) for op in core.ops if _schema(op) is not None],
        "mxnet": [
            {"op": name, "operators": list(made), "core": list(_all_names(made, names))}
            for name, made in spellings().items()
        ],
    }


def operator(
    row: CoreOperator,
    registry: Registry,
    names: Mapping[str, tuple[str, ...]],
    from_mxnet: Mapping[str, tuple[str, ...]],
) -> Json:
    """One core operator, given what operators of ONNX become, and the spellings of MXNet by these."""
    core = registry.core
    aliases = [op for op in core.ops if core.how(op) == "alias" and names[op] == (row.name,)]
    schema = _schema(row.ops[0])
    mxnet = [name for op in (*row.ops, *aliases) for name in from_mxnet.get(op, ())]
    return {
        "name": row.name,
        "level": row.level,
        "formula": row.formula,
        "shape": SHAPES[row.shape],
        "broadcasts": row.shape == "broadcast",
        "operands": [] if schema is None else [_value(v) for v in schema.inputs],
        "results": [] if schema is None else [_value(v) for v in schema.outputs],
        "attributes": _attributes(row),
        "layout": _layout(row, registry),
        "storage": _storage(mxnet, 1 if schema is None else schema.min_input, registry),
        "reference": {op: _reference(op) for op in row.ops},
        "onnx": [_becoming(op, core, names) for op in (*row.ops, *aliases) if _schema(op) is not None],
        "used_by": [op for op in core.ops if op not in (*row.ops, *aliases) and row.name in names[op]],
        "mxnet": mxnet,
        "implementations": _implementations((*row.ops, *aliases), registry),
    }


def _schema(op: str) -> onnx.defs.OpSchema | None:
    """The newest schema of an operator of ONNX; None of an internal one."""
    return onnx.defs.get_schema(op) if onnx.defs.has(op) else None


def _becoming(op: str, core: CoreSet, names: Mapping[str, tuple[str, ...]]) -> Json:
    how = core.how(op)
    return {
        "op": op,
        "how": how,
        "core": list(names[op]),
        "formula": core.formula(op),
        "reason": core.reason(op, "") if how == "outside" else None,
    }


def _names(op: str, core: CoreSet) -> tuple[str, ...]:
    """The core operators that an operator becomes, those of its function body where that is the rule."""
    if core.how(op) != "body":
        return core.names(op)
    found: dict[str, None] = {}
    for inner in body(op):
        found |= dict.fromkeys(_names(inner, core))
    return tuple(found)


def body(op: str) -> tuple[str, ...]:
    """The operators of the function body of an operator of ONNX, once each; nested graphs included.

    A body that depends on the operands' types is that of float32.
    """
    schema = onnx.defs.get_schema(op)
    if schema.has_function:  # type: ignore[attr-defined]  # the library's stub lacks it
        nodes = list(schema.function_body.node)
    else:
        proto = onnx.FunctionProto.FromString(_dependent_body(schema))
        nodes = list(proto.node)
    return tuple(dict.fromkeys(_inner(nodes)))


def _dependent_body(schema: onnx.defs.OpSchema) -> bytes:
    """The function body for float32 operands; those of index type for what asks for it."""
    node = onnx.NodeProto(op_type=schema.name)
    types = []
    for k, formal in enumerate(schema.inputs):
        node.input.append(f"x{k}")
        allowed = formal.types
        name = "tensor(float)" if "tensor(float)" in allowed else "tensor(int64)"
        kind = onnx.TensorProto.FLOAT if name == "tensor(float)" else onnx.TensorProto.INT64
        types.append(onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=kind)).SerializeToString())
    node.output.extend(f"y{k}" for k in range(schema.min_output))
    for attribute in schema.attributes.values():
        if attribute.required:
            node.attribute.add(name=attribute.name, type=onnx.AttributeProto.INT, i=1)
    made: bytes = schema.get_context_dependent_function(  # type: ignore[attr-defined]  # as above
        node.SerializeToString(), types
    )
    return made


def _inner(nodes: Iterable[onnx.NodeProto]) -> Iterable[str]:
    for node in nodes:
        yield node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _inner(attribute.g.node)


def _all_names(ops: Sequence[str], names: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    return dict.fromkeys(name for op in ops for name in names.get(op, ()))


def _mxnet() -> Mapping[str, tuple[str, ...]]:
    """Operators of MXNet by the operator of ONNX that their translation is about."""
    found: dict[str, list[str]] = {}
    for name, made in spellings().items():
        main = main_operator(made)
        for op in (main,) if main is not None else made if name in NESTED else ():
            found.setdefault(op, []).append(name)
    return {op: tuple(names) for op, names in found.items()}


def _value(formal: onnx.defs.OpSchema.FormalParameter) -> Json:
    """An operand or result of a schema."""
    options = onnx.defs.OpSchema.FormalParameterOption
    dtypes = sorted(formal.types)
    tensors = [t.removeprefix("tensor(").removesuffix(")") for t in dtypes if t.startswith("tensor(")]
    return {
        "name": formal.name,
        "optional": formal.option == options.Optional,
        "variadic": formal.option == options.Variadic,
        "dtypes": [t for t in tensors if t != "string"],
    }


def _attributes(row: CoreOperator) -> list[Json]:
    found = []
    for name, meaning in row.attributes.items():
        schemas = (schema for op in row.ops if (schema := _schema(op)) is not None)
        declared = next((s.attributes[name] for s in schemas if name in s.attributes), None)
        if declared is None:
            raise ValueError(f"core operator {row.name!r}: none of {row.ops} has an attribute {name!r}")
        default = declared.default_value
        value: Any = ir.serde.deserialize_attribute(default).value if default.name else None
        found.append(
            {
                "name": name,
                "type": str(declared.type).rpartition(".")[2].lower(),
                "required": declared.required,
                "default": float(f"{value:.7g}") if isinstance(value, float) else value,
                "meaning": meaning,
            }
        )
    return found


def _layout(row: CoreOperator, registry: Registry) -> list[str]:
    """Behaviour with other orders of axes and places in memory, from the tables that the passes read."""
    told = []
    rows = [registry.operators.get(("", op)) for op in row.ops]
    if all(r is not None and r.elementwise for r in rows):
        along = any(r is not None and r.per_axis for r in rows)
        told.append(
            "elementwise" + (", parameters along one axis" if along else "") + ": fuses in any layout"
        )
    if all(op in _PERMUTED for op in row.ops):
        told.append("computes on permuted axes: transposes move across it")
    if all(op in movement.VIEWS for op in row.ops):
        told.append("its result may lie where the operand does")
    if all(op in _PARTS for op in row.ops):
        told.append("its parts may lie in the whole")
    return told


def _storage(mxnet: Sequence[str], operands: int, registry: Registry) -> list[Json]:
    """Storage types as MXNet infers them, by its operators: `dc>d:X`, see `app.engine.types.storage`."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in mxnet:
        row = registry.operators.get((MXNET, name.partition(" ")[0]))
        if row is None or row.storage is None:
            continue
        rules = next(filter(None, (_rules(row.storage, count) for count in (operands, 1, 2, 3))), None)
        if rules:
            found.setdefault(rules, []).append(name)
    return [{"operators": names, "rules": list(rules)} for rules, names in found.items()]


def _rules(storage: Any, inputs: int) -> tuple[str, ...]:
    """The rules for so many operands, as text; none where it has others."""
    try:
        rows: tuple[StorageRow, ...] = storage({}, inputs, 1).rows
    except (KeyError, ValueError):  # an attribute that it needs
        return ()
    return tuple(_letters(r) for r in rows if len(r.inputs) == inputs)


def _letters(row: StorageRow) -> str:
    kinds = {kind: letter for letter, kind in LETTERS.items()}
    modes = {mode: letter for letter, mode in MODES.items()}
    read, made = ("".join(kinds.get(k or "default", "?") for k in side) for side in (row.inputs, row.outputs))
    return f"{read}>{made}:{modes[row.mode]}"


def _reference(op: str) -> str | None:
    """The function or class that evaluates an operator as the reference."""
    if _schema(op) is None:
        return None
    row = next(
        (r for r in evaluator.CORRECTIONS if (r.domain, r.op) == ("", op) and r.until > _newest()), None
    )
    if row is not None:
        return f"{row.function.__module__}.{row.function.__name__}"
    return f"onnx.reference, {op}"


def _newest() -> int:
    return evaluator.NEWEST_OPSET


def _implementations(ops: Sequence[str], registry: Registry) -> list[Json]:
    """Registered rows that run the operators; rows for all operators last."""
    anchors = list(ops)
    if any((row := registry.operators.get(("", op))) is not None and row.elementwise for op in ops):
        anchors.append(ELEMENTWISE)
    found = [_row(r) for op in anchors for r in registry.implementations.get(op, ())]
    whole = [name for name, backend in registry.backends.items() if backend.selector is not None]
    libraries = [{**_nothing(), "name": name, "op": ANY, "backend": name} for name in sorted(whole)]
    return [*found, *(_row(r) for r in registry.implementations.get(ANY, ())), *libraries]


def _nothing() -> Json:
    return {"precision": "f32", "layouts": False, "storage": False, "in_place": False, "views": False} | {
        "padding": {"reads": "any", "leaves": "undefined"}
    }


def _row(row: Implementation) -> Json:
    return {
        "name": row.name,
        "op": row.op,
        "backend": row.backend,
        "precision": row.precision,
        "layouts": row.layouts is not all_plain,
        "storage": row.storage is not all_dense,
        "in_place": row.inplace is not no_pairs,
        "views": row.views is not no_views,
        "padding": {"reads": row.padding.reads, "leaves": row.padding.leaves},
    }


def main(arguments: Sequence[str]) -> None:
    """Print the document, as JSON or as the page of the documentation."""
    found = document(load())
    sys.stdout.write(page(found) if "--docs" in arguments else json.dumps(found))


def page(found: Json) -> str:
    """The document in Markdown."""
    from app.engine.entry import core_operators_page

    return core_operators_page.page(found)


if __name__ == "__main__":
    main(sys.argv[1:])
