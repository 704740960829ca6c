"""Signatures of groups, and results that are computed once for a group, a tensor or a compilation."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core import graph, pipeline
from app.engine.core.cache import Cache
from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import Implementation, PlanningContext, load
from app.engine.core.signature import computation, signature
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

    @property
    def row(self) -> Implementation:
        return Implementation("row", "Mul", "numba-cpu", self, lambda _group, _context: ())


def test_a_row_is_asked_once_for_a_group() -> None:
    predicate, context, group = Asked(lambda _group: "no"), PlanningContext(host()), multiplication("a", 2)
    row = predicate.row
    assert [row.rejection_reason(group, context) for _ in range(2)] == ["no", "no"]
    assert predicate.times == 1


def test_every_group_has_the_reason_with_its_own_names_and_elements() -> None:
    row = Asked(lambda g: f"{g.inputs[0].name} times {graph.number(g.anchor.inputs[1])}").row
    groups, context = (multiplication("a", 2), multiplication("b", 3)), PlanningContext(host())
    assert [row.rejection_reason(g, context) for g in groups] == ["a.x times 2.0", "b.x times 3.0"]


def test_a_result_of_one_precision_is_not_that_of_another() -> None:
    predicate, group = Asked(lambda _group: "no"), multiplication("a", 2)
    row = predicate.row
    row.rejection_reason(group, PlanningContext(host()))
    row.rejection_reason(group, PlanningContext(host(), precision="bf16"))
    assert predicate.times == 2


def test_a_fact_about_a_constant_is_measured_once_for_its_tensor_and_kept_beside_it() -> None:
    weight, measured, cache = multiplication("a", 2).anchor.inputs[1], [], Cache()
    assert weight is not None
    other = ir.Value(name="other", shape=weight.shape, type=weight.type, const_value=weight.const_value)

    def largest(array: np.ndarray) -> float:
        measured.append(array)
        return float(array.max())

    assert [graph.fact(value, "largest", largest, cache) for value in (weight, weight, other)] == [2.0] * 3
    assert len(measured) == 1
    assert not weight.const_value.meta
    assert graph.fact(weight, "largest", largest, Cache()) == 2.0
    assert len(measured) == 2


def test_a_signature_tells_shapes_and_operators_apart_and_no_names_or_elements() -> None:
    one = signature(multiplication("a", 2))
    assert signature(multiplication("b", 3)) == one
    assert signature(multiplication("b", 3, columns=5)) != one


def test_nodes_compute_the_same_from_the_same_operands_alone() -> None:
    x = multiplication("a", 2).inputs[0]
    first, second, third = (
        ir.node("Softmax", [x], {"axis": axis}, name=n) for n, axis in zip("abc", (0, 0, 1))
    )
    other = ir.node("Softmax", [multiplication("b", 2).inputs[0]], {"axis": 0})
    body = ir.Graph([], [], nodes=[], name="body")
    assert computation(first) == computation(second)
    assert computation(first) not in (computation(third), computation(other))
    assert computation(ir.node("If", [x], {"then_branch": body, "else_branch": body})) is None


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
