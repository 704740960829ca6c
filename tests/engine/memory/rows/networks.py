"""Random chains and graphs as rows, and segments placed by themselves."""

from random import Random

from app.engine.memory.rows.emit import emit
from app.engine.memory.rows.geometry import ROW, Read, RowMap, RowOperator, RowValue, Segment, only, window
from app.engine.memory.rows.replay import EmittedCall
from app.engine.memory.rows.schedule import schedule
from app.engine.memory.rows.workspace import Workspace, workspace


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
