"""Plans that fit a budget, plans of least memory, and the Pareto front between memory and time.

Rows are given up group by group, where more is in use than may be (`MemoryConcessions`): a
goal in bytes denies those that need more than it leaves (`app.engine.planning.row_memory`), so that only
the groups at the peak pay. A budget is such a goal, a preference for memory the least that is reached;
the Pareto front keeps every plan looked at that no other beats.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.planning import rematerialization
from app.engine.planning.row_memory import RowMemory
from app.engine.planning.streams.matrix_strips import denied_for_strips, in_matrix_strips
from app.engine.planning.streams.proposals import Streams, proposals, with_fewer_rows
from app.engine.planning.streams.second_pass import second_passes
from app.engine.types.errors import CapacityError
from app.engine.types.layout import LAST
from app.engine.types.options import MemoryConcessions, Options, Streamed

Build = Callable[[MemoryConcessions], Program]

NOTHING = MemoryConcessions()
# In the order in which they are tried for all groups: what costs least time comes first.
FIRST_CONCESSIONS = (MemoryConcessions(order=True), MemoryConcessions(order=True, row_major_only=True))
UNFUSED = 3  # fused groups at the peak that are tried without
RECOMPUTED = 3  # values alive at the peak that are tried computed again
ROUNDS = 12  # of changes at the peak
# Plans looked at for one goal, by the steps of the first: they cost what a graph has of them.
BUILDS, LEAST_BUILDS, WORK = 60, 18, 2000
DESCENT = 0.75  # of these, that look for fewer bytes; what is left looks for less time
CLOSURE = 6  # times that rows are denied, until a plan is within a goal
RESTORED = 6  # groups that are given their rows back, one by one
SMALLEST = 3  # plans in strips of fewer rows that are tried, for each kind of denial
BETWEEN = 4  # goals of the front between the smallest plan and the fastest


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A plan of the front: bytes of its arena, seconds predicted or measured, and what it gives up."""

    peak_bytes: int
    seconds: float
    told: str

    @classmethod
    def of(cls, program: Program) -> "Point":
        """The point of a program."""
        return cls(_peak(program), program.seconds, program.compilation.concessions.describe)


def chosen(build: Build, options: Options, streams: tuple[Streamed, ...] = ()) -> Program:
    """The plan that the options prefer; `streams` make it faster.

    Raises:
        CapacityError: no plan that was tried fits the memory.
    """
    return smallest(build) if options.prefer == "memory" else fitting(build, streams)


def fitting(build: Build, streams: tuple[Streamed, ...] = ()) -> Program:
    """The fastest plan found that fits the budget: as it is, or after what is given up for it.

    `streams` make it faster.

    Raises:
        CapacityError: none fits; the message tells the smallest and what was tried.
    """
    for concessions in dict.fromkeys((MemoryConcessions(streams=streams), NOTHING)):
        try:
            return build(concessions)
        except CapacityError as error:
            missed = error
    search = _Search(build)
    budget = missed.available
    start = search.start()
    nearest = search.descended(start, budget)
    if _peak(nearest) > budget:
        # Looking for fewer bytes than the budget leads along other plans, which may reach below it.
        nearest = min(nearest, _least(_Search(build)), key=_peak)
    if _peak(nearest) <= budget:
        nearest = search.relieved(nearest, start, budget)
    spilled = search.spilled(start, nearest)
    fits = [p for p in (nearest, *spilled) if _peak(p) <= budget]
    if not fits:
        raise _too_much(build, nearest, search)
    found = _bounded(build, min(fits, key=lambda p: p.seconds))
    return _noted(
        found,
        f"memory: fits the budget with {found.compilation.concessions.describe}; {missed.needed} byte would "
        f"be needed without; {found.seconds * 1e6:.4g} us in place of {start.seconds * 1e6:.4g}",
    )


def smallest(build: Build) -> Program:
    """The plan with the smallest arena found, of equal ones the fastest.

    At its peak rows are denied, fusion is undone and values are computed again where that saves bytes.

    Raises:
        CapacityError: not even this plan fits the memory.
    """
    search = _Search(build)
    start, best = search.start(), _least(search)
    try:
        found = _bounded(build, best)
    except CapacityError:
        # What a plan with slower memories keeps in the first one depends little on its own arena.
        budget = _budget(start)
        spilled = [p for p in search.spilled(best, start) if _peak(p) <= budget]
        found = min((*spilled, fitting(build)), key=lambda p: (_peak(p), p.seconds))
        found = _bounded(build, found)
    return _noted(found, f"memory: the smallest arena has {found.compilation.concessions.describe}")


