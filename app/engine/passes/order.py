"""Decide the order of execution: as in the graph, unless another needs less memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

from app.engine.buffers.cut_order import improved, peak_of
from app.engine.buffers.graph_order import dependencies, stable_order
from app.engine.buffers.placement import place
from app.engine.buffers.step_cuts import LARGEST, StepCuts, least_live
from app.engine.buffers.steps import memory_steps
from app.engine.core.group import Group
from app.engine.core.placement import OrderedBuffers
from app.engine.core.plan import COLUMNS, Compilation
from app.engine.memory.beam_order import Step, schedule
from app.engine.types.errors import CapacityError

STATES = 1 << 16  # of a segment that the exact search may reach
STATES_AT_LENGTH = 1 << 22


@dataclass(frozen=True, slots=True)
class Order:
    """Write the order: a stable topological one, or one found by search whose planned peak is lower."""

    name: ClassVar[str] = "order"
    reads: ClassVar[tuple[str, ...]] = ("fusion", "storage", "layout", "implementation")
    writes: ClassVar[tuple[str, ...]] = ("order", "buffers")
    keeps: ClassVar[tuple[str, ...]] = tuple(c for c in COLUMNS if c not in ("order", "buffers", "placement"))

    def __call__(self, compilation: Compilation) -> Compilation:
        """The compilation with an order, its buffers, and the bytes that no other order stays below.

        Raises:
            ValueError: the groups depend on each other in a cycle.
            CapacityError: every order takes more than `concessions.peak_limit`.
        """
        needs = dependencies(compilation)
        stable = stable_order(needs)
        given = compilation.with_plan(order=stable)
        steps, sizes, least = memory_steps(given, needs)
        floor = least_live(steps, least)
        given = ordered(compilation, stable, floor)
        peak = _peak(given)
        if peak <= floor:
            return _bounded(given, peak)
        limit = compilation.concessions.peak_limit
        states = STATES_AT_LENGTH if compilation.concessions.order else STATES
        # Plans of the same graph that differ in other things have the same steps.
        key = (Order.name, tuple(steps), tuple(sizes), tuple(least), peak, states, limit)
        bound, orders = compilation.cache.result(
            key, lambda: _searched(steps, sizes, least, peak, states=states, limit=limit)
        )
        if limit is not None and bound > limit:
            raise CapacityError(f"every order takes {bound} byte or more", needed=bound, available=limit)
        best = given
        # The search knows no offsets and estimates what is shared in place; the plan decides.
        for needed, order in orders:
            if needed < _peak(best):
                found = ordered(compilation, tuple(stable[i] for i in order), bound)
                best = min(best, found, key=_peak)
        if best is given:
            return _bounded(given, bound)
        note = f"order: peak {peak} byte in graph order, {_peak(best)} byte in the order found"
        return _bounded(replace(best, notes=(*best.notes, note)), bound)


Orders: TypeAlias = list[tuple[int, tuple[int, ...]]]


def _searched(
    steps: Sequence[Step],
    sizes: Sequence[int],
    least: Sequence[int],
    peak: int,
    *,
    states: int,
    limit: int | None,
) -> tuple[int, Orders]:
    """Bytes that no order stays below, and orders with their peaks, the lowest first.

    `sizes` are the bytes of storages, `least` those that count for the bound; `peak` bytes is what the order
    of the graph takes. Where every order takes more than `limit`, there are none.
    """
    from app.engine.memory.optimal_order import NO_LIMIT, least_order  # imports numba

    most = NO_LIMIT if limit is None else limit
    proved = least_order(steps, least, states, most)
    exact = proved if sizes == least else least_order(steps, sizes, states)
    if proved and exact:
        return proved.lower_bound, [(exact.peak, exact.order)] if proved.order else []
    if len(steps) > LARGEST:
        return least_live(steps, least), [(0, order) for order in _by_beam(steps, sizes, peak)]
    bound = proved.lower_bound if proved else StepCuts(steps, least).bound(peak)
    if bound > most:
        return bound, []
    cuts = StepCuts(steps, sizes)
    found: Orders = []
    for start in _starts(steps, sizes, peak):
        for order in dict.fromkeys((improved(cuts, start, bound), start)):
            found.append((peak_of(order, steps, sizes), order))
        if min(found)[0] <= bound:
            break
    return bound, sorted(found, key=lambda f: f[0])


def _starts(steps: Sequence[Step], sizes: Sequence[int], peak: int) -> Iterator[tuple[int, ...]]:
    """Orders to begin with: that of the graph, then those of beams."""
    yield tuple(range(len(steps)))
    yield from _by_beam(steps, sizes, peak)


def _by_beam(steps: Sequence[Step], sizes: Sequence[int], peak: int) -> Iterator[tuple[int, ...]]:
    """Orders that a beam search takes for smaller than `peak`: with and without results in place.

    A beam that does not count on sharing goes other ways.
    """
    apart = [replace(step, inplace=()) for step in steps]
    for given in dict.fromkeys((tuple(steps), tuple(apart))):
        found = schedule(given, sizes, peak)
        if found is not None:
            yield found


def ordered(compilation: Compilation, order: tuple[Group, ...], bound: int = 0) -> Compilation:
    """The compilation in this order, with offsets of its buffers; `bound` bytes are known to be the least."""
    found = compilation.with_plan(order=order)
    return found.with_plan(buffers=OrderedBuffers(*place(found, bound)))


def _bounded(compilation: Compilation, bound: int) -> Compilation:
    """The compilation with what is proved about its peak."""
    return compilation.with_plan(buffers=replace(compilation.plan.require("buffers"), bound=bound))


def _peak(compilation: Compilation) -> int:
    return compilation.plan.require("buffers").solution.peak
