"""Bytes that the rows of a group need at its step: which to deny for a smaller arena, and a proved bound.

The bound relaxes the choice of rows: every value has the bytes of its smallest layout, every step the
workspace of its leanest row, whatever may share bytes does, and conversions are free. The least peak of any
order under these terms (`app.engine.memory.optimal_order`, or a bound of it, `app.engine.buffers.step_cuts`)
is a lower bound for all choices of rows.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.buffers.graph_order import dependencies
from app.engine.buffers.step_cuts import LARGEST, StepCuts
from app.engine.core import graph
from app.engine.core.calls import workspace_bytes
from app.engine.core.group import Group
from app.engine.core.plan import Choice
from app.engine.core.program import Program
from app.engine.core.registry import Implementation, PlanningContext, no_views
from app.engine.memory.beam_order import Step, least_peak
from app.engine.planning.rematerialization import is_conversion, origin
from app.engine.types.layout import Layout, plain
from app.engine.types.options import Denied

STATES = 1 << 16  # of a segment that the proof of the bound may reach


class RowMemory:
    """The rows that may compute the groups of a program, and what each needs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.compilation = program.compilation
        self.context = PlanningContext.of(self.compilation, self.compilation.plan.require("storage"))
        self.alignment = self.compilation.target.memories[0].alignment
        self.layout: Mapping[ir.Value, Layout] = self.compilation.plan.require("layout")
        self.maker = {v: s.group for s in program.steps for n in s.group.nodes for v in n.outputs}
        self.readers: dict[ir.Value, list[Group]] = {}
        for step in program.steps:
            for value in step.group.inputs:
                self.readers.setdefault(value, []).append(step.group)
        main = self.compilation.graph
        # Values whose row-major bytes are the caller's.
        self.outside = {origin(v) for v in (*main.inputs, *main.outputs)}
        self.last: dict[str, int] = {}
        for buffer in program.placement.buffers:
            for part in buffer.slices:
                self.last[part.value] = max(part.last, self.last.get(part.value, -1))
        self._rows: dict[Group, tuple[Implementation, ...]] = {}
        self._needs: dict[tuple[Group, Implementation], int] = {}
        self._scratch: dict[tuple[Group, Implementation], int] = {}

    def rows(self, group: Group) -> tuple[Implementation, ...]:
        """Those of the group's backend that may compute it, in some layout."""
        if group not in self._rows:
            partition, target = self.compilation.plan.require("partition"), self.compilation.target
            backend = partition[group.anchor].backend
            candidates = self.compilation.registry.candidates(group.op, target.backends)
            self._rows[group] = tuple(
                row
                for row in candidates
                if row.backend == backend and row.rejection_reason(group, self.context) is None
            )
        return self._rows[group]

    def nbytes(self, value: ir.Value, layout: Layout | None) -> int:
        """Bytes of a value in the arena, in this layout; None is row-major."""
        layout = layout or plain(len(graph.static_shape(value)))
        if layout.is_plain and origin(value) in self.outside:
            return 0
        for context in (value, origin(value)):
            if self.layout.get(context) == layout:
                at = self.program.placement.values.get(context)
                return 0 if at is not None and at.space != "arena" else value_bytes(context, self.compilation)
        return graph.element_type(value).itemsize * layout.elements(graph.static_shape(value))

    def held(self, row: Implementation, group: Group) -> dict[ir.Value, int]:
        """Bytes of what the group reads and writes, in the layouts of the row."""
        required_layouts = row.required_layouts(group, self.context)
        return {v: self.nbytes(v, required_layouts.get(v)) for v in self._planned(group)}

    def scratch(self, row: Implementation, group: Group) -> int:
        """Bytes of workspace of a row."""
        if (group, row) not in self._scratch:
            choice = self._choice(group)
            # The rows of the reference evaluator plan bodies when they are lowered.
            chosen = row is choice.implementation or row.op == "*"
            calls = choice.calls if chosen else row.lower(group, self.context)
            self._scratch[group, row] = workspace_bytes(calls, self.context.threads, self.alignment)
        return self._scratch[group, row]

    def need(self, row: Implementation, group: Group, step: int) -> int:
        """Bytes in use at the group's step for the row alone, what waits for later steps left out."""
        if (group, row) not in self._needs:
            held = {v: self._rounded(n) for v, n in self.held(row, group).items()}
            total = sum(held.values()) + self.scratch(row, group)
            spared: set[ir.Value] = set()
            for _, view, _ in row.views(group, self.context):
                if view not in spared:
                    total -= held.get(view, 0)
                    spared.add(view)
            for read, written in self._inplace(row, group):
                dies = self.last.get(read.name or "", -1) <= step
                if dies and not spared & {read, written} and held.get(read, 0) >= held.get(written, 0):
                    total -= held.get(written, 0)
                    spared |= {read, written}
            self._needs[group, row] = total
        return self._needs[group, row]

    def denials(self, limit: int) -> list[frozenset[Denied]]:
        """Sets of rows without which less may be in use at the steps that use more than `limit` bytes.

        The first denies rows by what they need at such a step; the second adds those that write what waits
        there in larger layouts; the others add those that let parts lie in a whole which lives through it,
        or that have a value row-major, or not, where it is alive both ways; the last the rows chosen there.
        """
        live = self._live()
        worst = max(live, default=0)
        over = [s for s in self.program.steps if live[s.index] > limit] or [
            s for s in self.program.steps if live[s.index] == worst
        ]
        own: set[Denied] = set()
        chosen: set[Denied] = set()
        wide: set[Denied] = set()
        joined: set[Denied] = set()
        twice: dict[bool, set[Denied]] = {True: set(), False: set()}  # by whether it is row-major
        for step in over:
            group, index = step.group, step.index
            if not is_conversion(group.anchor):
                through = live[index] - self.need(step.choice.implementation, group, index)
                own |= self._needing(group, index, limit - through)
                chosen |= (
                    {(group.name, step.choice.implementation.name)} if len(self.rows(group)) > 1 else set()
                )
            touched = {*group.inputs, *group.outputs}
            alive = self._alive(index)
            ways = Counter(map(origin, alive))
            for value in alive:
                if value not in touched:
                    wide |= self._in_more(value)
                if ways[origin(value)] > 1 and value in self.layout:
                    users = twice[self.layout[value].is_plain]
                    users |= {d for user in self._users(value) for d in self._in_layout(user, value)}
                for user in self._users(value):
                    row = self._choice(user).implementation
                    if row.partial:
                        joined.add((user.name, row.name))
        both = own | wide
        found = [own, both, both | joined, *(both | users for users in twice.values()), chosen]
        return list(dict.fromkeys(frozenset(denied) for denied in found if denied))

    @cached_property
    def bound(self) -> int | None:
        """Bytes that no rows for these groups stay below, in any order of theirs.

        None where a row asks for a memory: what is there is not in the first, and what is copied is in both.
        """
        every = ((group, row) for group in self.program.compilation.plan.groups for row in self.rows(group))
        if any(row.memories(group, self.context) for group, row in every):
            return None
        from app.engine.memory.optimal_order import least_order  # imports numba

        steps, sizes = self._relaxed()
        found = least_order(steps, sizes, STATES)
        if found:
            return found.lower_bound
        if len(steps) > LARGEST:
            return least_peak(steps, sizes)
        return StepCuts(steps, sizes).bound(self.program.placement.solution.peak)

    def _rounded(self, nbytes: int) -> int:
        return -(-nbytes // self.alignment) * self.alignment

    def _choice(self, group: Group) -> Choice:
        return self.compilation.plan.require("implementation")[group]

    def _inplace(self, row: Implementation, group: Group) -> tuple[tuple[ir.Value, ir.Value], ...]:
        return row.inplace(group, self.context) if self.compilation.options.inplace else ()

    def _planned(self, group: Group) -> list[ir.Value]:
        """Inputs and outputs of the group that are planned."""
        values = dict.fromkeys((*group.inputs, *group.outputs))
        return [v for v in values if v.name and not graph.is_constant(v) and not graph.is_dynamic(v)]

    def misjudged(self) -> frozenset[Denied]:
        """Rows of views that layouts were chosen for, where memory planning had no place for the views."""
        return frozenset(
            (step.group.name, row.name)
            for step in self.program.steps
            if not step.choice.views
            for row in self.rows(step.group)
            if row.views is not no_views and row is not step.choice.implementation
        )

    def _live(self) -> list[int]:
        """Bytes in use in the first memory, by step."""
        first = self.compilation.target.memories[0].name
        live = [0] * len(self.program.steps)
        for buffer in (b for b in self.program.placement.buffers if b.memory == first):
            for span in buffer.spans:
                for step in range(span.first, span.last + 1):
                    live[step] += self._rounded(span.nbytes)
        return live

    def _alive(self, step: int) -> list[ir.Value]:
        named = {
            part.value
            for buffer in self.program.placement.buffers
            for part in buffer.slices
            if part.first <= step <= part.last
        }
        return [v for v in self.program.placement.values if (v.name or "") in named]

    def _needing(self, group: Group, step: int, room: int) -> set[Denied]:
        """Rows that need more than there is room; where all do, all but the leanest."""
        needs = {row: self.need(row, group, step) for row in self.rows(group)}
        most = max(room, min(needs.values(), default=0))
        return {(group.name, row.name) for row, needed in needs.items() if needed > most}

    def _users(self, value: ir.Value) -> list[Group]:
        """Groups that make and read a value, other than conversions."""
        groups = (*self.readers.get(value, ()), *filter(None, [self.maker.get(value)]))
        return [group for group in groups if not is_conversion(group.anchor)]

    def _in_layout(self, group: Group, value: ir.Value) -> set[Denied]:
        """Rows that have a value in the layout that it has; none if all have."""
        here, row_major = self.layout[value], plain(len(graph.static_shape(value)))
        found = {
            (group.name, row.name)
            for row in self.rows(group)
            if row.required_layouts(group, self.context).get(value, row_major) == here
        }
        return found if len(found) < len(self.rows(group)) else set()

    def _in_more(self, value: ir.Value) -> set[Denied]:
        """Rows that write or read a value in more bytes than others of their group would."""
        found: set[Denied] = set()
        for group in self._users(value):
            sizes = {row: self.held(row, group).get(value, 0) for row in self.rows(group)}
            least = min(sizes.values(), default=0)
            if self.nbytes(value, self.layout.get(value)) > least:
                found |= {(group.name, row.name) for row, nbytes in sizes.items() if nbytes > least}
        return found

    def _relaxed(self) -> tuple[list[Step], list[int]]:
        """Steps and bytes by storage under the terms of the bound, in the order of the program."""
        groups = [s.group for s in self.program.steps if not is_conversion(s.group.anchor)]
        least: dict[ir.Value, int] = {}  # by origin
        for group in groups:
            for row in self.rows(group):
                for value, nbytes in self.held(row, group).items():
                    at = origin(value)
                    least[at] = min(nbytes, least.get(at, nbytes))
        atoms, sizes = self._atoms(groups, least)
        needs = dependencies(self.compilation)
        position = {group: i for i, group in enumerate(groups)}

        def before(group: Group) -> set[int]:
            found: set[int] = set()
            for other in needs[group]:
                found |= before(other) if is_conversion(other.anchor) else {position[other]}
            return found

        steps = []
        for group in groups:
            values = list(dict.fromkeys(map(origin, self._planned(group))))
            pairs, saved = self._sharing(group, atoms, sizes)
            extra = min((self._extra(row, group, least) for row in self.rows(group)), default=0)
            touches = tuple(dict.fromkeys(a for v in values for a in atoms.get(v, ())))
            steps.append(Step(tuple(sorted(before(group))), touches, pairs, extra - saved, group.name))
        return steps, sizes

    def _extra(self, row: Implementation, group: Group, least: Mapping[ir.Value, int]) -> int:
        """Workspace of a row, and what its layouts take beyond the least; not of what shares bytes."""
        shared = {v for pair in self._inplace(row, group) for v in pair[1:]}
        shared |= {v for view in row.views(group, self.context) for v in view[:2]}
        more = 0
        for value, nbytes in self.held(row, group).items():
            at = origin(value)
            # What may lie in the caller's memory is there; only another layout of what must be is here.
            if value not in shared and (least[at] or at in self.outside):
                more += max(nbytes - least[at], 0)
        return self.scratch(row, group) + more

    def _sharing(
        self, group: Group, atoms: Mapping[ir.Value, tuple[int, ...]], sizes: list[int]
    ) -> tuple[tuple[tuple[int, int], ...], int]:
        """In-place pairs that any row has; what is spared at most by those of several parts."""
        pairs: dict[tuple[int, int], None] = {}
        saved: dict[ir.Value, int] = {}
        for row in self.rows(group):
            for pair in self._inplace(row, group):
                read, written = (atoms.get(origin(v), ()) for v in pair)
                if len(read) == len(written) == 1 and sizes[read[0]] >= sizes[written[0]]:
                    pairs[read[0], written[0]] = None
                else:
                    saved[origin(pair[1])] = sum(sizes[a] for a in written)
        return tuple(pairs), sum(saved.values())

    def _given(self, groups: Iterable[Group]) -> set[ir.Value]:
        """Values that may lie in the caller's memory: what becomes an output in place, step by step back."""
        found = set(self.outside)
        for group in reversed(list(groups)):
            for row in self.rows(group):
                for pair in self._inplace(row, group):
                    read, written = map(origin, pair)
                    if written in found and graph.nbytes(read) <= graph.nbytes(written):
                        found.add(read)
        return found

    def _atoms(
        self, groups: Sequence[Group], least: dict[ir.Value, int]
    ) -> tuple[dict[ir.Value, tuple[int, ...]], list[int]]:
        """Values as sets of storages: a whole has those of the parts that may lie in it, and one for more.

        `least` is rounded up for what lies alone in its buffer, 0 for what may lie in the caller's memory.
        """
        inside: dict[ir.Value, dict[ir.Value, int]] = {}
        for group in groups:
            for row in self.rows(group):
                for source, view, offset in row.views(group, self.context):
                    whole, part = origin(source), origin(view)
                    if whole in least and part in least and whole is not part:
                        inside.setdefault(whole, {}).setdefault(part, offset)
        given = self._given(groups)
        joined = {v for whole, parts in inside.items() for v in (whole, *parts)}
        for value in least:
            least[value] = 0 if value in given else least[value]
            least[value] = least[value] if value in joined else self._rounded(least[value])
        sizes: list[int] = []
        atoms: dict[ir.Value, tuple[int, ...]] = {}

        def cut(value: ir.Value) -> tuple[int, ...]:
            if value not in atoms:
                atoms[value] = ()
                parts: list[int] = []
                end = 0
                for part, offset in sorted(inside.get(value, {}).items(), key=lambda at: at[1]):
                    if offset >= end:  # of parts that overlap the first counts
                        parts += [a for a in cut(part) if a not in parts]
                        end = offset + least[part]
                rest = max(least[value] - sum(sizes[a] for a in parts), 0)
                rest = 0 if given.intersection(inside.get(value, ())) else rest
                sizes.append(rest)
                atoms[value] = (*parts, len(sizes) - 1) if rest or not parts else tuple(parts)
            return atoms[value]

        for value in least:
            cut(value)
        # What lies in the caller's memory as a part of it, or has such a part, takes none of ours.
        for value in given:
            for atom in atoms.get(value, ()):
                sizes[atom] = 0
        return atoms, sizes