def pareto_front(build: Build, streams: tuple[Streamed, ...] = ()) -> tuple[Point, ...]:
    """The plans found of which none is both smaller and faster, the smallest first; `streams` as above."""
    search = _Search(build)
    start, best = search.start(), _least(search)
    search.allow(start, 1)
    search.plan(MemoryConcessions(streams=streams))
    for i in range(1, BETWEEN + 1):
        search.closed(start, _peak(best) + (_peak(start) - _peak(best)) * i // (BETWEEN + 1))
    budget = _budget(start)
    if _peak(start) > budget:
        search.spilled(start, best)
        try:
            search.points.append(Point.of(fitting(build)))
        except CapacityError:
            return ()  # nothing fits
    points = sorted(search.points, key=lambda p: (p.peak_bytes, p.seconds))
    found: list[Point] = []
    for point in points:
        if point.peak_bytes <= budget and (not found or point.seconds < found[-1].seconds):
            found.append(point)
    return tuple(found)


def _least(search: "_Search") -> Program:
    """The plan with the smallest arena found, whatever memory there is."""
    start = search.start()
    return search.relieved(search.descended(start, 0), start, None)


class _Search:
    """Plans of one graph, each made once, whatever memory there is."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._known: dict[MemoryConcessions, Program | None] = {}
        self._rows: dict[MemoryConcessions, RowMemory] = {}
        self._left = 0
        self.points: list[Point] = []

    def allow(self, start: Program, share: float) -> None:
        """Let so much of the plans be looked at that a graph of this size is worth."""
        whole = min(max(WORK // max(len(start.steps), 1), LEAST_BUILDS), BUILDS)
        self._left = max(self._left, 0) + round(share * whole)

    def start(self) -> Program:
        """The plan without concessions, which there always is: what it takes has no bound."""
        program = self.plan(NOTHING)
        if program is None:
            raise AssertionError("a plan without a bound of its memory was refused for its memory")
        return program

    def plan(self, concessions: MemoryConcessions, peak_limit: int | None = None) -> Program | None:
        """The plan with these concessions; None where no more are allowed, or every order takes more."""
        if concessions not in self._known:
            if self._left <= 0 and self._known:
                return None
            self._left -= 1
            try:
                program = self._build(dataclasses.replace(concessions, unbounded=True, peak_limit=peak_limit))
            except CapacityError:
                return None
            self._known[concessions] = program
            self.points.append(Point.of(program))
        return self._known[concessions]

    def rows(self, program: Program) -> RowMemory:
        """The bytes that implementations of its groups need."""
        concessions = _concessions(program)
        if concessions not in self._rows:
            self._rows[concessions] = RowMemory(program)
        return self._rows[concessions]

    def better(self, options: Iterable[MemoryConcessions], best: Program, goal: int) -> Program:
        """The best of the plans: the fastest within the goal, else the smallest, then the fastest."""
        for concessions in options:
            program = self.plan(concessions, max(_peak(best), goal))
            best = best if program is None else min(best, program, key=lambda p: _merit(p, goal))
        return best

    def descended(self, start: Program, goal: int) -> Program:
        """The best plan that changes at the peak lead to, from the fastest plan on."""
        self.allow(start, DESCENT)
        # Where the bound is met, neither rows nor orders save a byte.
        least = self.rows(start).bound
        proved = least is not None and _peak(start) <= least
        best = start if proved else self.better(FIRST_CONCESSIONS, start, goal)
        for _ in range(ROUNDS):
            before = best
            if _peak(best) <= goal:
                break
            bound = max(self.rows(best).bound or 0, goal)
            if _peak(best) > bound:
                for limit in dict.fromkeys((bound, (bound + _peak(best)) // 2, _peak(best) - 1)):
                    for at in (start, best):
                        best = min(best, self.closed(at, limit), key=lambda p: _merit(p, goal))
                    if _peak(best) < _peak(before):
                        break
            if _peak(best) == _peak(before):
                longer = dataclasses.replace(_concessions(best), order=True)
                best = self.better((longer, *_moves(best)), best, goal)
            if _merit(best, goal) >= _merit(before, goal):
                break
        return self.streamed(best, start, goal)

    def streamed(self, best: Program, start: Program, goal: int) -> Program:
        """The best plan, also of those with groups of the first one in strips of rows.

        Then of those whose strips have fewer rows at least, by other implementations, and of those that
        compute twice what is reduced whole before it is read.
        """
        if _peak(start) <= goal:
            return best
        if _has_bytes_last(start):  # no strips are of these
            plain = self.plan(dataclasses.replace(_concessions(start), row_major_only=True))
            start = start if plain is None else plain
        best = self._in_matrix_strips(best, start, goal)
        proposed = proposals(start, (goal,))
        best = self.better(self._in_strips(start, proposed), best, goal)
        fewer = with_fewer_rows(start, proposed[-1]) if proposed else ()
        own = _concessions(start)
        for concessions in (
            *(dataclasses.replace(own, denied=denied) for denied in fewer),
            *(dataclasses.replace(own, recompute=again) for again in second_passes(start)),
        ):
            self._left = max(self._left, 1)
            other = self.plan(concessions)
            if other is not None:
                smallest_last = proposals(other)[-SMALLEST:]
                best = self.better(self._in_strips(other, smallest_last), best, goal)
        return best

    def _in_matrix_strips(self, best: Program, start: Program, goal: int) -> Program:
        """The best plan, also of those with products in strips of rows and attention head by head."""
        denied = denied_for_strips(start)
        if not denied and not in_matrix_strips(start):
            return best
        self._left = max(self._left, 1)
        base = self.plan(dataclasses.replace(_concessions(start), denied=denied | _concessions(best).denied))
        if base is None or not (found := in_matrix_strips(base, (goal,))):
            return best
        # The smallest first: what lies beside the strips may need rows of less memory, in all plans then.
        least = self.better(self._in_strips(base, found[-1:]), base, goal)
        least = self.closed(least, max(self.rows(least).bound or 0, goal))
        best = self.better(self._in_strips(least, found), best, goal)
        return min(best, least, key=lambda p: _merit(p, goal))

    def _in_strips(self, program: Program, proposed: Sequence[Streams]) -> Iterable[MemoryConcessions]:
        """The concessions of a program with streams; a plan of each is always allowed."""
        for streams in proposed:
            self._left = max(self._left, 1)
            yield dataclasses.replace(_concessions(program), streams=streams)

    def closed(self, program: Program, goal: int) -> Program:
        """The best plan on the way of denying rows until one is within the goal, or no more can be.

        A plan may be worse than the one before: what takes the place of a row shows its own needs then.
        """
        best = at = program
        for _ in range(CLOSURE):
            if _peak(at) <= goal:
                break
            concessions = _concessions(at)
            plans: list[Program] = []
            for denied in self.rows(at).denials(goal):
                if denied <= concessions.denied:
                    continue
                found = self.plan(dataclasses.replace(concessions, denied=concessions.denied | denied))
                plans += [found] if found is not None else []
                if found is not None and _merit(found, goal) < _merit(at, goal):
                    break
            if not plans:
                break
            at = min(plans, key=lambda p: _merit(p, goal))
            best = min(best, at, key=lambda p: _merit(p, goal))
        return best

    def relieved(self, best: Program, start: Program, goal: int | None) -> Program:
        """A faster plan of as few bytes, or within the goal: rows are denied anew, for no less than that.

        One with groups in strips of rows stays as it is.
        """
        if _concessions(best).streams:
            return best
        self.allow(start, 1 - DESCENT)
        goal = _peak(best) if goal is None else goal
        bare = self.plan(dataclasses.replace(_concessions(best), denied=frozenset()))
        for at in (start, bare):
            if at is not None:
                best = min(best, self.closed(at, goal), key=lambda p: _merit(p, goal))
        concessions, misjudged = _concessions(best), self.rows(best).misjudged()
        best = self.better(
            [dataclasses.replace(concessions, denied=concessions.denied | misjudged)], best, goal
        )
        # What was denied on the way may do no harm at its end.
        for name in sorted({name for name, _ in best.compilation.concessions.denied})[:RESTORED]:
            concessions = _concessions(best)
            kept = frozenset(denied for denied in concessions.denied if denied[0] != name)
            best = self.better([dataclasses.replace(concessions, denied=kept)], best, goal)
        return best

    def spilled(self, *programs: Program) -> list[Program]:
        """The plans with values in the slower memories of the target, if it has any."""
        if len(programs[0].compilation.target.memories) < 2:
            return []
        found = []
        for program in programs:
            self._left = max(self._left, 1)
            found.append(self.plan(dataclasses.replace(_concessions(program), spill=True)))
        return [p for p in found if p is not None]


def _merit(program: Program, goal: int) -> tuple[int, float]:
    return max(_peak(program), goal), program.seconds


def _peak(program: Program) -> int:
    return program.placement.solution.peak


def _budget(program: Program) -> int:
    asked = program.compilation.options.memory_budget
    return program.compilation.target.budget if asked is None else asked


def _has_bytes_last(program: Program) -> bool:
    """True if images of bytes have channels last."""
    layouts = program.compilation.plan.require("layout")
    return any(layout == LAST and str(graph.dtype(v)) in ("int8", "uint8") for v, layout in layouts.items())


def _concessions(program: Program) -> MemoryConcessions:
    return dataclasses.replace(program.compilation.concessions, unbounded=False, peak_limit=None)


def _bounded(build: Build, program: Program) -> Program:
    """The program as it is planned where no more may be taken than there is."""
    return build(_concessions(program))


def _gap(peak: int, bound: int | None) -> str:
    """Distance of a plan from the bound that no choice of implementations stays below, in words."""
    if bound is None:
        return "that no rows take less is not proved: some ask for other memories"
    if peak <= bound:
        return "proved: no rows for these groups take less, in any order"
    share = f", a gap of {peak / bound - 1:.2%}" if bound else ""
    return f"no rows for these groups take less than {bound} byte in any order{share}"


def _too_much(build: Build, nearest: Program, search: _Search) -> CapacityError:
    """The error of the smallest plan, with what else was tried."""
    try:
        _bounded(build, nearest)
    except CapacityError as error:
        tried = "; ".join(dict.fromkeys(f"{p.told}: {p.peak_bytes} byte" for p in search.points[1:]))
        return CapacityError(
            f"{error}; {_gap(_peak(nearest), RowMemory(nearest).bound)}; tried: {tried}",
            needed=error.needed,
            available=error.available,
        )
    raise AssertionError("a plan above the budget was built within it")


def _moves(program: Program) -> list[MemoryConcessions]:
    """Further concessions where most bytes live: a group unfused, a waiting value recomputed."""
    concessions = _concessions(program)
    worst = _worst(program)
    groups = [s.group for s in program.steps if s.index in worst and len(s.group.nodes) > 1]
    largest = sorted(groups, key=lambda g: -len(g.nodes))[:UNFUSED]
    unfused = [concessions.unfused | {n.name or "" for n in g.nodes} for g in largest]
    recompute = rematerialization.candidates(program, fullest(program))[:RECOMPUTED]
    return [
        *(dataclasses.replace(concessions, unfused=names) for names in unfused),
        # In other layouts than that of the input, its conversion would wait in place of the value.
        *(
            dataclasses.replace(concessions, recompute=(*concessions.recompute, more), row_major_only=plain)
            for more in recompute
            for plain in sorted({concessions.row_major_only, True})
        ),
    ]


def live_bytes(program: Program) -> list[int]:
    """Bytes of the first memory in use at every step, and after the last."""
    live = [0] * (len(program.steps) + 1)
    first = program.compilation.target.memories[0].name
    for buffer in (b for b in program.placement.buffers if b.memory == first):
        for span in buffer.spans:
            for step in range(span.first, span.last + 1):
                live[step] += span.nbytes
    return live


def fullest(program: Program) -> int:
    """The step at which most bytes of the first memory are in use, the first of equal ones."""
    live = live_bytes(program)
    return max(range(len(live)), key=live.__getitem__)


def _worst(program: Program) -> set[int]:
    """Steps that make or last read a buffer that lives at the fullest step."""
    step = fullest(program)
    alive = [b for b in program.placement.buffers if any(s.first <= step <= s.last for s in b.spans)]
    return {step, *(b.first for b in alive), *(b.last for b in alive)}


def _noted(program: Program, note: str) -> Program:
    """The program with a note, and with what is proved of its rows."""
    compilation = program.compilation
    bound = RowMemory(program).bound
    told = f"{note}; {_gap(_peak(program), bound)}"
    if program.placement.banks and bound is not None:  # it counts what slower memories hold too
        bound, told = None, note
    notes = (*compilation.notes, told)
    return dataclasses.replace(
        program, compilation=dataclasses.replace(compilation, notes=notes, row_bound=bound)
    )
