"""Streams of transformers: products in strips of rows, and attention head by head.

Plans often have products without strips, such as Strassen's: a plan in strips begins with those rows denied.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.program import Program
from app.engine.core.registry import PlanningContext
from app.engine.core.streams.strips import IMAGE, MATRIX, StripRow
from app.engine.memory.rows.geometry import ROW
from app.engine.passes.streams.segments import strips_of
from app.engine.planning.streams.proposals import Streams, consecutive, proposals
from app.engine.types.options import Denied, Streamed

StripsOf: TypeAlias = Callable[[Group], StripRow | None]


def denied_for_strips(program: Program) -> frozenset[Denied]:
    """Rows to deny so that products in a chain, and attention with its projections, have strips.

    Empty where there are none, or all have them, and of a plan for a region of shapes.
    """
    if program.compilation.bindings.region is not None:
        return frozenset()
    able = _Able(program)
    groups = [step.group for step in program.steps]
    made = {v: group for group in groups if able.rows(group) for v in group.outputs}
    pairs = [(made[v], group) for group in made.values() for v in group.inputs if v in made]
    wanted = [(group, False) for pair in pairs for group in pair]
    wanted += [(group, True) for members in _by_heads(program, able.heads) for group in members]
    return frozenset(
        (group.name, row) for group, heads in dict.fromkeys(wanted) for row in able.others(group, heads=heads)
    )


def in_matrix_strips(program: Program, goals: tuple[int, ...] = ()) -> tuple[Streams, ...]:
    """Streams of a plan: attention by heads, alone and beside its proposals in rows, the smallest last.

    Empty where no products follow one another and no attention has strips, and for a region of shapes.
    """
    compilation = program.compilation
    if compilation.bindings.region is not None:
        return ()
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    chosen = {step.group: step.choice for step in program.steps}

    def heads(group: Group) -> StripRow | None:
        found = strips_of(group, chosen[group], compilation, context, heads=True)
        return None if isinstance(found, str) else found

    streams = tuple(
        Streamed(tuple(group.name for group in members), (1,) * len(members), heads=True)
        for members in _by_heads(program, heads)
    )
    if not streams and not consecutive(program, (MATRIX,)):
        return ()
    taken = {name for stream in streams for name in stream.groups}
    in_rows = (
        tuple(stream for stream in rows if not taken & {*stream.groups})
        for rows in ((), *proposals(program, goals, (IMAGE, MATRIX)))
    )
    return tuple(dict.fromkeys(found for rows in in_rows if (found := (*streams, *rows))))


def _by_heads(program: Program, strips: StripsOf) -> Iterator[tuple[Group, ...]]:
    """Attention with the projections that nothing else reads, in the order of the program."""
    compilation = program.compilation
    context = PlanningContext.of(compilation, compilation.plan.require("storage"))
    made = {v: step.group for step in program.steps for v in step.group.outputs}
    readers: dict[ir.Value, int] = dict.fromkeys(compilation.graph.outputs, 2)
    for step in program.steps:
        for value in step.group.inputs:
            readers[value] = readers.get(value, 0) + 1
    for step in program.steps:
        row = strips(step.group)
        if row is None or row.heads is None:
            continue
        operands = [v for v, rows in row.reads(step.group, context) if rows == ROW]
        projections = [made.get(v) for v in operands]
        members = tuple(g for g in projections if g is not None and strips(g) is not None)
        if len(members) == len(operands) and all(readers[v] == 1 for v in operands):
            yield (*members, step.group)


class _Able:
    """Implementations of groups that have strips, chosen or not."""

    def __init__(self, program: Program) -> None:
        compilation = program.compilation
        self._registry, self._backends = compilation.registry, compilation.target.backends
        self._context = PlanningContext.of(compilation, compilation.plan.require("storage"))

    def rows(self, group: Group) -> StripRow | None:
        """Strips of rows of a matrix."""
        found = self._found(group, heads=False)
        return None if found is None or found.axis != MATRIX else found

    def heads(self, group: Group) -> StripRow | None:
        """Strips that are heads."""
        return self._found(group, heads=True)

    def others(self, group: Group, *, heads: bool) -> list[str]:
        """Implementations of a group that have none."""
        candidates = self._registry.candidates(group.op, self._backends)
        return [row.name for row in candidates if row.name not in self._strips(heads=heads)]

    def _strips(self, *, heads: bool) -> Mapping[str, StripRow]:
        return self._registry.heads if heads else self._registry.strips

    def _found(self, group: Group, *, heads: bool) -> StripRow | None:
        for row in self._registry.candidates(group.op, self._backends):
            strips = self._strips(heads=heads).get(row.name)
            if strips is None or row.rejection(group, self._context):
                continue
            if strips.rejection(group, self._context) is None:
                return strips
        return None
