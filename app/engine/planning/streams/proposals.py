"""Streams that save memory: consecutive groups of a plan, cut into segments by bytes and seconds.

Seconds are predicted from those of whole groups, see `app.engine.cost.strips`.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.engine.buffers.graph_order import dependencies, stable_order
from app.engine.core import graph
from app.engine.core.cache import Cache
from app.engine.core.calls import workspace_bytes
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.stream_group import StreamPart
from app.engine.core.streams.strips import IMAGE, MATRIX
from app.engine.cost.strips import predicted
from app.engine.memory.rows.cuts import Counted, Cuts, Limits, pareto_cuts
from app.engine.memory.rows.geometry import RowOperator, Segment
from app.engine.passes.streams.segments import segment_of, strips_of
from app.engine.types.options import Denied, Streamed

# Pixels of an output that a strip has at least, in whole rows: of images; a row of a matrix counts as one.
SIZES = {IMAGE: (1, 56, 112, 224, 448), MATRIX: (1, 48, 96, 192, 384)}
CROSSING = 2  # values at a cut of a segment
MOST = 8  # proposals, evenly over their bytes
NEAR = 3  # the largest within a goal beside them; arenas are somewhat larger than what cuts predict

Streams = tuple[Streamed, ...]


def proposals(
    program: Program, goals: Sequence[int] = (), axes: Sequence[str] = (IMAGE,)
) -> tuple[Streams, ...]:
    """Streams in place of groups of a plan that has none, of more bytes and less time first.

    Among them are those that are predicted to be the fastest within each of the goals, in bytes.
    A plan for a region of shapes has none: rings have the rows of one shape.
    """
    if program.compilation.bindings.region is not None:
        return ()
    runs = [_Run(parts, program.compilation) for parts in consecutive(program, axes)]
    labels = {run: run.cuts() for run in runs}
    # A plan takes at least as much as the run that takes most: fewer bytes of the others are only slower.
    least = max((min(cuts.nbytes for cuts in found) for found in labels.values() if found), default=0)
    sizes = {max(cuts.nbytes, least) for found in labels.values() for cuts in found}
    limits = sorted(sizes, reverse=True)
    chosen = {*limits[:: max(len(limits) // MOST, 1)], *limits[-1:]}
    for goal in goals:
        chosen |= {*[limit for limit in limits if limit <= goal][:NEAR]}
    found: dict[Streams, None] = {}
    for limit in sorted(chosen, reverse=True):
        streams = [_streams(_fastest(cuts, limit)) for cuts in labels.values() if cuts]
        if made := tuple(s for one in streams for s in one):
            found[made] = None
    return tuple(found)


def with_fewer_rows(program: Program, streams: Streams) -> tuple[frozenset[Denied], ...]:
    """Rows to deny so that groups of streams are computed by others, whose strips have fewer rows at least.

    Winograd's rows of tiles hold rings of as many. First the tallest are denied in the stream of the largest
    image, then all of more than a row in every stream.
    """
    within = {name for stream in streams for name in stream.groups}
    groups_in = (s.group for s in program.steps if s.group.name in within)
    nbytes = {group.name: max(map(graph.nbytes, group.outputs)) for group in groups_in}
    largest = max((s.groups for s in streams), key=lambda names: max(nbytes[n] for n in names), default=())
    registry = program.compilation.registry.strips
    chosen = {s.group.name: s.choice.implementation.name for s in program.steps}
    found: dict[frozenset[Denied], None] = {}
    for groups in (largest, tuple(name for s in streams for name in s.groups)):
        tallest = max((registry[chosen[name]].step for name in groups), default=1)
        least = tallest if groups is largest else 2
        rows = [name for name, row in registry.items() if row.step >= least]
        if tallest > 1:
            found[frozenset((group, name) for group in groups for name in rows)] = None
    return tuple(found)


def consecutive(program: Program, axes: Sequence[str] = (IMAGE,)) -> list[list[StreamPart]]:
    """Steps that follow one another and have strips of rows along the same of these axes; two at least.

    None of them reads all of what another one makes row by row. What is computed again stands before its
    readers in the graph; orders of whole values may move it away from them for a few bytes.
    """
    compilation = program.compilation
    steps = program.steps
    if compilation.concessions.recompute:
        by_group = {step.group: step for step in steps}
        steps = tuple(by_group[group] for group in stable_order(dependencies(compilation)))
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    runs: list[list[StreamPart]] = [[]]
    for step in steps:
        strips = strips_of(step.group, step.choice, compilation, context)
        if isinstance(strips, str) or strips.axis not in axes:
            runs.append([])
            continue
        if runs[-1] and runs[-1][-1].strips.axis != strips.axis:
            runs.append([])
        by_rows = {v for v, _ in strips.reads(step.group, context)}
        whole = {v for v in step.group.inputs if v not in by_rows}
        made = [i for i, part in enumerate(runs[-1], start=1) if whole.intersection(part.group.outputs)]
        if made:  # what comes after the last of these is of the same run as their reader
            runs[-1], after = runs[-1][: made[-1]], runs[-1][made[-1] :]
            runs.append(after)
        runs[-1].append(StreamPart(step.group, step.choice, strips, strips.step))
    return [run for run in runs if len(run) > 1]


def _fastest(cuts: Sequence[Cuts], limit: int) -> Cuts:
    """Of those that take no more than the limit, or of the smallest, the fastest."""
    least = max(limit, min(c.nbytes for c in cuts))
    return min((c for c in cuts if c.nbytes <= least), key=lambda c: (c.seconds, c.nbytes))


def _streams(cuts: Cuts) -> Streams:
    """Segments of more than one group."""
    return tuple(
        Streamed(
            tuple(o.name for o in part.segment.operators), tuple(o.strip for o in part.segment.operators)
        )
        for part in cuts.parts
        if part.end - part.begin > 1
    )


class _Run:
    """Consecutive groups as one segment, to be cut."""

    def __init__(self, parts: Sequence[StreamPart], compilation: Compilation) -> None:
        self._parts = {part.group.name: part for part in parts}
        self._compilation = compilation
        self._context = PlanningContext.of(compilation, compilation.plan.require("storage"))
        self._segment = segment_of(parts, compilation)
        self._cache = Cache()

    def cuts(self) -> tuple[Cuts, ...]:
        """Ways to cut it; none where one of its groups reads all of what another one makes."""
        if isinstance(self._segment, str):
            return ()
        segment, images = self._segment
        main = self._compilation.graph
        free = frozenset(name for name, v in images.items() if v in main.inputs or v in main.outputs)
        whole = self._stripped(segment, 0)
        anywhere = all(part.strips.anywhere for part in self._parts.values())
        counted = Counted.INNER if anywhere else Counted.RINGS
        return pareto_cuts(
            whole,
            free,
            SIZES[next(iter(self._parts.values())).strips.axis],
            self._seconds,
            self._stripped,
            counted,
            self._seconds_of_groups,
            Limits(CROSSING),
        )

    def _stripped(self, segment: Segment, pixels: int) -> Segment:
        """The segment in strips of as many pixels at least; in none for no pixels."""
        return replace(segment, operators=tuple(self._in_strips(o, pixels) for o in segment.operators))

    def _in_strips(self, operator: RowOperator, pixels: int) -> RowOperator:
        return self._cache.result((operator.name, pixels), lambda: self._cut(operator, pixels))

    def _cut(self, operator: RowOperator, pixels: int) -> RowOperator:
        part = self._parts[operator.name]
        height, columns = part.strips.lines(part.group)
        if not pixels:
            scratch = workspace_bytes(part.choice.calls, self._context.threads)
            return replace(operator, strip=height, scratch=scratch)
        step = part.strips.step
        rows = min(-(-pixels // (columns * step)), -(-height // step)) * step
        tuned = replace(self._context, tuning=part.choice.tuning)
        return replace(operator, strip=rows, scratch=part.strips.scratch(part.group, tuned, rows))

    def _seconds_of_groups(self, segment: Segment) -> float:
        """Predicted seconds of the groups without strips, which take no less in them."""
        return sum(self._parts[o.name].choice.seconds for o in segment.operators)

    def _seconds(self, segment: Segment) -> float:
        """Predicted seconds of a segment."""
        if len(segment.operators) == 1:
            return self._parts[segment.operators[0].name].choice.seconds
        return sum(self._operator_seconds(o.name, o.strip) for o in segment.operators)

    def _operator_seconds(self, name: str, strip: int) -> float:
        part = self._parts[name]
        calls = -(-part.strips.lines(part.group)[0] // strip)
        target, threads = self._compilation.target, self._context.threads
        return self._cache.result((name, "seconds", calls), lambda: predicted(part, calls, target, threads))
