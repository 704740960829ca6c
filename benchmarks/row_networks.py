"""Networks as rows, from the shapes of published ones: no weights, no files."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.engine.memory.rows.column_blocks import ColumnWork
from app.engine.memory.rows.geometry import Read, RowMap, RowOperator, RowValue, Segment, window

# Expansion, channels, blocks, stride of MobileNetV2: Sandler et al., 2018, arXiv:1801.04381, table 2.
MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


@dataclass
class Chain:
    """Operators in the order of appending; sizes are bytes."""

    rows: int
    channels: int
    width: int  # byte of an element
    strip: int = 1
    values: list[RowValue] = field(default_factory=list)
    operators: list[RowOperator] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=dict)  # multiplications of a column of a row
    last: str = "x"

    def __post_init__(self) -> None:
        self.values.append(RowValue("x", self.rows, self.rows * self.channels * self.width))

    def convolution(
        self, channels: int, kernel: int = 1, stride: int = 1, residual: str | None = None, groups: int = 1
    ) -> str:
        """Append a convolution of a square image, with a residual sum if one is named."""
        x = self.values_by_name[self.last]
        name = f"v{len(self.operators)}"
        self.work[name] = kernel**2 * channels * (x.row_bytes // x.rows // self.width) / groups
        rows = (self.values_by_name[self.last].rows + stride - 1) // stride
        self.values.append(RowValue(name, rows, rows * channels * self.width))
        reads = (Read(self.last, window(kernel, stride, 1, kernel // 2)),)
        if residual is not None:
            reads += (Read(residual),)
        self.operators.append(RowOperator(name, reads, (name,), self.strip, takes=residual))
        self.last = name
        return name

    def average(self) -> str:
        """Append a global average: a sum whose turns are the rows."""
        name, x = f"v{len(self.operators)}", self.values_by_name[self.last]
        self.values.append(RowValue(name, x.rows, x.row_bytes // x.rows, accumulated=True))
        reads = (Read(self.last),)
        self.work[name] = 0.0
        self.operators.append(RowOperator(name, reads, (name,), self.strip))
        self.last = name
        return name

    @property
    def values_by_name(self) -> dict[str, RowValue]:
        """Values by name."""
        return {v.name: v for v in self.values}

    @property
    def columns(self) -> ColumnWork:
        """Columns as rows: images and windows are square."""
        maps: Mapping[tuple[str, str], RowMap] = {
            (o.name, r.value): r.map for o in self.operators for r in o.reads
        }
        return ColumnWork({v.name: v.rows for v in self.values}, maps, self.work)

    @property
    def segment(self) -> Segment:
        """All operators as one segment, from the image to the last of them."""
        return Segment(tuple(self.values), tuple(self.operators), ("x",), (self.last,))


def channels_of(full: int, multiplier: float, rounded_to_8: bool) -> int:
    """Channels of MobileNetV2 with a multiplier; rounded down, or as published to multiples of 8."""
    if not rounded_to_8:
        return int(full * multiplier)
    rounded = max(8, int(full * multiplier + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * full * multiplier else rounded


def mobilenet_v2(
    size: int = 224,
    multiplier: float = 1.0,
    strip: int = 1,
    width: int = 4,
    residuals: bool = True,
    rounded_to_8: bool = True,
) -> Chain:
    """MobileNetV2 from the image to the last convolution before the classifier's."""
    net = Chain(size, 3, width, strip)
    inner = channels_of(32, multiplier, rounded_to_8)
    x = net.convolution(inner, 3, 2)
    for expansion, full, blocks, stride in MOBILENET_V2:
        for block in range(blocks):
            step, outer = 1 if block else stride, channels_of(full, multiplier, rounded_to_8)
            if expansion > 1:
                net.convolution(inner * expansion)
            net.convolution(inner * expansion, 3, step, groups=inner * expansion)
            same = residuals and step == 1 and inner == outer
            x, inner = net.convolution(outer, residual=x if same else None), outer
    return net
