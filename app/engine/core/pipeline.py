"""Runs passes over a compilation and checks what each one promises.

A pass is a frozen dataclass `(Compilation) -> Compilation`; its fields are its options. It
states which columns it reads, writes and keeps: columns that it neither keeps nor writes are
dropped, because they may no longer fit the graph.
"""

import dataclasses
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Protocol

from app.engine.core import graph
from app.engine.core.plan import COLUMNS, Compilation, Plan, Record
from app.engine.types.errors import EngineError, PassError

Progress = Callable[[str, int, int], None]
passes = logging.getLogger("stowplan.passes")
choices = logging.getLogger("stowplan.choices")
memory = logging.getLogger("stowplan.memory")


class Pass(Protocol):
    """What the pipeline runs."""

    name: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    writes: ClassVar[tuple[str, ...]]
    keeps: ClassVar[tuple[str, ...]]

    def __call__(self, compilation: Compilation) -> Compilation:
        """A compilation with more decisions."""
        ...


Observer = Callable[[Pass, Compilation, Compilation], object]


def silent(_phase: str, _done: int, _total: int) -> None:
    """Progress that nobody watches."""


def unobserved(_step: Pass, _before: Compilation, _after: Compilation) -> None:
    """Observer that does nothing."""


def run(
    compilation: Compilation,
    steps: Iterable[Pass],
    progress: Progress = silent,
    observe: Observer = unobserved,
) -> Compilation:
    """The compilation after all passes.

    `observe` is called after every pass, with the compilations before and after it. A pass may change the
    graph in place: of the compilation before, only the columns are as they were.

    Raises:
        EngineError: what a pass found wrong with the model or the request.
        PassError: any other exception inside a pass, with the pass's name.
    """
    sequence = tuple(steps)
    with _uncollected():
        for done, step in enumerate(sequence):
            progress(step.name, done, len(sequence))
            before, compilation = compilation, _run_one(compilation, step)
            _log(before, compilation)
            observe(step, before, compilation)
    return compilation


def _log(before: Compilation, after: Compilation) -> None:
    """Log the last pass, what it chose and where it placed buffers: `STOWPLAN_LOG=passes,choices,memory`."""
    record = after.records[-1]
    passes.debug("%s: %.1f ms, %d nodes", record.name, record.seconds * 1e3, record.nodes)
    for note in record.notes:
        passes.debug("%s: %s", record.name, note)
    if choices.isEnabledFor(logging.DEBUG) and after.decisions is not before.decisions:
        for decision in after.decisions[len(before.decisions) :]:
            choices.debug("%s: %s (%s)", decision.subject, decision.chosen, decision.reason)
    placement = after.plan.placement
    if placement is not None and placement is not before.plan.placement:
        solution = placement.solution
        memory.debug(
            "arena %d byte, lower bound %d byte, %s", solution.peak, solution.lower_bound, solution.method
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles: passes make many objects and hardly any garbage."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _run_one(compilation: Compilation, step: Pass) -> Compilation:
    missing = [c for c in step.reads if getattr(compilation.plan, c) is None]
    if missing:
        raise PassError(step.name, ValueError(f"column {missing[0]!r} has not been written yet"))
    notes_before = len(compilation.notes)
    started = time.perf_counter()
    try:
        result = step(compilation)
    except EngineError:
        raise
    except Exception as cause:
        raise PassError(step.name, cause) from cause
    seconds = time.perf_counter() - started
    stale = {c: None for c in COLUMNS if c not in step.keeps and c not in step.writes}
    plan: Plan = dataclasses.replace(result.plan, **stale)
    result = dataclasses.replace(result, plan=plan)
    for column in step.writes:
        problem = incomplete(result, column)
        if problem:
            raise PassError(step.name, ValueError(f"column {column!r} {problem}"))
    record = Record(step.name, seconds, len(result.graph), result.notes[notes_before:])
    return dataclasses.replace(result, records=(*result.records, record))


def incomplete(compilation: Compilation, column: str) -> str | None:
    """Why a written column is not total, or None when it is."""
    written = getattr(compilation.plan, column)
    if written is None:
        return "was promised but not written"
    if column in ("partition", "fusion", "dispatch"):
        absent = [n.name for n in compilation.graph if n not in written]
        return f"lacks node {absent[0]!r}" if absent else None
    if column in ("storage", "layout", "padding"):
        absent = [v.name for v in graph.values(compilation.graph) if v not in written]
        return f"lacks value {absent[0]!r}" if absent else None
    if column in ("implementation", "order"):
        groups = compilation.plan.groups
        absent = [g.name for g in groups if g not in written]
        if not absent and len(written) != len(groups):
            return f"has {len(written)} rows for {len(groups)} groups"
        return f"lacks group {absent[0]!r}" if absent else None
    return None
