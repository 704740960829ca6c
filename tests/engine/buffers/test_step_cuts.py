"""Bounds and orders by minimum cuts: against all orders of small random problems, and plans of training graphs."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.buffers.cut_order import improved, live_bytes, peak_of
from app.engine.buffers.graph_order import dependencies
from app.engine.buffers.step_cuts import StepCuts, least_live
from app.engine.buffers.steps import memory_steps
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.training import write
from app.engine.memory.beam_order import Step
from app.engine.model.load import load
from app.engine.passes import order as order_pass
from app.engine.planning import session
from app.engine.types.errors import CapacityError
from app.engine.types.options import Bindings, MemoryConcessions, Options
from app.engine.types.target import host
from tests.engine.gradient.test_networks import saved

OPTIONS = Options(autotune=False, choose="first")


def orders(steps: Sequence[Step]) -> list[tuple[int, ...]]:
    """All topological orders."""
    found: list[tuple[int, ...]] = [()]
    for _ in steps:
        found = [
            (*done, i)
            for done in found
            for i, step in enumerate(steps)
            if i not in done and set(step.needs) <= set(done)
        ]
    return found


def alive(order: Sequence[int], place: int, steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """Bytes at a place of an order, by the definition: what was touched by then and will be, less what is shared."""
    before = {s for i in order[: place + 1] for s in steps[i].touches}
    after = {s for i in order[place:] for s in steps[i].touches}
    step = steps[order[place]]
    old = {s for i in order[:place] for s in steps[i].touches}
    later = {s for i in order[place + 1 :] for s in steps[i].touches}
    saved, taken = 0, set()
    for read, written in step.inplace:
        fits = sizes[read] >= sizes[written] and not {read, written} & taken
        if fits and read not in later and written not in old:
            saved += sizes[written]
            taken |= {read, written}
    return sum(sizes[s] for s in before & after) - saved + step.scratch


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Step], list[int]]:
    """Steps that write a storage each, some of them one that another has written a part of."""
    count = draw(st.integers(1, 7))
    sizes = draw(st.lists(st.sampled_from([0, 64, 128, 192, 320]), min_size=count + 1, max_size=count + 1))
    steps = []
    for i in range(count):
        needs = tuple(sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else ()
        written = draw(st.sampled_from([i, count]))
        read = tuple(steps[n].touches[-1] for n in needs)
        inplace = tuple((r, written) for r in read if r != written and draw(st.booleans()))
        scratch = draw(st.sampled_from([0, 64]))
        steps.append(Step(needs, tuple(dict.fromkeys((*read, written))), inplace, scratch, f"s{i}"))
    return steps, sizes


@settings(max_examples=150, deadline=None)
@given(problems())
def test_a_cut_is_the_least_of_all_orders_and_the_search_keeps_them(
    problem: tuple[list[Step], list[int]],
) -> None:
    steps, sizes = problem
    every = orders(steps)
    cuts = StepCuts(steps, sizes)
    for order in every[:3]:
        expected = [alive(order, place, steps, sizes) for place in range(len(steps))]
        assert live_bytes(order, steps, sizes) == expected
    for i in range(len(steps)):
        found = cuts.cut(i)
        # In-place results are counted wherever some order has them, so the cut may be below all orders.
        apart = [Step(s.needs, s.touches, (), s.scratch, s.name) for s in steps]
        least = min(alive(order, order.index(i), steps, sizes) for order in every)
        assert found.nbytes <= least
        assert StepCuts(apart, sizes).cut(i).nbytes == min(
            alive(order, order.index(i), apart, sizes) for order in every
        )
        assert not found.done >> i & 1
    peak = min(peak_of(order, steps, sizes) for order in every)
    bound = cuts.bound(1 << 60)
    assert least_live(steps, sizes) <= bound <= peak
    for start in (every[0], every[-1]):
        better = improved(cuts, start, bound)
        assert better in every
        assert peak <= peak_of(better, steps, sizes) <= peak_of(start, steps, sizes)


def test_steps_fixed_before_and_after_stay_there() -> None:
    # Two chains that meet: 0 -> 2, 1 -> 3, both -> 4.
    steps = [Step((), (0,)), Step((), (1,)), Step((0,), (0, 2)), Step((1,), (1, 3)), Step((2, 3), (2, 3))]
    sizes = [640, 640, 64, 64]
    cuts = StepCuts(steps, sizes)
    assert cuts.cut(2).done == 0b00001
    assert cuts.cut(2, first=0b01010).done & 0b01010 == 0b01010
    assert cuts.cut(3, last=0b00100).done & 0b00100 == 0
    assert itertools.islice(orders(steps), 1)


def planned(path: Path, concessions: MemoryConcessions | None = None) -> Program:
    compilation = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    return session.builder(compilation, OPTIONS)(concessions or MemoryConcessions())


@pytest.mark.parametrize("name", ["resnet", "mobilenet", "transformer", "unet"])
def test_the_steps_need_no_more_than_the_plan_and_no_order_takes_less_than_the_bound(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = saved(name, tmp_path)
    made = tmp_path / "training.onnx"
    write(path, "loss", None, Bindings(), made)
    exact = planned(made)
    monkeypatch.setattr(order_pass, "STATES", 4)  # as if there were too many
    cut = planned(made)
    for program in (exact, cut):
        compilation = program.compilation
        steps, sizes, least = memory_steps(compilation, dependencies(compilation))
        assert all(n in (0, size) for n, size in zip(least, sizes))
        estimate = live_bytes(range(len(steps)), steps, least)
        held = np.zeros(len(steps), np.int64)
        for buffer in program.placement.buffers:
            held[buffer.first : buffer.last + 1] += -(-buffer.nbytes // 64) * 64
        assert all(e <= h for e, h in zip(estimate, held))
        bound = compilation.plan.require("buffers").bound
        assert bound is not None
        assert bound <= program.arena_bytes
    proved = exact.compilation.plan.require("buffers").bound
    weaker = cut.compilation.plan.require("buffers").bound
    assert proved is not None
    assert weaker is not None
    assert weaker <= proved <= exact.arena_bytes <= cut.arena_bytes
    assert cut.arena_bytes <= 1.1 * proved


def test_a_sum_of_gradients_lies_in_the_memory_of_its_output(tmp_path: Path) -> None:
    """Products that are added one after the other take no bytes of the arena."""
    turns = " ".join(f"h{i + 1} = MatMul(h{i}, w) t{i} = Tanh(h{i + 1})" for i in range(5))
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[4,64] h0, float[64,64] w) => (float[4,64] h5) {{ {turns} }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    made = tmp_path / "training.onnx"
    write(tmp_path / "m.onnx", "h5", ["w"], Bindings(), made)
    program = planned(made)
    compilation = program.compilation
    steps, sizes, least = memory_steps(compilation, dependencies(compilation))
    products = [g for g in compilation.plan.groups if g.outputs[0].shape == [64, 64] and g.op != "Transpose"]
    assert len(products) >= 5
    assert sizes.count(4 * 64 * 64) <= 1, "but for the transposed weight, all lie in the output"
    estimate = live_bytes(range(len(steps)), steps, sizes)
    assert max(estimate) == program.arena_bytes
    assert compilation.plan.require("buffers").bound == peak_of(range(len(steps)), steps, least)


def test_a_limit_below_every_order_is_refused_with_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = saved("unet", tmp_path)
    made = tmp_path / "training.onnx"
    write(path, "loss", None, Bindings(), made)
    monkeypatch.setattr(order_pass, "STATES", 4)
    bound = planned(made).compilation.plan.require("buffers").bound
    assert bound is not None
    with pytest.raises(CapacityError, match=r"every order takes \d+ byte or more"):
        planned(made, MemoryConcessions(peak_limit=bound - 64))
