"""A program: the plan as a sequence of steps over one arena, ready to be bound to memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.engine.core.calls import Call, HostCall, KernelCall, SubgraphCall, Workspace, planned_bodies
from app.engine.core.group import Group
from app.engine.core.placement import Placement
from app.engine.core.plan import Choice, Compilation

if TYPE_CHECKING:
    from app.kernels.cpu.runtime.compiler import Request

EVALUATOR = "app.engine.reference:"  # functions of calls of the reference evaluator begin so


@dataclass(frozen=True, slots=True)
class Step:
    """One group in its turn.

    `workspaces` are the arena offsets of the scratch memory of its calls, by identity of the
    Workspace argument.
    """

    index: int
    group: Group
    choice: Choice
    workspaces: dict[int, int]

    def __repr__(self) -> str:
        """Index, group and choice."""
        return f"Step({self.index}, {self.group!r}, {self.choice!r})"

    @property
    def calls(self) -> tuple[Call, ...]:
        """Calls in order; none for a view."""
        return self.choice.calls

    @property
    def is_host(self) -> bool:
        """True if Python runs it, outside the compiled driver."""
        return any(isinstance(c, HostCall | SubgraphCall) for c in self.calls)

    @property
    def is_control_flow(self) -> bool:
        """True if it runs bodies that are planned."""
        return any(planned_bodies(c) for c in self.calls)

    @property
    def is_fallback(self) -> bool:
        """True if the reference evaluator runs it, or one of its bodies."""
        return any(
            isinstance(c, HostCall) and (bool(c.evaluated) or c.function.startswith(EVALUATOR))
            for c in self.calls
        )

    @property
    def is_library(self) -> bool:
        """True if an external library runs it, a sub-graph as one call."""
        return any(isinstance(c, SubgraphCall) for c in self.calls)


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in order, and where their values live."""

    compilation: Compilation
    steps: tuple[Step, ...]
    placement: Placement

    def __repr__(self) -> str:
        """Number of steps, size of the arena, and the compilation."""
        return f"Program({len(self.steps)} steps, arena {self.arena_bytes} byte, {self.compilation!r})"

    @property
    def arena_bytes(self) -> int:
        """Size of the arena, all memories together."""
        return self.placement.arena_bytes

    @property
    def has_library(self) -> bool:
        """True if a step, or one of a body, is run by an external library."""
        bodies = (b for s in self.steps for c in s.calls for b in planned_bodies(c))
        return any(s.is_library for s in self.steps) or any(b.program.has_library for b in bodies)

    @property
    def unexecuted(self) -> tuple[Step, ...]:
        """Steps of backends without kernels, which can be planned and not run."""
        backends = self.compilation.registry.backends
        return tuple(
            s
            for s in self.steps
            if (row := backends.get(s.choice.implementation.backend)) is not None and not row.runs_here
        )

    @property
    def seconds(self) -> float:
        """Predicted or measured seconds of all steps, and of what slower memories cost."""
        return sum(step.choice.seconds for step in self.steps) + self.placement.delay

    @property
    def kernels(self) -> tuple["Request", ...]:
        """Every distinct kernel to compile: name, types, static arguments, takes_thread."""
        calls = [c for s in self.steps for c in s.calls]
        found = dict.fromkeys(c.request for c in calls if isinstance(c, KernelCall))
        return tuple(
            {**found, **dict.fromkeys(k for c in calls if isinstance(c, HostCall) for k in c.kernels)}
        )


def scratch(calls: tuple[Call, ...]) -> tuple[Workspace, ...]:
    """The Workspace arguments of a step in order; one that is passed twice is there twice."""
    return tuple(
        a for c in calls if isinstance(c, KernelCall) for a in c.arguments if isinstance(a, Workspace)
    )


def build(compilation: Compilation) -> Program:
    """The program of a compilation whose plan is complete."""
    plan = compilation.plan
    implementation, placement = plan.require("implementation"), plan.require("placement")
    steps = []
    for index, group in enumerate(plan.require("order")):
        choice = implementation[group]
        offsets = placement.workspaces.get(group, ())
        workspaces = {id(w): offset for w, offset in zip(scratch(choice.calls), offsets, strict=True)}
        steps.append(Step(index, group, choice, workspaces))
    return Program(compilation, tuple(steps), placement)
