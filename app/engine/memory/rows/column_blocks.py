"""Segments in blocks of columns: narrower rings for columns that are computed twice.

An image is streamed once for each block of columns of the segment's last value. Windows reach over the border
of a block, so that columns near it are computed in both; rows are not. Inputs and outputs stay whole. Bytes
are those of the widest block, multiplications those of all.

Source: fused patches with a halo, MCUNetV2 (Lin et al., 2021, arXiv:2110.15352) and msf-CNN (Huang and
Baccelli, 2025, arXiv:2505.11483); there rows are computed again as well, or all columns kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from app.engine.memory.rows.geometry import RowMap, Segment

Columns = tuple[int, int]  # [low, high)


@dataclass(frozen=True, slots=True)
class ColumnWork:
    """Columns of a graph of rows.

    Attributes:
        columns: of each value.
        maps: which columns of an operand a column of the output reads, by operator and operand.
        multiplications: of each operator for one column of one row.
    """

    columns: Mapping[str, int]
    maps: Mapping[tuple[str, str], RowMap]
    multiplications: Mapping[str, float]

    def total(self, segment: Segment) -> float:
        """Multiplications of a segment, each column computed once."""
        return sum(
            self.multiplications[o.name] * segment.rows(o) * self.columns[o.outputs[0]]
            for o in segment.operators
        )

    def narrowed(self, segment: Segment, count: int) -> tuple[Segment, float]:
        """The segment in `count` blocks of columns: its widest block, and the multiplications of all."""
        last = segment.operators[-1].outputs[0]
        count = min(count, self.columns[last])
        widest: dict[str, int] = {}
        total = 0.0
        for block in range(count):
            low, high = (self.columns[last] * b // count for b in (block, block + 1))
            needed = self._needed(segment, last, (low, high))
            for name, (first, after) in needed.items():
                widest[name] = max(widest.get(name, 0), after - first)
            for operator in segment.operators:
                first, after = needed[operator.outputs[0]]
                total += self.multiplications[operator.name] * segment.rows(operator) * (after - first)
        whole = {*segment.inputs, *segment.outputs}
        values = tuple(
            v
            if v.name in whole
            else replace(v, row_bytes=v.row_bytes // self.columns[v.name] * max(widest[v.name], 1))
            for v in segment.values
        )
        return replace(segment, values=values, freed=() if count > 1 else segment.freed), total

    def _needed(self, segment: Segment, last: str, block: Columns) -> dict[str, Columns]:
        """The columns that a block of the last value needs of every value; other outputs are needed whole."""
        needed = {name: (0, self.columns[name]) for name in segment.outputs if name != last}
        needed[last] = block
        for operator in reversed(segment.operators):
            own = [needed[y] for y in operator.outputs if y in needed]
            low, high = min((a for a, _ in own), default=0), max((b for _, b in own), default=0)
            needed |= dict.fromkeys(operator.outputs, (low, high))
            for read in operator.reads if low < high else ():
                found, extent = self.maps[operator.name, read.value], self.columns[read.value]
                first, after = max(found.low(low), 0), min(found.high(high - 1), extent)
                before = needed.get(read.value, (first, after))
                needed[read.value] = min(first, before[0]), max(after, before[1])
        return needed
