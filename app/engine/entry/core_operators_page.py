"""The page docs/core-operators.md out of the document of the core operators."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Json: TypeAlias = Mapping[str, Any]

_HEAD = """# Core operators

Written by `python -m app.engine.entry.core_operators --docs` from the rows of `app/engine/operators/tables`;
a test finds it out of date. `GET /v1/operators` and the page `/operators` show the same, and more.

A core operator is a specification: graphs are exchanged in these. After the pass `canonicalize` every node is
one, or an operator that is said in them; what is not is listed with its reason, in the notes of the pass and
as `outside_core` in `decisions.json`. A composite for which kernels exist stays one node: `Gemm` is planned
as a whole, and is `add`, `mul`, `matmul` and `transpose` for a system without it.

In formulas `y` and `z` are results, `a`, `b`, `c` operands in order, `sum[i]` runs over the index i.
A storage rule `dc>d:X` reads: operands default (d) and csr (c), result default, mode COMPUTE_EX (F: COMPUTE,
B: FALLBACK); r is row_sparse. Element types and defaults are those of the newest schema in ONNX: `floats`
are double, float, float16 and bfloat16, `ints` int8 to int64, `uints` uint8 to uint64, `small` all of less
than a byte and floats of a byte. Behind an implementation stands whether it has layouts or storage types of
its own, works in place, or makes views.

"""
# Element types that are told by one name.
_GROUPS = {
    "floats": ("double", "float", "float16", "bfloat16"),
    "ints": ("int8", "int16", "int32", "int64"),
    "uints": ("uint8", "uint16", "uint32", "uint64"),
    "complex": ("complex64", "complex128"),
}
_MOST_NAMES = 6  # of MXNet in a row; the API has all


def page(found: Json) -> str:
    """The page."""
    return _HEAD + "\n".join((*_levels(found), *_generated(found), *_onnx(found), *_mxnet(found))) + "\n"


def _levels(found: Json) -> Iterator[str]:
    for level in found["levels"]:
        rows = [row for row in found["operators"] if row["level"] == level["level"]]
        yield f"## Level {level['level']}: {level['title']}\n"
        for row in rows:
            yield from _operator(row)


def _generated(found: Json) -> Iterator[str]:
    """The rows that every elementwise operator, and every operator, has."""
    rows = {i["name"]: i for row in found["operators"] for i in row["implementations"]}
    yield "## Rows of many operators\n"
    for title, op in (("Of elementwise groups", "Elementwise"), ("Of all operators", "*")):
        yield f"* {title}: {', '.join(_implementation(i) for i in rows.values() if i['op'] == op)}"
    yield ""


def _operator(row: Json) -> Iterator[str]:
    yield f"### {row['name']}\n"
    yield f"`{row['formula']}`\n"
    if row["operands"]:
        operands = ", ".join(map(_operand, row["operands"]))
        yield f"* Operands: {operands}. Shape of the result: {row['shape']}."
        yield f"* Element types: {_types(row['operands'][0])}"
    for attribute in row["attributes"]:
        absent = "optional" if attribute["default"] is None else f"default {attribute['default']}"
        default = "required" if attribute["required"] else absent
        yield f"* `{attribute['name']}` ({attribute['type']}, {default}): {attribute['meaning']}"
    for told in row["layout"]:
        yield f"* Layout: {told}"
    for storage in row["storage"]:
        yield f"* Storage, as {_some(storage['operators'])}: {_codes(storage['rules'])}"
    told = [f"`{b['op']}`" + (f" = `{b['formula']}`" if b["formula"] else "") for b in row["onnx"]]
    if told:
        yield f"* ONNX: {', '.join(told)}"
    if row["mxnet"]:
        yield f"* MXNet: {_some(row['mxnet'])}"
    references = sorted({r for r in row["reference"].values() if r})
    if references:
        yield f"* Reference: {', '.join(references)}"
    own = [i for i in row["implementations"] if i["op"] not in ("*", "Elementwise")]
    shared = [i for i in row["implementations"] if i["op"] == "Elementwise"]
    if own:
        yield f"* Run by: {', '.join(map(_implementation, own))}"
    if shared:
        yield "* Generated: by the rows of elementwise groups, below"
    yield ""


def _operand(value: Json) -> str:
    return str(value["name"]) + ("..." if value["variadic"] else "?" if value["optional"] else "")


def _types(value: Json) -> str:
    left = set(value["dtypes"])
    told = [name for name, members in _GROUPS.items() if left >= set(members)]
    left -= {member for name in told for member in _GROUPS[name]}
    small = {name for name in left if name.startswith("float") and name != "float" and name != "float16"}
    small |= left & {"int2", "int4", "uint2", "uint4"}
    return ", ".join((*told, *sorted(left - small), *(("small",) if small else ())))


def _implementation(row: Json) -> str:
    marks = [name.replace("_", " ") for name in ("layouts", "storage", "in_place", "views") if row[name]]
    return f"`{row['name']}`" + (f" ({', '.join(marks)})" if marks else "")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return _codes(names[:_MOST_NAMES]) + more


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _onnx(found: Json) -> Iterator[str]:
    counts: dict[str, int] = {}
    for row in found["onnx"]:
        counts[row["how"]] = counts.get(row["how"], 0) + 1
    expressed = len(found["onnx"]) - counts["outside"]
    yield "## Operators of ONNX\n"
    yield (
        f"{expressed} of {len(found['onnx'])} are said in core operators: "
        f"{counts['direct']} are one (direct),\n"
        f"{counts['alias']} are one with other operands (alias), {counts['rule']} are several (rule),\n"
        f"{counts['body']} are what their function body in ONNX is (body).\n"
    )
    yield "| operator | how | core operators | rule |\n|---|---|---|---|"
    for row in found["onnx"]:
        rule = row["reason"] or (f"`{row['formula']}`" if row["formula"] else "")
        yield f"| {row['op']} | {row['how']} | {' '.join(row['core'])} | {rule} |"
    yield ""


def _mxnet(found: Json) -> Iterator[str]:
    yield "## Operators of MXNet\n"
    yield "What a symbol's operators are read as, found by translating each.\n"
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in found["mxnet"]:
        alike.setdefault(tuple(row["core"]), []).append(row["op"])
    yield "| core operators | operators |\n|---|---|"
    for core, names in sorted(alike.items()):
        yield f"| {' '.join(core)} | {_codes(names)} |"
