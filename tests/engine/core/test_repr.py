"""Text of plans and programs for a log or an interpreter: one line, whatever the size of the graph."""

from dataclasses import replace

from app.engine.core import program
from app.engine.core.plan import Plan
from app.engine.passes.order import Order
from app.engine.passes.plan_memory import PlanMemory
from tests.engine.plans import compilation_of

HEAD = '<ir_version: 10, opset_import: ["": 21]> chain (float[4] x0) => (float[4] x200)'
TEXT = f"{HEAD} {{ {' '.join(f'x{i + 1} = Relu(x{i})' for i in range(200))} }}"


def test_plans_and_programs_are_one_bounded_line() -> None:
    compilation = compilation_of(TEXT)
    for node in compilation.graph:
        node.name = f"{node.name}{'long' * 100}"
    built = program.build(PlanMemory()(Order()(compilation)))
    things = (
        compilation,
        compilation.plan,
        compilation.plan.groups[0],
        built,
        built.steps[0],
        built.steps[0].choice,
        replace(compilation, plan=Plan()),
    )
    for thing in things:
        for text in (repr(thing), str(thing)):
            assert len(text) < 300
            assert "\n" not in text


def test_they_name_what_they_are() -> None:
    compilation = compilation_of(TEXT)
    assert repr(compilation.plan.groups[0]) == "Group(Elementwise 'Relu_0', 1 nodes)"
    assert repr(Plan()) == "Plan(empty)"
    assert repr(compilation) == (
        "Compilation('chain', 200 nodes, target 'test', "
        "Plan(fusion, storage, layout, implementation, order; 200 groups))"
    )
    built = program.build(PlanMemory()(Order()(compilation)))
    assert repr(built.steps[3]) == "Step(3, Group(Elementwise 'Relu_3', 1 nodes), Choice(fake, 0 calls))"
    assert repr(built).startswith(f"Program(200 steps, arena {built.arena_bytes} byte, Compilation('chain',")
