"""Give every byte of a plan its place: storage graph, offsets, validation, budget."""

from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from app.engine.buffers.buffer_assignment import buffer_of
from app.engine.buffers.spill import Spread, demands, spread
from app.engine.core import graph
from app.engine.core.placement import BufferAssignment, Location, PlacedBuffer, Placement, Span
from app.engine.core.plan import COLUMNS, Compilation
from app.engine.memory.policies import replay
from app.engine.memory.problem import Problem, Solution, live_bytes, lower_bound, validate
from app.engine.types.errors import CapacityError

LISTED = 5  # live values that a message names


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """Write the placement; the order and the implementations are given.

    Attributes:
        failures: failed branches that the proof for buffers with parts may take, see
            `app.engine.memory.exact.partial_lifetimes`.
        policies: whether those of other systems are replayed, for the report.
    """

    failures: int = 0
    policies: bool = True

    name: ClassVar[str] = "plan_memory"
    reads: ClassVar[tuple[str, ...]] = ("implementation", "order", "buffers")
    writes: ClassVar[tuple[str, ...]] = ("placement",)
    keeps: ClassVar[tuple[str, ...]] = tuple(c for c in COLUMNS if c != "placement")

    def __call__(self, compilation: Compilation) -> Compilation:
        """The compilation with a validated placement.

        Raises:
            CapacityError: the plan needs more than `options.memory_budget`, or than the target has.
        """
        buffers = compilation.plan.require("buffers")
        storage, solution = buffers.assignment, buffers.solution
        if self.failures and not solution.proved and any(b.parts for b in storage.problem.buffers):
            from app.engine.memory.exact.partial_lifetimes import prove  # imports numba

            solution = prove(storage.problem, solution, self.failures)
        asked = compilation.options.memory_budget
        budget = compilation.target.budget if asked is None else asked
        found = Spread(solution, (), 0.0)
        wanted = demands(compilation)
        if wanted:
            found = _required(compilation, spread(compilation, storage, budget, wanted, spill=False))
        if found.solution.peak > budget and compilation.concessions.spill:
            found = spread(compilation, storage, budget, wanted, spill=True) or found
        solution = found.solution
        if found.solution.peak > budget and not compilation.concessions.unbounded:
            raise CapacityError(
                _shortage(compilation, storage, solution, budget), needed=solution.peak, available=budget
            )
        if not found.banks and not found.staged:
            validate(Problem(storage.problem.buffers, max(budget, solution.peak)), solution)
        if storage.unplanned:
            compilation = replace(compilation, notes=(*compilation.notes, _outside(storage, budget)))
        return compilation.with_plan(
            placement=_placement(compilation, storage, found, policies=self.policies)
        )


def _required(compilation: Compilation, found: Spread | None) -> Spread:
    """Places in the memories that steps ask for; each row checked that its own operands fit."""
    if found is None:
        further = compilation.target.memories[1:]
        sizes = ", ".join(f"{memory.name!r} {memory.size} byte" for memory in further)
        raise CapacityError(
            f"what steps ask for in further memories does not fit them: {sizes}",
            needed=max(memory.size for memory in further) + 1,
            available=max(memory.size for memory in further),
        )
    return found


def _placement(
    compilation: Compilation, storage: BufferAssignment, found: Spread, *, policies: bool
) -> Placement:
    first, *_ = compilation.target.memories
    offsets, memory = dict(found.solution.offsets), dict.fromkeys(found.solution.offsets, first.name)
    for bank in found.banks:
        offsets |= {i: bank.start + offset for i, offset in bank.solution.offsets.items()}
        memory |= dict.fromkeys(bank.solution.offsets, bank.memory)
    values: dict[ir.Value, Location] = {}
    buffers = []
    of = {b.id: b for b in storage.problem.buffers}
    for row in storage.storages:
        offset = offsets[row.id] if row.space == "arena" else 0
        for value, part in zip(row.values, row.slices, strict=True):
            values[value] = Location(row.space, offset + part.offset, part.nbytes, row.root)
        if row.space == "arena":
            names = tuple(v.name or "" for v in row.values)
            buffers.append(
                PlacedBuffer(
                    row.id,
                    "conversion" if all(map(_is_converted, row.values)) else "activation",
                    offset,
                    row.nbytes,
                    row.first,
                    row.last,
                    names,
                    row.reason,
                    row.slices,
                    tuple(Span(p.offset, p.size, p.lower, p.upper - 1) for p in of[row.id].parts),
                    memory[row.id],
                )
            )
    buffers += [
        PlacedBuffer(
            s.id, s.kind, offsets[s.id], s.nbytes, s.first, s.last, (), s.reason, memory=memory[s.id]
        )
        for s in (*storage.scratch, *found.staged)
    ]
    workspaces = {group: tuple(offsets[i] for i in ids) for group, ids in storage.workspaces.items()}
    ordered = tuple(sorted(buffers, key=lambda b: (b.first, b.offset, b.name)))
    kinds = {row.id: str(graph.dtype(row.values[0])) for row in storage.storages}
    replayed = tuple(replay(storage.problem.buffers, kinds)) if policies else ()
    activations = lower_bound(
        Problem(tuple(buffer_of(row, 1) for row in storage.storages if row.space == "arena"))
    )
    return Placement(
        values,
        workspaces,
        ordered,
        found.solution,
        storage.naive,
        activations,
        replayed,
        storage.unplanned,
        {group: offsets[i] for group, i in storage.bodies.items()},
        found.banks,
        found.seconds,
    )


def _is_converted(value: ir.Value) -> bool:
    """True if a value holds another in other bytes: an operator of the planner's own made it."""
    producer = value.producer()
    return producer is not None and producer.domain == "stowplan"


def _outside(storage: BufferAssignment, budget: int) -> str:
    """Note on what the comparison with the budget leaves out."""
    names = storage.unplanned
    listed = ", ".join(map(repr, names[:LISTED])) + (
        f" and {len(names) - LISTED} more" if names[LISTED:] else ""
    )
    return (
        f"memory: that all fits into the budget of {budget} byte is not proved: what {listed} takes is known "
        "only when the graph runs, and comes on top of the plan"
    )


def _shortage(compilation: Compilation, storage: BufferAssignment, solution: Solution, budget: int) -> str:
    """Message for a plan that does not fit: the sizes, the largest step, and the way out."""
    step, needed = max(live_bytes(storage.problem), key=lambda at: at[1])
    live = sorted(
        (b for b in storage.problem.buffers if b.lower <= step < b.upper and b.size),
        key=lambda b: (-b.extent, b.id),
    )
    listed = ", ".join(f"{b.id!r} {b.extent} byte" for b in live[:LISTED])
    more = f" and {len(live) - LISTED} more" if len(live) > LISTED else ""
    memory = compilation.target.memories[0].name
    return (
        f"memory {memory!r}: the budget is {budget} byte, the plan needs {solution.peak} byte; "
        f"its largest step {step} {compilation.plan.require('order')[step].name!r} alone needs {needed} byte "
        f"({len(live)} live: {listed}{more}); raise memory_budget"
    )
