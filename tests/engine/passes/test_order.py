"""The order pass: graph order first, another only if the plan that follows is smaller."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.buffers.buffer_assignment import build
from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.memory.beam_order import Step
from app.engine.passes import order
from app.engine.passes.order import Order
from app.engine.passes.plan_memory import PlanMemory
from tests.engine.graphs import random_graph
from tests.engine.plans import Row, compilation_of, with_buffers

HEAD = '<ir_version: 10, opset_import: ["": 21]> agraph (float[256] x) => (float[1] out) '
# Two branches that widen and shrink; interleaved, both are wide at once.
INTERLEAVED = """{
    a = Concat <axis = 0> (x, x)  b = Concat <axis = 0> (x, x)
    c = ReduceSum <keepdims = 1> (a)  d = ReduceSum <keepdims = 1> (b)
    e = Add(c, d)  out = Relu(e)
}"""


def peak(compilation: Compilation) -> int:
    placement = PlanMemory()(with_buffers(compilation)).plan.placement
    assert placement is not None
    return placement.solution.peak


def names(compilation: Compilation) -> list[str]:
    assert compilation.plan.order is not None
    return [g.nodes[0].outputs[0].name or "" for g in compilation.plan.order]


def is_topological(compilation: Compilation) -> bool:
    assert compilation.plan.order is not None
    written = {*compilation.graph.inputs, *compilation.graph.initializers.values()}
    for group in compilation.plan.order:
        if not written.issuperset(group.inputs):
            return False
        written.update(v for n in group.nodes for v in n.outputs)
    return len(compilation.plan.order) == len(compilation.plan.groups)


def test_branches_are_finished_one_after_the_other_when_that_needs_less() -> None:
    compilation = compilation_of(HEAD + INTERLEAVED)
    ordered = Order()(compilation)
    assert names(ordered) == ["a", "c", "b", "d", "e", "out"]
    assert peak(compilation) == 2 * 2048 + 64
    assert peak(ordered) == 2048 + 2 * 64
    assert ordered.notes == ("order: peak 4160 byte in graph order, 2176 byte in the order found",)


def test_the_same_steps_are_searched_once_for_all_plans_of_a_compilation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    usual = order._searched

    def search(steps: Sequence[Step], *given: Any, **named: Any) -> tuple[int, order.Orders]:
        searched.append(len(steps))
        return usual(steps, *given, **named)

    monkeypatch.setattr(order, "_searched", search)
    compilation = compilation_of(HEAD + INTERLEAVED)
    first = Order()(compilation)
    assert names(Order()(compilation)) == names(first) == ["a", "c", "b", "d", "e", "out"]
    assert searched == [6]
    limited = replace(compilation, concessions=replace(compilation.concessions, peak_limit=2**20))
    assert names(Order()(limited)) == names(first)
    assert searched == [6, 6]  # what is asked is part of what is remembered


def test_graph_order_stays_when_nothing_is_gained() -> None:
    text = """{ a = Relu(x)  b = Exp(x)  c = Add(a, b)  d = ReduceSum <keepdims = 1> (c)  out = Relu(d) }"""
    ordered = Order()(compilation_of(HEAD + text))
    assert names(ordered) == ["a", "b", "c", "d", "out"]
    assert ordered.notes == ()


def test_a_branch_that_an_inplace_sum_waits_for_comes_first() -> None:
    # The sum overwrites a only if the other reader of a has run.
    text = """{ a = Relu(x)  b = Add(a, x)  c = ReduceSum <keepdims = 1> (a)
                d = ReduceSum <keepdims = 1> (b)  out = Add(c, d) }"""
    ordered = Order()(compilation_of(HEAD + text, {"b": Row(inplace=(("a", "b"),))}))
    assert names(ordered).index("c") < names(ordered).index("b")
    assert peak(ordered) == 1024 + 2 * 64


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=60, max_size=60), st.integers(1, 20))
def test_any_order_is_topological_and_never_needs_more(choices: list[int], nodes: int) -> None:
    given_order = compilation_of(random_graph(choices, nodes))
    ordered = Order()(given_order)
    assert is_topological(ordered)
    assert peak(ordered) <= peak(given_order)
    assert {v for s in build(ordered).storages for v in s.values} == set(graph.values(given_order.graph))
