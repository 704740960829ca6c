"""Plans that fit a budget, plans of least memory, and the front between memory and time.

What a plan gives up is a `Thrift`. A budget takes the first rung of the ladder that fits; a
preference for memory takes the smallest of all; the front keeps every plan that no other beats.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from app.engine import recompute
from app.engine.errors import CapacityError
from app.engine.options import Thrift
from app.engine.program import Program

Build = Callable[[Thrift], Program]

NOTHING = Thrift()
# In the order in which they are tried for a budget: what costs least time comes first.
LADDER = (
    Thrift(order=True),
    Thrift(order=True, workspace=True),
    Thrift(order=True, padding=True),
    Thrift(order=True, workspace=True, padding=True),
    Thrift(order=True, plain=True),
    Thrift(order=True, workspace=True, plain=True),
)
UNDONE = 3  # fused groups at the peak that are tried without
AGAIN = 3  # values alive at the peak that are tried computed again
ROUNDS = 4  # of one such change


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """A plan of the front: bytes of its arena, seconds predicted or measured, and what it gives up."""

    peak: int
    seconds: float
    told: str

    @classmethod
    def of(cls, program: Program) -> "Point":
        """The point of a program."""
        return cls(program.placement.solution.peak, seconds(program), program.compilation.thrift.told)


def seconds(program: Program) -> float:
    """Predicted or measured seconds of all steps, and of what slower memories cost."""
    return sum(step.choice.seconds for step in program.steps) + program.placement.delay


def fitting(build: Build) -> Program:
    """The first plan that fits the budget: as it is, or after the least that is given up for it.

    Raises:
        CapacityError: none fits; the message tells the smallest and what was tried.
    """
    try:
        return build(NOTHING)
    except CapacityError as error:
        search = _Search(build, NOTHING, error)
    for thrift in LADDER:
        if program := search.fits((thrift,)):
            return search.noted(program)
    for _ in range(ROUNDS):
        least = search.least
        whole = build(dataclasses.replace(search.thrift, unbounded=True))
        if program := search.fits(_moves(whole)):
            return search.noted(program)
        if search.least is least:
            break
    if program := search.fits((dataclasses.replace(search.thrift, spill=True),)):
        return search.noted(program)
    raise CapacityError(
        f"{search.least}; tried: {'; '.join(search.tried)}",
        needed=search.least.needed,
        available=search.least.available,
    ) from search.least


@dataclasses.dataclass
class _Search:
    """What was tried for a budget, and what came nearest to it."""

    build: Build
    thrift: Thrift
    least: CapacityError
    tried: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.wanted = self.least.needed

    def fits(self, thrifts: Iterable[Thrift]) -> Program | None:
        """The fastest of the plans that fit."""
        best: Program | None = None
        for thrift in thrifts:
            try:
                program = self.build(thrift)
            except CapacityError as error:
                self.tried.append(f"{thrift.told}: {error.needed} byte")
                if error.needed < self.least.needed:
                    self.least, self.thrift = error, thrift
            else:
                best = program if best is None else min(best, program, key=seconds)
        return best

    def noted(self, program: Program) -> Program:
        """The program with a note of what it gives up, and for how many bytes."""
        without = seconds(self.build(dataclasses.replace(NOTHING, unbounded=True)))
        return _noted(
            program,
            f"memory: fits the budget with {program.compilation.thrift.told}; {self.wanted} byte would be "
            f"needed without; {seconds(program) * 1e6:.4g} us in place of {without * 1e6:.4g}",
        )


def smallest(build: Build) -> Program:
    """The plan with the smallest arena, of equal ones what gives up least.

    At its peak, fusion is undone and values are computed again where that saves bytes.
    """
    best = _smaller(build, (NOTHING, *LADDER), None)
    if best is None:
        return build(LADDER[-1])  # raises, with the reason
    for _ in range(ROUNDS):
        before = best
        best = _smaller(build, _moves(best), best)
        assert best is not None
        if best is before:
            break
    return _noted(best, f"memory: the smallest arena has {best.compilation.thrift.told}")


def front(build: Build) -> tuple[Point, ...]:
    """The plans found of which none is both smaller and faster, the smallest first."""
    found: list[Point] = []
    programs = _possible(build, (NOTHING, *LADDER))
    for point in sorted((Point.of(p) for p in programs), key=lambda p: (p.peak, p.seconds)):
        if not found or point.seconds < found[-1].seconds:
            found.append(point)
    return tuple(found)


def _smaller(build: Build, thrifts: Iterable[Thrift], best: Program | None) -> Program | None:
    """The smallest of the plans and the best so far, the first of equal ones.

    That no order of a plan is below the best is often seen soon.
    """
    for thrift in thrifts:
        within = None if best is None else _peak(best) - 1
        for program in _possible(build, (dataclasses.replace(thrift, within=within),)):
            best = program if best is None else min(best, program, key=_peak)
    return best


def _possible(build: Build, thrifts: Iterable[Thrift]) -> Iterator[Program]:
    for thrift in thrifts:
        try:
            yield build(thrift)
        except CapacityError:
            continue


def _peak(program: Program) -> int:
    return program.placement.solution.peak


def _moves(program: Program) -> list[Thrift]:
    """What else may be given up, where most bytes live: a fused kernel, a value that waits."""
    thrift = dataclasses.replace(program.compilation.thrift, unbounded=False, within=None)
    worst = _worst(program)
    groups = [s.group for s in program.steps if s.index in worst and len(s.group.nodes) > 1]
    largest = sorted(groups, key=lambda g: -len(g.nodes))[:UNDONE]
    apart = [thrift.apart | {n.name or "" for n in g.nodes} for g in largest]
    again = recompute.candidates(program, fullest(program))[:AGAIN]
    return [
        *(dataclasses.replace(thrift, apart=names) for names in apart),
        # In other layouts than that of the input, its conversion would wait in place of the value.
        *(
            dataclasses.replace(thrift, again=(*thrift.again, more), plain=plain)
            for more in again
            for plain in sorted({thrift.plain, True})
        ),
    ]


def fullest(program: Program) -> int:
    """The step at which most bytes of the first memory are in use, the first of equal ones."""
    live = [0] * (len(program.steps) + 1)
    first = program.compilation.target.memories[0].name
    for buffer in (b for b in program.placement.buffers if b.memory == first):
        for span in buffer.spans:
            for step in range(span.first, span.last + 1):
                live[step] += span.nbytes
    return max(range(len(live)), key=live.__getitem__)


def _worst(program: Program) -> set[int]:
    """Steps that make or last read a buffer that lives at the fullest step."""
    step = fullest(program)
    alive = [b for b in program.placement.buffers if any(s.first <= step <= s.last for s in b.spans)]
    return {step, *(b.first for b in alive), *(b.last for b in alive)}


def _noted(program: Program, note: str) -> Program:
    compilation = program.compilation
    return dataclasses.replace(
        program, compilation=dataclasses.replace(compilation, notes=(*compilation.notes, note))
    )
