"""Rows of values and what operators read of them: a streamed segment as numbers.

A row is what is computed and freed: a line of an image, a token, a block of hidden channels. Rows are
numbered from 0; intervals are half-open; sizes are bytes of all channels and columns of a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RowMap:
    """Rows of an input that a row of the output reads.

    They are floor((row * step + first) / per) to floor((row * step + last) / per), both read; what lies
    outside the input is padding.
    """

    step: int = 1
    per: int = 1
    first: int = 0
    last: int = 0

    def __post_init__(self) -> None:
        if self.per < 1 or self.step < 0 or self.first > self.last:
            raise ValueError(f"row map needs per >= 1, step >= 0 and first <= last, found {self}")

    def low(self, row: int) -> int:
        """The first row read, without regard to the extent of the input."""
        return (row * self.step + self.first) // self.per

    def high(self, row: int) -> int:
        """One after the last row read, without regard to the extent of the input."""
        return (row * self.step + self.last) // self.per + 1


ROW = RowMap()  # row i reads row i


def window(kernel: int, stride: int = 1, dilation: int = 1, top: int = 0) -> RowMap:
    """The map of a convolution or pooling with `top` rows of padding before the first."""
    return RowMap(stride, 1, -top, (kernel - 1) * dilation - top)


def transposed(kernel: int, stride: int, dilation: int = 1, top: int = 0) -> RowMap:
    """The map of a transposed convolution: rows i with row = i * stride + t * dilation - top for a tap t.

    With a stride beyond the kernel some rows have no such i; the map then names the row before.
    """
    return RowMap(1, stride, min(top - (kernel - 1) * dilation + stride - 1, top), top)


def nearest(factor: int) -> RowMap:
    """The map of a repetition of rows, and of depth-to-space: output row i reads row i // factor."""
    return RowMap(1, factor, 0, 0)


def every(rows: int) -> RowMap:
    """The map of an operator that reads all rows of the input for each of its own."""
    return RowMap(0, 1, 0, rows - 1)


def only(row: int) -> RowMap:
    """The map of an operator that reads one and the same row, such as the last state of a sum."""
    return RowMap(0, 1, row, row)


@dataclass(frozen=True, slots=True)
class RowValue:
    """A value as rows: `rows` of `row_bytes` each.

    Attributes:
        planes: blocks of channels that lie apart, each with all its rows together (NCHW8c: blocks; NHWC: 1).
            A row is `planes` ranges of row_bytes / planes.
        accumulated: its rows are turns of a sum: each is the row before plus a part, in the same place, and
            readers read the last (`only`).
    """

    name: str
    rows: int
    row_bytes: int
    planes: int = 1
    accumulated: bool = False

    @property
    def stored(self) -> int:
        """Rows that have places of their own when all are written."""
        return 1 if self.accumulated else self.rows

    @property
    def nbytes(self) -> int:
        """Bytes of the whole value."""
        return self.stored * self.row_bytes

    def __post_init__(self) -> None:
        if self.rows < 1 or self.row_bytes < 1 or self.planes < 1 or self.row_bytes % self.planes:
            raise ValueError(
                f"value {self.name!r}: rows, bytes and planes of a row do not agree, found {self}"
            )


@dataclass(frozen=True, slots=True)
class Read:
    """An operand: the name of a value, and which of its rows a row of the output reads."""

    value: str
    map: RowMap = ROW


@dataclass(frozen=True, slots=True)
class RowOperator:
    """An operator that computes its outputs strip by strip, in rising order of rows.

    Attributes:
        outputs: values with the same number of rows, written together.
        strip: rows that one call computes at most.
        aligned: strips begin at multiples of `strip` (Winograd), rows come before they are asked for;
            otherwise a call computes what is asked for and no more.
        takes: operand, read with the map ROW, whose row the row of the same number of the first output may
            overwrite in the same call: a residual sum, an elementwise operator.
        scratch: bytes that a call needs while it runs.
        kept: bytes of constants that lie beside the rows from the first call of a segment to its last.
    """

    name: str
    reads: tuple[Read, ...]
    outputs: tuple[str, ...]
    strip: int = 1
    aligned: bool = False
    takes: str | None = None
    scratch: int = 0
    kept: int = 0

    def __post_init__(self) -> None:
        if self.strip < 1 or not self.outputs:
            raise ValueError(f"operator {self.name!r} needs an output and a strip of a row at least")
        if self.takes is not None and Read(self.takes) not in self.reads:
            raise ValueError(
                f"operator {self.name!r} takes the rows of {self.takes!r}, which it does not read row by row"
            )


@dataclass(frozen=True, slots=True)
class Segment:
    """Operators in topological order, streamed as one step.

    Attributes:
        values: each after those that its operator reads.
        inputs: values that are whole before the segment begins.
        outputs: values that must be whole when it ends; the last operator writes one of them.
        freed: inputs that nothing reads after the segment: rows may be overwritten once they are read.
    """

    values: tuple[RowValue, ...]
    operators: tuple[RowOperator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    freed: tuple[str, ...] = ()
    by_name: Mapping[str, RowValue] = field(init=False, repr=False, compare=False)
    producer: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {v.name: v for v in self.values})
        written = {y: i for i, o in enumerate(self.operators) for y in o.outputs}
        object.__setattr__(self, "producer", written)
        if not self.operators:
            raise ValueError("a segment needs an operator")
        known = set(self.inputs)
        for o in self.operators:
            if missing := [r.value for r in o.reads if r.value not in known]:
                raise ValueError(f"operator {o.name!r} reads {missing[0]!r} before it is written")
            if len({self.by_name[y].rows for y in o.outputs}) != 1:
                raise ValueError(f"operator {o.name!r}: outputs differ in rows")
            if len({self.by_name[y].accumulated for y in o.outputs}) != 1:
                raise ValueError(f"operator {o.name!r} sums up some of its outputs and not all")
            known.update(o.outputs)
        if missing := [v for v in (*self.inputs, *self.outputs) if v not in known or v not in self.by_name]:
            raise ValueError(f"segment keeps {missing[0]!r}, which it neither has nor writes")

    @property
    def kept(self) -> int:
        """Bytes of constants that lie beside the rows while the segment runs."""
        return sum(o.kept for o in self.operators)

    def rows(self, operator: RowOperator) -> int:
        """Rows that the operator computes, all calls together."""
        return self.by_name[operator.outputs[0]].rows

    def accumulates(self, operator: RowOperator) -> bool:
        """True if the outputs of an operator are sums of turns."""
        return self.by_name[operator.outputs[0]].accumulated

    def needed(self, read: Read, first: int, rows: int) -> tuple[int, int]:
        """Rows [low, high) of an operand that a call reads; low = high if it reads padding alone."""
        extent = self.by_name[read.value].rows
        low = min(max(read.map.low(first), 0), extent)
        return low, max(low, min(read.map.high(first + rows - 1), extent))
