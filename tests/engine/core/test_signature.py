"""What rows say of a group holds for all that are alike, and for no others."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core import graph, pipeline
from app.engine.core.group import Group, of_group
from app.engine.core.plan import Compilation
from app.engine.core.registry import Implementation, PlanningContext, load
from app.engine.core.signature import kind
from app.engine.passes.partition import single
from app.engine.planning import session
from app.engine.types.options import Options
from app.engine.types.target import host
from benchmarks.layouts import NETWORKS

REGISTRY = load()


def multiplication(name: str, factor: float, columns: int = 4) -> Group:
    """x * factor as a group, with values of this name."""
    x = ir.Value(name=f"{name}.x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, columns]))
    tensor = ir.tensor(np.array([factor], np.float32))
    weight = ir.Value(
        name=f"{name}.w", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]), const_value=tensor
    )
    node = ir.node("Mul", [x, weight], name=name)
    output = node.outputs[0]
    output.name, output.type, output.shape = f"{name}.y", x.type, x.shape
    return single(node, REGISTRY)


class Asked:
    """A predicate that counts."""

    def __init__(self, answer: Callable[[Group], str | None]) -> None:
        self.answer = answer
        self.times = 0

    def __call__(self, group: Group, _context: PlanningContext) -> str | None:
        self.times += 1
        return self.answer(group)


def asked(answer: Callable[[Group], str | None], *groups: Group) -> tuple[Asked, list[str | None]]:
    """A predicate after a row with it was asked twice of each group, and what it said."""
    predicate, context = Asked(answer), PlanningContext(host())
    row = Implementation("row", "Mul", "numba-cpu", predicate, lambda _group, _context: ())
    return predicate, [row.rejection_reason(g, context) for g in (*groups, *groups)][: len(groups)]


def test_a_row_is_asked_once_for_groups_that_are_alike() -> None:
    predicate, _ = asked(lambda group: f"op {group.op}", multiplication("a", 2), multiplication("b", 3))
    assert predicate.times == 1


def test_groups_of_different_shapes_are_not_alike() -> None:
    predicate, said = asked(
        lambda group: str(graph.shape(group.outputs[0])), multiplication("a", 2), multiplication("b", 2, 5)
    )
    assert predicate.times == 2
    assert said == ["(2, 4)", "(2, 5)"]


def test_what_depends_on_elements_is_asked_of_every_group() -> None:
    _, said = asked(
        lambda group: str(graph.number(group.anchor.inputs[1])),
        multiplication("a", 2),
        multiplication("b", 3),
    )
    assert said == ["2.0", "3.0"]


def test_what_rests_on_a_fact_about_elements_is_asked_of_every_group() -> None:
    @of_group
    def factor(group: Group) -> float | None:
        return graph.number(group.anchor.inputs[1])

    first, second = multiplication("a", 2), multiplication("b", 3)
    factor(first)  # found before: the predicate itself looks at nothing
    _, said = asked(lambda group: str(factor(group)), first, second)
    assert said == ["2.0", "3.0"]


def test_a_reason_that_names_a_value_is_of_its_own_group() -> None:
    _, said = asked(
        lambda group: f"{group.inputs[0].name!r} is wrong", multiplication("a", 2), multiplication("b", 3)
    )
    assert said == ["'a.x' is wrong", "'b.x' is wrong"]


def test_a_group_with_a_body_has_no_kind() -> None:
    body = ir.Graph([], [], nodes=[], name="body")
    node = ir.node("If", [multiplication("a", 1).inputs[0]], {"then_branch": body, "else_branch": body})
    node.outputs[0].name = "y"
    assert kind(Group((node,), node, (), (node.outputs[0],), "If")) is None


@pytest.mark.parametrize("network", NETWORKS)
def test_rows_say_of_every_group_what_they_say_of_it_alone(network: Callable[[int], ir.Model]) -> None:
    compilation = Compilation(network(60), host(), REGISTRY, Options(autotune=False))
    planned = pipeline.run(compilation, [*session.FRONTEND_PASSES, *session.grouping(compilation.options)])
    shared = PlanningContext.of(planned)
    for group in planned.plan.groups:
        for row in REGISTRY.candidates(group.op, planned.target.backends):
            apart = PlanningContext(shared.target, shared.threads, shared.fast_algorithms, shared.tolerance)
            fresh = Group(group.nodes, group.anchor, group.inputs, group.outputs, group.op)
            assert row.rejection_reason(group, shared) == row.rejection_reason(fresh, apart)
            if row.rejection_reason(group, shared) is None:
                assert row.predicted(group, shared) == row.predicted(fresh, apart)


def test_facts_of_one_precision_are_not_those_of_another() -> None:
    predicate = Asked(lambda _group: "no")
    row = Implementation("row", "Mul", "numba-cpu", predicate, lambda _group, _context: ())
    context = PlanningContext(host())
    row.rejection_reason(multiplication("a", 2), context)
    row.rejection_reason(
        multiplication("b", 2), PlanningContext(host(), precision="bf16", facts=context.facts)
    )
    assert predicate.times == 2
