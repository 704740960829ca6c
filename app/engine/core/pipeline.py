"""Runs passes over a compilation and checks what each one promises.

A pass is a frozen dataclass `(Compilation) -> Compilation`; its fields are its options. It
states which columns it reads, writes and keeps: columns that it neither keeps nor writes are
dropped, because they may no longer fit the graph. It is given a view of the plan that has the
columns it reads and writes, and no others.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable
from typing import ClassVar, NamedTuple, NoReturn, Protocol

from app.engine.core import graph
from app.engine.core.plan import COLUMNS, Compilation, Plan, Record
from app.engine.types.errors import EngineError, PassError
from app.kernels.garbage import uncollected

Progress = Callable[[str, int, int], None]

passes = logging.getLogger("stowplan.passes")
choices = logging.getLogger("stowplan.choices")
memory = logging.getLogger("stowplan.memory")


class Rerun(NamedTuple):
    """Result of a pass that changed the graph: an earlier pass, and those after it, run again."""

    compilation: Compilation
    name: str  # of the earlier pass


class Pass(Protocol):
    """One step of the pipeline.

    Attributes:
        reads: columns that must have been written before.
        writes: columns that it promises; it sees those that it reads too, and what it wrote itself.
        keeps: columns that stay as they are.
    """

    name: ClassVar[str]
    reads: ClassVar[tuple[str, ...]]
    writes: ClassVar[tuple[str, ...]]
    keeps: ClassVar[tuple[str, ...]]

    def __call__(self, compilation: Compilation) -> Compilation | Rerun:
        """A compilation with more decisions."""
        ...


Observer = Callable[[Pass, Compilation, Compilation], object]


def silent(_phase: str, _done: int, _total: int) -> None:
    """Progress callback that does nothing."""


def unobserved(_pass: Pass, _before: Compilation, _after: Compilation) -> None:
    """Observer that does nothing."""


def run(
    compilation: Compilation,
    steps: Iterable[Pass],
    progress: Progress = silent,
    observe: Observer = unobserved,
) -> Compilation:
    """Compilation after all passes.

    `observe(pass_, before, after)` is called after every pass. Passes change the graph in place: the
    graph of `before` is that of `after`, its columns are as they were.

    Raises:
        EngineError: what a pass found wrong with the model or the request.
        PassError: a pass breaks its declaration, or any other exception inside a pass, with its name.
    """
    sequence = tuple(steps)
    done = 0
    with uncollected():
        while done < len(sequence):
            step = sequence[done]
            progress(step.name, done, len(sequence))
            before = compilation
            compilation, again = _run_one(before, step)
            _log(before, compilation)
            observe(step, before, compilation)
            done = done + 1 if again is None else _position(again, step, sequence[:done])
    return compilation


def _position(name: str, step: Pass, earlier: tuple[Pass, ...]) -> int:
    """Index of the pass from which `step` lets the pipeline run again."""
    names = [other.name for other in earlier]
    if name not in names:
        _broken(step, f"it lets the pass {name!r} run again, which is not among those before it: {names}")
    return names.index(name)


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


class _View(Plan):
    """A plan as one pass sees it: columns that it does not declare are absent, and reading one raises."""

    __slots__ = ("_pass",)
    _pass: Pass

    @classmethod
    def of(cls, plan: Plan, step: Pass) -> "_View":
        """The columns that a pass reads; those that it only writes are None until it has."""
        found = object.__new__(cls)
        object.__setattr__(found, "_pass", step)
        for column in step.writes:
            object.__setattr__(found, column, None)
        for column in step.reads:
            object.__setattr__(found, column, getattr(plan, column))
        return found

    def __getattr__(self, column: str) -> NoReturn:
        """Called for what is absent."""
        if column not in COLUMNS:
            raise AttributeError(column)
        _broken(self._pass, f"it reads the column {column!r}, which it does not declare")

    def replaced(self, **columns: object) -> Plan:
        """The view with other columns, which the pass must have promised to write."""
        found = _View.of(self, self._pass)
        for column in self._pass.writes:
            object.__setattr__(found, column, getattr(self, column))
        for column, value in columns.items():
            if column not in self._pass.writes:
                _broken(self._pass, f"it writes the column {column!r}, which it does not promise")
            object.__setattr__(found, column, value)
        return found

    def __repr__(self) -> str:
        """Columns that the pass sees."""
        seen = dict.fromkeys((*self._pass.reads, *self._pass.writes))
        return f"Plan as {self._pass.name!r} sees it ({', '.join(seen)})"


def _broken(step: Pass, reason: str) -> NoReturn:
    """Raise for a pass that does not do as it declares."""
    raise PassError(step.name, ValueError(reason))


def _run_one(compilation: Compilation, step: Pass) -> tuple[Compilation, str | None]:
    """Compilation after a pass, and the pass that it lets run again."""
    for column in step.reads:
        if getattr(compilation.plan, column) is None:
            _broken(step, f"column {column!r} has not been written yet")
    started = time.perf_counter()
    try:
        result = step(dataclasses.replace(compilation, plan=_View.of(compilation.plan, step)))
    except EngineError:
        raise
    except Exception as cause:
        raise PassError(step.name, cause) from cause
    seconds = time.perf_counter() - started
    result, again = result if isinstance(result, Rerun) else (result, None)
    plan = _checked_plan(compilation.plan, result, step, complete=again is None)
    notes = result.notes[len(compilation.notes) :]
    record = Record(step.name, seconds, len(result.graph), notes)
    return dataclasses.replace(result, plan=plan, records=(*result.records, record)), again


def _checked_plan(before: Plan, result: Compilation, step: Pass, *, complete: bool) -> Plan:
    """Columns that the pass wrote and those that it keeps; a promised one may be absent if not `complete`."""
    if not isinstance(result.plan, _View):
        _broken(step, "it returns another plan than the one it was given; `with_plan` writes columns")
    kept = {c: getattr(before, c) for c in COLUMNS if c in step.keeps}
    plan = Plan(**kept | {c: getattr(result.plan, c) for c in step.writes})
    checked = dataclasses.replace(result, plan=plan)
    for column in step.writes:
        if getattr(plan, column) is None and not complete:
            continue
        problem = incomplete(checked, column)
        if problem:
            _broken(step, f"column {column!r} {problem}")
    return plan


def incomplete(compilation: Compilation, column: str) -> str | None:
    """Reason why a written column is not total, or None when it is."""
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
        if compilation.plan.fusion is None:
            return "is one of groups, but the column 'fusion' is neither written nor kept"
        groups = compilation.plan.groups
        absent = [g.name for g in groups if g not in written]
        if not absent and len(written) != len(groups):
            return f"has {len(written)} rows for {len(groups)} groups"
        return f"lacks group {absent[0]!r}" if absent else None
    return None
