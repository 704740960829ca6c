"""Nodes that are planned without a source of rounding that costs outputs too much.

The sources are shorter precisions (mixed precision) and fast algorithms. A few nodes round what the rest
of a model amplifies. How far a set of nodes moves the outputs is measured by a program in which only they
round; sets that move them too far are halved until single nodes are found. Errors of sets are taken to add
as independent ones do: the square of the whole is the sum of the squares. What is chosen by that is measured
again as one program.
"""

import math
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.planning import session
from app.engine.planning.precision.knapsack import Option, choose
from app.engine.runtime.verify import Difference, compare
from app.engine.types.errors import NumericsError
from app.engine.types.options import Options
from app.engine.types.precision import resolve, tolerance
from app.engine.types.target import Target
from app.kernels.cpu.runtime.compiler import Compiler

MARGIN = 0.9  # share of the tolerance that the error may take: that on other inputs may be larger
PROGRAMS = 64  # limit of programs that are measured, each planned, bound and run once
BLOCKS = 40  # blocks of nodes that are measured first
ROUNDS = 5  # choices, each with more or less error expected, as the one before was measured
SLACK = 1.5  # factor by which the expected error changes at most from one choice to the next
MIN_SAVED = 1e-9  # s that rounding is taken to save at least

Block: TypeAlias = tuple[str, ...]  # names of nodes next to each other in the graph


@dataclass(frozen=True, slots=True)
class Source:
    """A source of rounding that single nodes may be planned without.

    Attributes:
        option: the field of Options that names these nodes.
        off: the options without the source.
        of: whether an implementation has it.
        nested: whether nodes with bodies count as having it.
        kept: what is said of a node that is planned without it, and of what it would do.
    """

    option: str
    off: Callable[[Options], Options]
    of: Callable[[Implementation], bool]
    nested: bool
    kept: tuple[str, str]

    def without(self, options: Options, nodes: Mapping[str, str]) -> Options:
        """The options with these nodes planned without the source: why, by name."""
        changes: dict[str, Any] = {self.option: nodes}
        return replace(options, **changes)


PRECISION = Source(
    "exact",
    lambda options: replace(options, precision="f32"),
    lambda implementation: implementation.precision != "f32",
    nested=False,
    kept=("kept in float32", "rounding"),
)
FAST = Source(
    "direct",
    lambda options: replace(options, fast_algorithms=False),
    lambda implementation: implementation.fast,
    nested=True,
    kept=("computed without a fast algorithm", "fast algorithm"),
)


def mixes(options: Options, target: Target) -> bool:
    """True if some nodes may stay float32 while others round: not where values are stored rounded."""
    return not options.exact and target.device != "cuda" and resolve(options, target).used != "f32"


