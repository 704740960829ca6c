"""Decide the order of execution: as in the graph, unless another needs less memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from app.engine.buffers.graph_order import dependencies, stable_order
from app.engine.buffers.placement import place
from app.engine.buffers.steps import memory_steps
from app.engine.core.group import Group
from app.engine.core.placement import OrderedBuffers
from app.engine.core.plan import COLUMNS, Compilation
from app.engine.memory.beam_order import Step, least_peak, schedule
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
        steps, sizes = memory_steps(given, needs)
        floor = least_peak(steps, sizes)
        given = ordered(compilation, stable, floor)
        peak = _peak(given)
        if peak <= floor:
            return _bounded(given, peak)
        from app.engine.memory.optimal_order import NO_LIMIT, least_order  # imports numba

        states = STATES_AT_LENGTH if compilation.concessions.order else STATES
        limit = compilation.concessions.peak_limit
        exact = least_order(steps, sizes, states, NO_LIMIT if limit is None else limit)
        if exact and not exact.order:
            raise CapacityError(
                f"every order takes {exact.peak} byte or more", needed=exact.peak, available=limit or 0
            )
        bound = exact.lower_bound if exact else None
        best = given
        # The search knows no offsets and estimates what is shared in place; the plan decides. A beam that
        # does not count on sharing goes other ways.
        for order in (exact.order,) if exact else _by_beam(steps, sizes, peak):
            found = ordered(compilation, tuple(stable[i] for i in order), bound or floor)
            best = min(best, found, key=_peak)
        if best is given:
            return _bounded(given, bound)
        note = f"order: peak {peak} byte in graph order, {_peak(best)} byte in the order found"
        return _bounded(replace(best, notes=(*best.notes, note)), bound)


def _by_beam(steps: Sequence[Step], sizes: Sequence[int], peak: int) -> Iterator[Sequence[int]]:
    """Orders that a beam search takes for smaller than `peak`: with and without results in place."""
    apart = [replace(step, inplace=()) for step in steps]
    for given in dict.fromkeys((tuple(steps), tuple(apart))):
        found = schedule(given, sizes, peak)
        if found is not None:
            yield found


def ordered(compilation: Compilation, order: tuple[Group, ...], bound: int = 0) -> Compilation:
    """The compilation in this order, with offsets of its buffers; `bound` bytes are known to be the least."""
    found = compilation.with_plan(order=order)
    return found.with_plan(buffers=OrderedBuffers(*place(found, bound)))


def _bounded(compilation: Compilation, bound: int | None) -> Compilation:
    """The compilation with what is proved about its peak."""
    return compilation.with_plan(buffers=replace(compilation.plan.require("buffers"), bound=bound))


def _peak(compilation: Compilation) -> int:
    return compilation.plan.require("buffers").solution.peak
