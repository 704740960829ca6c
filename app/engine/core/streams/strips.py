"""Strips of rows: how kernels of an implementation compute some rows of an image at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.memory.rows.geometry import RowMap

if TYPE_CHECKING:
    from app.engine.core.registry import PlanningContext


@dataclass(frozen=True, slots=True, eq=False)
class RowsPlace:
    """Where rows of a value lie: all of them, or those of a ring; row i in slot i % rows. Or as a table says.

    Attributes:
        argument: the value, or the workspace that holds its rows.
        offset: byte of the argument where the rows of the first block of channels begin.
        rows: that a block of channels has there.
        moves: the first row that a call reads or writes lies in slot 0.
        first: number of the entry of row 0 in the table of the stream.
        plane: elements from a block of channels, or a channel, to the next.
    """

    argument: Argument
    offset: int
    rows: int
    moves: bool
    first: int
    plane: int


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """Facts that the calls of a group in a stream have in common.

    Attributes:
        rows: of the output that a call computes at most.
        places: of the images that the group reads and writes.
        cursors: int64 by number of the operator: the row where its next call begins.
        operator: number of the group.
        memory: workspace of the stream.
        scratch: byte of it where the group's scratch begins.
        table: int32, elements from the argument of a place to each of its rows.
        shares: parts of a call, for threads; of more than one, a call of its own advances the cursor.
    """

    rows: int
    places: Mapping[ir.Value, RowsPlace]
    cursors: Workspace
    operator: int
    memory: Workspace
    scratch: int
    table: Constant
    shares: int


# Kinds of rows: lines of [1, C, H, W], rows of [..., M, N], columns of a head of attention of all tokens.
IMAGE, MATRIX, HEADS = "image", "matrix", "heads"

RowMaps: TypeAlias = tuple[tuple[ir.Value, RowMap], ...]
CallOf: TypeAlias = Callable[[int], KernelCall]  # from a number of rows to the call that computes so many


@dataclass(frozen=True, slots=True)
class StripRow:
    """How an implementation computes strips of rows.

    Attributes:
        name: of the implementation; results are the same bit by bit.
        rejection: reason why the group cannot be computed so, or None; the implementation applies to it.
        reads: images that the group reads, in order, and which of their rows a row of the output needs.
        scratch: bytes that a call of so many rows needs while it runs.
        lower: the call for a number of rows, at most those of the strip.
        step: what the rows of a call are a multiple of, and begin at, but at the end of the image.
        expansion: bytes of its weights for a byte of those of the model.
        sums: rows of its input are turns of a sum, or another reduction, that is its output.
        anywhere: rows may lie in any place, which it reads from a table; otherwise in rings.
        axis: what rows are; those of a stream are all the same.
        heads: of a group whose rows are heads, if it tells their number.
        shared: several threads may run the call, which then leaves its cursor to a call of its own.
        pace: (a, b), measured: strips of r rows take a + b / r times as long as all rows at once, beside what
            `app.engine.cost.strips` predicts for every kernel.
    """

    name: str
    rejection: Callable[[Group, "PlanningContext"], str | None]
    reads: Callable[[Group, "PlanningContext"], RowMaps]
    scratch: Callable[[Group, "PlanningContext", int], int]
    lower: Callable[[Group, "PlanningContext", Strip], CallOf]
    step: int = 1
    expansion: float = 1.0
    sums: bool = False
    anywhere: bool = False
    axis: str = IMAGE
    shared: bool = False
    heads: Callable[[Group], int] | None = None
    pace: tuple[float, float] = (1.0, 0.0)

    def lines(self, group: Group) -> tuple[int, int]:
        """Rows that a group computes in all, or adds up, and the pixels of each."""
        return lines_of(graph.operand(group.anchor, 0) if self.sums else group.outputs[0], self.axis)


def lines_of(value: ir.Value, axis: str) -> tuple[int, int]:
    """Rows of a value, and the pixels of each: columns of an image, one of a matrix."""
    shape = graph.static_shape(value)
    if axis == IMAGE:
        return shape[2], shape[3]
    return graph.elements(value) // max(shape[-1], 1), 1
