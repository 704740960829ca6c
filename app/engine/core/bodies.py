"""The bodies of control flow within a plan, by path: `node/attribute`, in one another as deep as they go."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.engine.core.calls import Body, planned_bodies
from app.engine.core.group import Group
from app.engine.core.plan import Compilation


@dataclass(frozen=True, slots=True)
class Nested:
    """A planned body of a step.

    Attributes:
        parent: path of the step that runs it.
        step: index of the step of the whole plan within which it runs.
        offset: byte of the whole arena where its memory begins.
        turns: times that one inference runs it, as far as that is known.
        span: where its steps are drawn on the axis of the steps of the whole plan, half-open.
    """

    parent: str
    step: int
    body: Body
    offset: int
    turns: int
    span: tuple[float, float]

    @property
    def path(self) -> str:
        """`node/attribute`, after the path of the body around it."""
        return f"{self.parent}/{self.body.name}"

    @property
    def compilation(self) -> Compilation:
        """The plan of the body."""
        return self.body.program.compilation


def of_group(group: Group, compilation: Compilation) -> tuple[Body, ...]:
    """The planned bodies of a group's calls."""
    calls = compilation.plan.require("implementation")[group].calls
    return tuple(body for call in calls for body in planned_bodies(call))


def walk(compilation: Compilation, around: Nested | None = None) -> Iterator[Nested]:
    """Every body of a plan, each before those within it, in order of execution."""
    order, placement = compilation.plan.require("order"), compilation.plan.require("placement")
    for index, group in enumerate(order):
        bodies = of_group(group, compilation)
        parent, step, offset, turns = group.name, index, 0, 1
        first, last = float(index), float(index + 1)
        if around is not None:
            parent, step = f"{around.path}/{group.name}", around.step
            offset, turns = around.offset, around.turns
            width = (around.span[1] - around.span[0]) / len(order)
            first, last = (around.span[0] + width * at for at in (first, last))
        share = (last - first) / max(len(bodies), 1)
        for k, body in enumerate(bodies):
            span = first + k * share, first + (k + 1) * share
            at = offset + placement.bodies.get(group, 0)
            found = Nested(parent, step, body, at, turns * body.turns, span)
            yield found
            yield from walk(found.compilation, found)


def predicted(compilation: Compilation) -> dict[str, float]:
    """Predicted seconds of every step in a body by path, in all turns of one inference."""
    return {
        f"{nested.path}/{step.group.name}": nested.turns * step.choice.seconds
        for nested in walk(compilation)
        for step in nested.body.program.steps
    }
