"""Plans that fit a budget, plans of least memory, and the front between memory and time.

What a plan gives up is a `Thrift`. A budget takes the first rung of the ladder that fits; a
preference for memory takes the smallest of all; the front keeps every plan that no other beats.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

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
ROUNDS = 4  # of undoing one


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
    """Predicted or measured seconds of all steps."""
    return sum(step.choice.seconds for step in program.steps)


def fitting(build: Build) -> Program:
    """The first plan that fits the budget: as it is, or after the least that is given up for it.

    Raises:
        CapacityError: none fits; the message tells the smallest and what was tried.
    """
    try:
        return build(NOTHING)
    except CapacityError as error:
        least, wanted = error, error.needed
    tried = []
    for thrift in LADDER:
        try:
            program = build(thrift)
        except CapacityError as error:
            tried.append(f"{thrift.told}: {error.needed} byte")
            least = min(least, error, key=lambda e: e.needed)
        else:
            told = f"fits the budget with {thrift.told}; {wanted} byte would be needed without"
            return _noted(program, f"memory: {told}")
    raise CapacityError(
        f"{least}; tried: {'; '.join(tried)}", needed=least.needed, available=least.available
    ) from least


def smallest(build: Build) -> Program:
    """The plan with the smallest arena, of equal ones what gives up least.

    Fusion is undone where that saves bytes.
    """
    best = _smaller(build, (NOTHING, *LADDER), None)
    if best is None:
        return build(LADDER[-1])  # raises, with the reason
    for _ in range(ROUNDS):
        better = _unfused(build, best)
        if better is None:
            break
        best = better
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


def _unfused(build: Build, program: Program) -> Program | None:
    """A smaller plan with one fused group at the peak undone; None when there is none."""
    thrift = program.compilation.thrift
    worst = _worst(program)
    groups = [s.group for s in program.steps if s.index in worst and len(s.group.nodes) > 1]
    largest = sorted(groups, key=lambda g: -len(g.nodes))[:UNDONE]
    without = (
        dataclasses.replace(thrift, apart=thrift.apart | {n.name or "" for n in g.nodes}) for g in largest
    )
    best = _smaller(build, without, program)
    return best if best is not program else None


def _worst(program: Program) -> set[int]:
    """Steps that make or last read a buffer that lives at the fullest step."""
    buffers = program.placement.buffers
    live = [0] * (len(program.steps) + 1)
    for buffer in buffers:
        for span in buffer.spans:
            for step in range(span.first, span.last + 1):
                live[step] += span.nbytes
    fullest = max(range(len(live)), key=live.__getitem__)
    alive = [b for b in buffers if any(s.first <= fullest <= s.last for s in b.spans)]
    return {fullest, *(b.first for b in alive), *(b.last for b in alive)}


def _noted(program: Program, note: str) -> Program:
    compilation = program.compilation
    return dataclasses.replace(
        program, compilation=dataclasses.replace(compilation, notes=(*compilation.notes, note))
    )
