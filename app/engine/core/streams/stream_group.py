"""Groups of a stream: what runs in turn on strips of rows, and in which loops."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.plan import Choice
from app.engine.core.streams.strips import HEADS, StripRow
from app.engine.memory.rows.workspace import Workspace

STREAM = "Stream"  # the operator of a group that runs others in strips


@dataclass(frozen=True, slots=True, eq=False)
class StreamPart:
    """A group of a stream.

    Attributes:
        choice: of the implementation that computes all rows at once.
        strips: how it computes some.
        rows: that a call computes at most.
    """

    group: Group
    choice: Choice
    strips: StripRow
    rows: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StreamGroup(Group):
    """Groups that run on strips of rows as one step; what they hand on are rings of rows.

    Attributes:
        parts: in the order of operators of `memory`.
        memory: rings, scratch and loops, by names of values.
        images: the values by these names.
    """

    parts: tuple[StreamPart, ...]
    memory: Workspace
    images: Mapping[str, ir.Value]

    @property
    def by_heads(self) -> bool:
        """True if strips are heads of attention: a turn is a head of all parts."""
        return self.parts[0].strips.axis == HEADS