def held(
    compilation: Compilation,
    options: Options,
    compiler: Compiler,
    inputs: Mapping[str, object],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
    *,
    source: Source = PRECISION,
    allowed: float | None = None,
    expected: Mapping[str, object] | None = None,
) -> tuple[Compilation, Options]:
    """The options with which outputs on these inputs are within MARGIN of the tolerance; runs kernels.

    As they are where that holds already; else with nodes planned without the source; else without the source.
    The compilation comes back with measured seconds of what the program without it takes.

    `source` is that of the rounding. `allowed` is the tolerance, where it is not the options'. `expected` are
    the original's outputs: what the program without the source differs from them is taken off the tolerance.
    """
    single = replace(source.off(options), choose="first")
    timings = session.tuned(compilation, single, compiler, progress).timings
    compilation = replace(compilation, timings=timings)
    trials = _Trials(compilation, options, compiler, inputs, progress, source)
    most = tolerance(options, compilation.target) if allowed is None else allowed
    limit = MARGIN * most - (0.0 if expected is None else trials.distance(expected))
    if limit <= 0 or not trials.names:
        return compilation, source.off(options)
    if trials.moved(trials.names).max_rel <= limit:
        return compilation, options
    size = max(-(-len(trials.names) // BLOCKS), 1)
    cut = [trials.names[i : i + size] for i in range(0, len(trials.names), size)]
    blocks = {block: trials.moved(block) for block in cut}
    best, least, bound = dict.fromkeys(trials.names, ""), MIN_SAVED, limit
    for _ in range(ROUNDS):
        kept = _narrowed(blocks, trials, bound)
        rounding = [name for block in blocks if block not in kept for name in block]
        error = trials.moved(rounding).max_rel
        saved = trials.seconds(rounding)
        if error <= limit and saved > least:
            told = {name: _told(source, block, blocks[block]) for block in kept for name in block}
            best, least = {name: told[name] for name in trials.names if name in told}, saved
        bound *= min(max(limit / error, 1 / SLACK), SLACK) if error else SLACK
    if len(best) == len(trials.names):
        return compilation, source.off(options)
    return compilation, source.without(options, best)


def _narrowed(blocks: dict[Block, Difference], trials: "_Trials", bound: float) -> Collection[Block]:
    """The blocks to keep in float32; those of several nodes are halved before, as long as trials last."""
    while True:
        kept = _kept(blocks, trials, bound)
        wide = [block for block in kept if len(block) > 1]
        if not wide or trials.left < 2 + ROUNDS:
            return kept
        widest = max(wide, key=lambda block: blocks[block].max_rel)
        del blocks[widest]
        middle = len(widest) // 2
        for half in (widest[:middle], widest[middle:]):
            blocks[half] = trials.moved(half)


def _kept(blocks: Mapping[Block, Difference], trials: "_Trials", bound: float) -> Collection[Block]:
    """Blocks without whose rounding the error is expected within the bound: those that lose least time.

    A knapsack of the others: their time, and the squares of their errors.
    """
    options = [
        (Option(trials.seconds(block), 0.0), Option(0.0, moved.max_rel**2)) for block, moved in blocks.items()
    ]
    chosen = choose(options, bound**2)
    kept = (0,) * len(blocks) if chosen is None else chosen.indices
    return [block for block, option in zip(blocks, kept, strict=True) if option == 0]


def _told(source: Source, block: Block, moved: Difference) -> str:
    others, (kept, what) = len(block) - 1, source.kept
    rounding = f"its {what} and that of {others} nearby move" if others else f"its {what} alone moves"
    return f"{kept}: {rounding} output {moved.name!r} by {moved.max_rel:.1e} of its maximum"


@dataclass
class _Trials:
    """Programs in which some nodes round, against the one in which none does."""

    compilation: Compilation
    options: Options
    compiler: Compiler
    inputs: Mapping[str, object]
    progress: Callable[[int, int], None]
    source: Source
    names: Block = field(init=False)  # of what may round
    left: int = field(init=False)  # programs that may still be measured

    def __post_init__(self) -> None:
        self.left = PROGRAMS
        # What an arena may take changes no sum.
        self.options = replace(self.options, prefer="latency", memory_budget=None, pareto=False)
        rounding, exact = self._program(self.options), self._program(self.source.off(self.options))
        self._expected = self._outputs(exact)
        self.names = _rounding(rounding.compilation, self.source)
        seconds = {step.group.name: step.choice.seconds for step in exact.steps}
        for step in rounding.steps:
            seconds[step.group.name] = seconds.get(step.group.name, 0.0) - step.choice.seconds
        self._saved = {name: max(seconds[name], 0.0) for name in self.names}

    def moved(self, rounding: Collection[str]) -> Difference:
        """The output that moves farthest from float32 when only these nodes round."""
        self.left -= 1
        self.progress(PROGRAMS - self.left, PROGRAMS)
        members = set(rounding)
        exact = {name: "another node is measured" for name in self.names if name not in members}
        found = self._outputs(self._program(self.source.without(self.options, exact)))
        return _farthest(self._expected, found)

    def distance(self, expected: Mapping[str, object]) -> float:
        """Largest difference of the outputs from these when no node rounds, in their maximum."""
        return _farthest(expected, self._expected).max_rel

    def seconds(self, rounding: Collection[str]) -> float:
        """Seconds saved when these nodes round."""
        return math.fsum((MIN_SAVED, *(self._saved[name] for name in rounding)))

    def _program(self, options: Options) -> Program:
        return session.runnable(self.compilation, options, self.compiler, self.inputs)[1]

    def _outputs(self, program: Program) -> dict[str, object]:
        free = {value.name for value in program.compilation.graph.inputs}
        with closing(session.bound(program, self.compiler)) as executor:
            return executor.run({k: v for k, v in self.inputs.items() if k in free})


def _farthest(expected: Mapping[str, object], found: Mapping[str, object]) -> Difference:
    """The output that differs most."""
    try:
        return max(compare(expected, found, 0.0), key=lambda d: d.max_rel)
    except NumericsError as error:
        return Difference(error.pointer.removeprefix("value:"), math.inf, math.inf, 0.0)


def _rounding(compilation: Compilation, source: Source) -> Block:
    """Names of the groups that an implementation with the source applies to, in graph order."""
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    backends = compilation.target.backends
    return tuple(
        group.name
        for group in compilation.plan.groups
        if (source.nested and any(map(graph.bodies, group.nodes)))
        or any(
            source.of(candidate) and candidate.rejection_reason(group, context) is None
            for candidate in compilation.registry.candidates(group.op, backends)
        )
    )
