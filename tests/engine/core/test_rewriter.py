"""The driver: each rule where its operator occurs, names and outputs of the graph kept."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.core import graph
from app.engine.core.rewriter import ANY, Replacement, RewriteRule, constant, rewrite
from tests.engine.graphs import random_graph
from tests.harness import model_of

HEAD = '<ir_version: 10, opset_import: ["": 21]>'


def text(model: ir.Model) -> list[tuple[str, list[str | None], list[str | None]]]:
    return [(n.op_type, [v and v.name for v in n.inputs], [v.name for v in n.outputs]) for n in model.graph]


def neg_to_mul(node: ir.Node) -> Replacement:
    new = ir.Node("", "Mul", [node.inputs[0], constant(np.array(-1, np.float32), "minus_one")])
    return Replacement(new.outputs, [new])


def drop(node: ir.Node) -> Replacement:
    return Replacement([node.inputs[0]])


def test_a_new_node_takes_name_type_and_place_of_the_old() -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ [n] a = Neg(x) y = Relu(a) }}")
    assert rewrite(model.graph, [RewriteRule(neg_to_mul, ("Neg",))]) == {"neg_to_mul": 1}
    assert text(model) == [("Mul", ["x", "minus_one"], ["a"]), ("Relu", ["a"], ["y"])]
    (mul, _) = model.graph
    assert mul.name == "n"
    assert graph.shape(mul.outputs[0]) == (2,)
    assert graph.is_constant(model.graph.initializers["minus_one"])


def test_constants_of_the_same_name_get_names_of_their_own() -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Neg(x) y = Neg(a) }}")
    rewrite(model.graph, [RewriteRule(neg_to_mul, ("Neg",))])
    assert list(model.graph.initializers) == ["minus_one", "minus_one.1"]


def test_an_output_keeps_its_name_when_its_node_goes() -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu(x) y = Neg(a) }}")
    rewrite(model.graph, [RewriteRule(drop, ("Neg",))])
    assert text(model) == [("Relu", ["x"], ["y"])]


def test_an_input_that_becomes_an_output_is_copied() -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}")
    rewrite(model.graph, [RewriteRule(drop, ("Neg",))])
    assert text(model) == [("Identity", ["x"], ["y"])]


def test_one_value_that_becomes_two_outputs_is_copied_once() -> None:
    model = model_of(
        f"{HEAD} g (float[2] x) => (float[2] y, float[2] z) {{ a = Relu(x) y = Neg(a) z = Neg(a) }}"
    )
    rewrite(model.graph, [RewriteRule(drop, ("Neg",))])
    assert text(model) == [("Relu", ["x"], ["y"]), ("Identity", ["y"], ["z"])]


def test_what_only_a_removed_node_read_goes_too() -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Relu(x) b = Exp(a) y = Sub(x, b) }}")
    assert rewrite(model.graph, [RewriteRule(drop, ("Sub",))])
    assert text(model) == [("Identity", ["x"], ["y"])]


def test_nodes_without_readers_go_without_any_rule() -> None:
    model = model_of(f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Exp(x) b = Neg(a) y = Relu(x) }}")
    assert not rewrite(model.graph, [])
    assert text(model) == [("Relu", ["x"], ["y"])]


BRANCHES = (
    HEAD
    + """ g (bool c, float[2] x) => (float[2] y) {
        k = Exp(x)
        y = If (c) <then_branch = t () => (float[2] a) { a = Neg(k) },
                    else_branch = e () => (float[2] b) { b = Relu(x) }>
    }"""
)


def test_a_value_read_only_by_a_body_is_alive() -> None:
    model = model_of(BRANCHES)
    rewrite(model.graph, [])
    assert [n.op_type for n in model.graph] == ["Exp", "If"]


def test_a_body_whose_output_would_be_an_outer_value_keeps_a_copy() -> None:
    model = model_of(BRANCHES)
    rewrite(model.graph, [RewriteRule(drop, ("Neg",))])
    (_, if_node) = model.graph
    then, _ = graph.bodies(if_node)
    assert [(n.op_type, n.inputs[0].name) for n in then] == [("Identity", "k")]
    assert then.outputs[0].producer() is next(iter(then))


def test_what_only_a_removed_body_read_goes_too() -> None:
    model = model_of(BRANCHES)

    def replace_if(node: ir.Node) -> Replacement:
        new = ir.Node("", "Tanh", [model.graph.inputs[1]])
        return Replacement(new.outputs, [new])

    rewrite(model.graph, [RewriteRule(replace_if, ("If",))])
    assert text(model) == [("Tanh", ["x"], ["y"])]
    assert not model.graph.inputs[0].uses()


def test_a_row_may_leave_nested_graphs_alone() -> None:
    model = model_of(BRANCHES)
    rewrite(model.graph, [RewriteRule(neg_to_mul, ("Neg",), nested=False)])
    assert [n.op_type for b in graph.bodies(list(model.graph)[1]) for n in b] == ["Neg", "Relu"]


def test_rules_apply_until_none_does() -> None:
    model = model_of(
        f"{HEAD} g (float[2] x) => (float[2] y) {{ a = Neg(x) b = Neg(a) c = Neg(b) y = Relu(c) }}"
    )

    def cancel(node: ir.Node) -> Replacement | None:
        inner = node.inputs[0].producer() if node.inputs[0] else None
        return Replacement([inner.inputs[0]]) if inner is not None and inner.op_type == "Neg" else None

    assert rewrite(model.graph, [RewriteRule(cancel, ("Neg",))]) == {"cancel": 1}
    assert text(model) == [("Neg", ["x"], ["c"]), ("Relu", ["c"], ["y"])]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=1000), min_size=90, max_size=90))
def test_dropping_any_unary_nodes_keeps_the_graph_whole(choices: Sequence[int]) -> None:
    model = random_graph(list(choices), 25)
    names = [v.name for v in model.graph.outputs]
    rewrite(model.graph, [RewriteRule(drop, ("Relu", "Heavy")), RewriteRule(lambda _node: None, (ANY,))])
    assert [v.name for v in model.graph.outputs] == names
    seen = set(model.graph.inputs)
    for node in model.graph:  # topological order: every operand was made before
        assert seen.issuperset(node.inputs)
        seen.update(node.outputs)
    assert seen.issuperset(model.graph.outputs)
    remaining = {n.op_type for n in model.graph}
    assert not remaining & {"Relu", "Heavy"}


def test_the_file_of_a_rewritten_graph_can_be_read_again(tmp_path: Path) -> None:
    model = model_of(BRANCHES)
    rewrite(model.graph, [RewriteRule(neg_to_mul, ("Neg",))])
    ir.save(model, tmp_path / "m.onnx")
    assert [n.op_type for n in ir.load(tmp_path / "m.onnx").graph] == ["Exp", "If"]
