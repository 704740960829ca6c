"""Parts in place: which inputs of a Concat and outputs of a Split may lie in the whole, and why others not."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.buffers.buffer_assignment import build, view_classes
from app.engine.core.calls import View
from app.engine.core.plan import Compilation
from tests.engine.buffers.test_buffer_assignment import placement_of
from tests.engine.plans import Row, compilation_of, groups_of, values_of
from tests.harness import model_of

HEAD = '<ir_version: 10, opset_import: ["": 21]> agraph (float[16] x, float[16] x2) => '
PARTS = "a = Relu(x)  b = Exp(x)  c = Log(x)"  # 64 byte each


def model(body: str, constants: Mapping[str, np.ndarray] | None = None) -> ir.Model:
    return model_of(HEAD + body, dict(constants or {}))


def granted(
    made: ir.Model, offered: Mapping[str, Sequence[tuple[str, int]]]
) -> tuple[Compilation, dict[str, str]]:
    """A plan with all views that are legal, and the reasons of the others by `whole.part`.

    `offered` are (part, byte) by the whole, or by the output of a Split (whole, byte).
    """
    values = values_of(made)
    classes = view_classes(compilation_of(made))
    rows, reasons = {}, {}
    for group in groups_of(made):
        node = group.nodes[0]
        name = node.outputs[0].name or ""
        if node.op_type == "Concat":
            views = [View(node.outputs[0], values[v], at) for v, at in offered.get(name, ())]
        else:
            views = [View(node.inputs[0], values[v], at) for v, at in offered.get(name, ()) if node.inputs[0]]
        chosen, refused = classes.granted(views, node.outputs)
        classes.share(chosen, node.outputs)
        reasons |= {f"{v.source.name}.{v.view.name}": reason for v, reason in refused.items()}
        named = tuple((v.source.name or "", v.view.name or "", v.offset) for v in chosen)
        rows[name] = Row("view", views=named)
    return compilation_of(made, rows), reasons


def test_inputs_of_a_concat_are_written_into_its_output() -> None:
    made = model(f"(float[48] out) {{ {PARTS} y = Concat<axis = 0>(a, b, c) out = Relu(y) }}")
    compilation, reasons = granted(made, {"y": [("a", 0), ("b", 64), ("c", 128)]})
    assert reasons == {}
    placement = placement_of(compilation)
    [row] = placement.buffers
    assert row.nbytes == 192
    assert (row.first, row.last) == (0, 4)
    assert [(s.value, s.offset, s.nbytes) for s in row.slices] == [
        ("a", 0, 64), ("b", 64, 64), ("c", 128, 64), ("y", 0, 192)
    ]  # fmt: skip
    assert "'b' lies in 'y' at byte 64 (view)" in row.reason


def test_a_concat_that_is_an_output_gives_its_memory_to_its_inputs() -> None:
    made = model(f"(float[48] y) {{ {PARTS} y = Concat<axis = 0>(a, b, c) }}")
    compilation, _ = granted(made, {"y": [("a", 0), ("b", 64), ("c", 128)]})
    placement = placement_of(compilation)
    values = values_of(compilation.model)
    assert placement.values[values["c"]].space == "output"
    assert placement.values[values["c"]].offset == 128
    assert placement.solution.peak == 0


@pytest.mark.parametrize("first", ["y", "z"])
def test_growing_joins_are_one_buffer_as_large_as_the_largest(first: str) -> None:
    parts = {"y": [("a", 0), ("b", 64)], "z": [("a", 0), ("b", 64), ("c", 128)]}
    lines = {n: f"{n} = Concat<axis = 0>({', '.join(v for v, _ in parts[n])})" for n in parts}
    last = "z" if first == "y" else "y"
    made = model(
        f"(float[32] p, float[48] q) {{ {PARTS} {lines[first]} {lines[last]} p = Relu(y) q = Relu(z) }}"
    )
    compilation, reasons = granted(made, parts)
    assert reasons == {}
    [row] = placement_of(compilation).buffers
    assert row.nbytes == 192
    assert set(row.values) == {"a", "b", "c", "y", "z"}


# Parts that stay where they are: body, weights, what is offered, and the reason of one rejection.
REFUSED = {
    "an input that is used twice": (
        f"(float[48] out) {{ {PARTS} y = Concat<axis = 0>(a, b, a) out = Relu(y) }}",
        {"y": [("a", 0), ("b", 64), ("a", 128)]},
        ("y.a", "'a' shares its memory already, +128 byte from there"),
    ),
    "parts in another order": (
        f"(float[32] p, float[32] q) {{ {PARTS} y = Concat<axis = 0>(a, b) z = Concat<axis = 0>(b, a) "
        "p = Relu(y) q = Relu(z) }",
        {"y": [("a", 0), ("b", 64)], "z": [("b", 0), ("a", 64)]},
        ("z.a", "'a' shares its memory already"),
    ),
    "two writers of the same bytes": (
        f"(float[32] p, float[32] q) {{ {PARTS} y = Concat<axis = 0>(a, b) z = Concat<axis = 0>(a, c) "
        "p = Relu(y) q = Relu(z) }",
        {"y": [("a", 0), ("b", 64)], "z": [("a", 0), ("c", 64)]},
        ("z.c", "would be written to the same bytes"),
    ),
    "a part whose buffer reaches into what is copied": (
        f"(float[32] p, float[32] q) {{ {PARTS} y = Concat<axis = 0>(a, b) z = Concat<axis = 0>(a, x2) "
        "p = Relu(y) q = Relu(z) }",
        {"y": [("a", 0), ("b", 64)], "z": [("a", 0), ("x2", 64)]},
        ("z.a", "'z' and 'b' would be written to the same bytes"),
    ),
    "a graph input": (
        f"(float[32] out) {{ {PARTS} y = Concat<axis = 0>(a, x2) out = Relu(y) }}",
        {"y": [("a", 0), ("x2", 64)]},
        ("y.x2", "128 byte do not fit into the 64 byte of input 'x2'"),
    ),
    "a graph output": (
        f"(float[16] a, float[32] out) {{ {PARTS} y = Concat<axis = 0>(a, b) out = Relu(y) }}",
        {"y": [("a", 0), ("b", 64)]},
        ("y.a", "128 byte do not fit into the 64 byte of output 'a'"),
    ),
    "a part of an output that reaches beyond it": (
        f"(float[32] y, float[48] out) {{ {PARTS} y = Concat<axis = 0>(a, b) z = Concat<axis = 0>(a, b, c) "
        "out = Relu(z) }",
        {"y": [("a", 0), ("b", 64)], "z": [("a", 0), ("b", 64), ("c", 128)]},
        ("z.a", "192 byte do not fit into the 128 byte of output 'y'"),
    ),
    "an offset within a cache line": (
        "(float[12] out) { a = Relu(x) p, q = Split<axis = 0>(a, cut) out = Relu(q) }",
        {"p": [("p", 0), ("q", 16)]},
        ("a.q", "byte 16 of 'a' does not begin a cache line of 64 byte"),
    ),
    "a part of a split that is an output": (
        "(float[32] y, float[16] p, float[16] out) { a = Relu(x) b = Exp(x2) y = Concat<axis = 0>(a, b) "
        "p, q = Split<axis = 0>(y, half) out = Relu(q) }",
        {"p": [("p", 0), ("q", 64)]},
        ("y.p", "which have memory of their own"),
    ),
    "a part that is not there": (
        "(float[16] out) { a = Relu(x) out = Relu(a) }",
        {"out": [("out", 64)]},
        ("a.out", "bytes 64..128 of 'a' are not there; it has 64 byte"),
    ),
}  # fmt: skip
CONSTANTS = {"cut": np.array([4, 12]), "half": np.array([16, 16])}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_part_that_cannot_lie_in_the_whole_is_told_why(
    case: tuple[str, Mapping[str, Sequence[tuple[str, int]]], tuple[str, str]],
) -> None:
    body, offered, (part, reason) = case
    weights = {k: v for k, v in CONSTANTS.items() if f", {k})" in body}
    head = HEAD.replace(") =>", "".join(f", int64[2] {k}" for k in weights) + ") =>")
    compilation, reasons = granted(model_of(head + body, weights), offered)
    assert reason in reasons[part]
    placement_of(compilation)


def test_a_refused_part_is_told_when_the_plan_takes_it_all_the_same() -> None:
    made = model(f"(float[32] out) {{ {PARTS} y = Concat<axis = 0>(a, x2) out = Relu(y) }}")
    with pytest.raises(ValueError, match="view takes 'x2' for a view of 'y', which is not legal"):
        build(compilation_of(made, {"y": Row("view", views=(("y", "x2", 64),))}))


def shared_with(name: str, rows: Mapping[str, Row], body: str, *, whole: bool = True) -> tuple[str, ...]:
    graph = build(compilation_of(model(body), rows), whole=whole)
    found = [[v.name or "" for v in s.values] for s in graph.storages if s.space == "arena"]
    return next((tuple(names) for names in found if name in names), ())


def test_a_part_is_not_overwritten_while_another_is_read_later() -> None:
    body = f"(float[32] out, float[16] p) {{ {PARTS} y = Concat<axis = 0>(a, b) d = Exp(a) p = Log(d) out = Relu(y) }}"
    rows = {"y": Row(views=(("y", "a", 0), ("y", "b", 64))), "d": Row(inplace=(("a", "d"),))}
    assert shared_with("d", rows, body) == ("d",)
    assert shared_with("d", rows, body, whole=False) == ("d",)


def test_what_dies_is_not_overwritten_by_a_part_whose_neighbor_is_written_before() -> None:
    body = f"(float[32] out) {{ {PARTS} d = Exp(c) y = Concat<axis = 0>(a, d) out = Relu(y) }}"
    rows = {"y": Row(views=(("y", "a", 0), ("y", "d", 64))), "d": Row(inplace=(("c", "d"),))}
    assert shared_with("c", rows, body) == ("c",)
    assert set(shared_with("c", rows, body, whole=False)) == {"a", "c", "d", "y"}


def test_a_join_that_dies_as_a_whole_is_overwritten() -> None:
    body = f"(float[32] out) {{ {PARTS} y = Concat<axis = 0>(a, b) d = Exp(y) out = Relu(d) }}"
    rows = {"y": Row(views=(("y", "a", 0), ("y", "b", 64))), "d": Row(inplace=(("y", "d"),))}
    assert set(shared_with("d", rows, body)) == {"a", "b", "y", "d"}


def test_a_step_does_not_overwrite_a_part_while_it_reads_the_next() -> None:
    body = (
        "(float[16] out) { a = Relu(x) b = Exp(x2) y = Concat<axis = 0>(a, b) d = Add(a, b) out = Relu(d) }"
    )
    rows = {"y": Row(views=(("y", "a", 0), ("y", "b", 64))), "d": Row(inplace=(("a", "d"),))}
    assert shared_with("d", rows, body) == ("d",)
    assert set(shared_with("d", rows, body, whole=False)) == {"a", "b", "d", "y"}
