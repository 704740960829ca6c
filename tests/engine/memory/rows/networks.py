"""Networks as rows: published structures, and random chains and graphs."""

from dataclasses import dataclass, field
from random import Random

from app.engine.memory.rows.emit import emit
from app.engine.memory.rows.geometry import ROW, Read, RowMap, RowOperator, RowValue, Segment, only, window
from app.engine.memory.rows.replay import EmittedCall
from app.engine.memory.rows.schedule import schedule
from app.engine.memory.rows.workspace import Workspace, workspace

# Expansion, channels, blocks, stride of MobileNetV2's stages (Sandler et al., 2018, arXiv:1801.04381, table 2).
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
    last: str = "x"

    def __post_init__(self) -> None:
        self.values.append(RowValue("x", self.rows, self.rows * self.channels * self.width))

    def convolution(
        self, channels: int, kernel: int = 1, stride: int = 1, residual: str | None = None
    ) -> str:
        """Append a convolution of a square image, with a residual sum if one is named."""
        name = f"v{len(self.operators)}"
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
        self.operators.append(RowOperator(name, reads, (name,), self.strip))
        self.last = name
        return name

    @property
    def values_by_name(self) -> dict[str, RowValue]:
        return {v.name: v for v in self.values}

    @property
    def segment(self) -> Segment:
        return Segment(tuple(self.values), tuple(self.operators), ("x",), (self.last,))


def mobilenet_v2(
    size: int = 224, multiplier: float = 1.0, strip: int = 1, width: int = 4, residuals: bool = True
) -> Chain:
    """MobileNetV2 from the image to the last convolution."""

    def channels(full: int) -> int:
        rounded = max(8, int(full * multiplier + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * full * multiplier else rounded

    net = Chain(size, 3, width, strip)
    x = net.convolution(channels(32), 3, 2)
    inner = channels(32)
    for expansion, full, blocks, stride in MOBILENET_V2:
        for block in range(blocks):
            step, outer = (stride, channels(full)) if block == 0 else (1, channels(full))
            if expansion > 1:
                net.convolution(inner * expansion)
            net.convolution(inner * expansion, 3, step)
            same = residuals and step == 1 and inner == outer
            x, inner = net.convolution(outer, residual=x if same else None), outer
    net.convolution(1280)
    return net


def random_segment(seed: int, longest: int = 9, chain: bool = False) -> Segment:
    """A random chain or graph: windows, repetitions of rows, sums that take slots, several outputs."""
    random = Random(seed)
    rows = random.randint(1, 14)
    values = [RowValue("x", rows, 8 * random.randint(1, 6), random.choice((1, 1, 2)))]
    operators: list[RowOperator] = []
    for i in range(random.randint(1, longest)):
        x = values[-1] if chain or random.random() < 0.7 else random.choice(values)
        kernel, stride, dilation = random.choice(
            ((1, 1, 1), (3, 1, 1), (3, 2, 1), (5, 1, 1), (2, 2, 1), (3, 1, 2), (1, 2, 1))
        )
        top = random.randint(0, (kernel - 1) * dilation)
        count, step = (x.rows + stride - 1) // stride, window(kernel, stride, dilation, top)
        if random.random() < 0.15:
            count, step = x.rows * 2, RowMap(1, 2, 0, 0)
        if x.accumulated:
            count, step = random.randint(1, 5), only(x.rows - 1)
        same = [v for v in values if v.rows == count and v is not x and not v.accumulated]
        sum_of = random.choice(same) if same and not chain and random.random() < 0.6 else None
        size, planes = (
            (sum_of.row_bytes, sum_of.planes) if sum_of else (8 * random.randint(1, 6), random.choice((1, 2)))
        )
        reads = (Read(x.name, step), *((Read(sum_of.name, ROW),) if sum_of else ()))
        summed = not chain and sum_of is None and random.random() < 0.1
        outputs = [RowValue(f"v{i}", count, size, planes, summed)]
        if not chain and random.random() < 0.1:
            outputs.append(RowValue(f"w{i}", count, 8 * random.randint(1, 6), 1, summed))
        takes = sum_of.name if sum_of else None
        strip, aligned = random.choice((1, 1, 2, 3, 4, 7)), random.random() < 0.2
        scratch = random.choice((0, 0, 40))
        operators.append(
            RowOperator(f"o{i}", reads, tuple(v.name for v in outputs), strip, aligned, takes, scratch)
        )
        values.extend(outputs)
    kept = {operators[-1].outputs[0]}
    if not chain:
        kept |= {v.name for v in values[1:] if random.random() < 0.1}
    freed = ("x",) if random.random() < 0.5 else ()
    outputs = tuple(v.name for v in values if v.name in kept)
    return Segment(tuple(values), tuple(operators), ("x",), outputs, freed)


def addressed(segment: Segment) -> tuple[Workspace, tuple[EmittedCall, ...], dict[str, int], int]:
    """The segment placed by itself: workspace, calls with addresses, offsets of whole values, bytes of memory."""
    placed = workspace(schedule(segment))
    end = placed.nbytes
    whole: dict[str, int] = {}
    for name in dict.fromkeys((*segment.inputs, *segment.outputs)):
        place = placed.schedule.whole[name]
        if place not in whole:
            whole[place] = end
            end += segment.by_name[place].nbytes
        whole[name] = whole[place]
    return placed, tuple(emit(placed, whole)), whole, end
