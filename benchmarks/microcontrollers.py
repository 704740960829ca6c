"""`make bench-microcontrollers`: bytes of activations of int8 networks in rows, beside published ones.

One byte a value; activations alone, without weights, the network's input, scratch and code, as the published
figures count. `executed` are plans of the networks with random weights, run in poisoned memory and compared
with the plan of the same implementations without strips; its arena, beside that of the fastest plan, is all
that it works in, with scratch, cursors and padding. The others
are predicted: `rings` and `rows` are placed and replayed by the checker, plans with columns computed
twice are counted by their rings.

Published: MCUNetV2, Lin et al., 2021, arXiv:2110.15352 (MobileNetV2 at 224 in patches, with
recompute); msf-CNN, Huang and Baccelli, 2025, arXiv:2505.11483 (MobileNetV2-0.35 at 144 as a chain).
"""

import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.core.streams.stream_group import StreamGroup
from app.engine.memory.rows.arena import arena
from app.engine.memory.rows.cuts import Counted, pareto_cuts, with_strip
from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.replay import replay
from app.engine.memory.rows.schedule import Demand
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import samples
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from benchmarks import models, quantized_networks
from benchmarks.row_networks import Chain, mobilenet_v2

FREE = frozenset({"x"})
KERNELS = models.ROOT / "build" / "kernels"
BLOCKS = (1, 2, 3, 4, 6, 8, 9)  # of columns
SMALL = "MobileNetV2-0.35 at 144"
MSF_CNN: tuple[tuple[int, float | None], ...] = (
    (83_133, 1.02),
    (25_803, 1.25),
    (21_389, 1.30),
    (8_560, 1.68),
)  # byte, times the multiplications
NETWORKS = (
    ("MobileNetV2 at 224", mobilenet_v2(width=1), ((172 * 1024, None),), (224, 1.0, True, True)),
    (
        f"{SMALL}, no residuals",
        mobilenet_v2(144, 0.35, 1, 1, False, False),
        MSF_CNN,
        (144, 0.35, False, False),
    ),
    (f"{SMALL}, residuals", mobilenet_v2(144, 0.35, 1, 1, True, False), (), (144, 0.35, True, False)),
)


def main() -> None:
    """Print the table."""
    for name, network, published, shape in NETWORKS:
        network.average()
        print(f"{name}: {network.columns.total(network.segment):.0f} multiplications")
        for by_rows in (False, True):
            print(f"    {'rows' if by_rows else 'rings':12} {_placed(network.segment, by_rows)}")
        print(f"    executed     {executed(*shape)}", flush=True)
        for nbytes, factor in recomputed(network):
            print(f"    recomputed   {nbytes:8} byte, {factor:.3f} times the multiplications")
        for nbytes, factor in published:
            times = "more" if factor is None else f"{factor:.3f} times the"
            print(f"    published    {nbytes:8} byte, {times} multiplications")


def _placed(graph: Segment, by_rows: bool) -> str:
    """Bytes of the smallest plan without recompute, placed and replayed."""
    cuts = pareto_cuts(graph, FREE, (1,), counted=Counted.ROWS if by_rows else Counted.RINGS)[0]
    at = sum(v.nbytes for v in graph.values)
    found = arena(graph, [p.segment for p in cuts.parts], {"x": at}, 1, not by_rows)
    replay(graph, [*found.emitted(graph)], found.whole, at + graph.by_name["x"].nbytes)
    table = f", and a table of {found.table_rows} addresses" if found.table_rows else ""
    return f"{found.nbytes:8} byte, bound of these calls {found.solution.lower_bound}{table}"


def executed(size: int, multiplier: float, residuals: bool, rounded_to_8: bool) -> str:
    """Bytes of the smallest plan in strips, and whether its outputs are those of the plan without."""
    options = Options(autotune=False, backends=("numba-cpu", "reference"))
    least, compiler = replace(options, prefer="memory"), Compiler(KERNELS)
    with tempfile.TemporaryDirectory() as folder:
        net = quantized_networks.mobilenet_v2(size, multiplier, residuals, rounded_to_8)
        loaded, registry = load(net.save(Path(folder) / "net.onnx")), load_registry()
        canonical = session.canonical(loaded, host(), options, Bindings(), registry)
        plain, program = (session.planned(canonical, o) for o in (options, least))
        without = replace(
            program.compilation.concessions, streams=()
        )  # a mean may be summed in another order
        inputs = samples(plain.compilation.graph.inputs)
        outputs = []
        for one in (session.builder(canonical, least)(without), program):
            with closing(Executor(one, compiler, poison=True)) as executor:
                outputs.append([np.asarray(y) for y in executor.run(inputs).values()])
    equal = all(np.array_equal(a, b) for a, b in zip(*outputs, strict=True))
    told = "equal bit by bit" if equal else "DIFFERENT OUTPUTS"
    return f"{activations(program):8} byte, arena {program.arena_bytes} of {plain.arena_bytes}, {told}"


def activations(program: Program) -> int:
    """Most bytes of values and rows alive during one call, without scratch."""
    buffers = [b for b in program.placement.buffers if b.kind == "activation"]
    most = 0
    for i, step in enumerate(program.steps):
        alive = sum(b.nbytes for b in buffers if b.first <= i <= b.last)
        if isinstance(step.group, StreamGroup):
            memory = step.group.memory
            segment = memory.schedule.segment
            operators = tuple(replace(o, scratch=0) for o in segment.operators)
            demand = Demand(replace(segment, operators=operators), memory.schedule.calls)
            alive += demand.most_in_rings() if memory.table is None else demand.most_in_rows()
        most = max(most, alive)
    return most


def recomputed(network: Chain) -> list[tuple[int, float]]:
    """Plans of which none is smaller with fewer multiplications: bytes, and the factor of multiplications."""
    work, graph = network.columns, network.segment
    multiplications: dict[Segment, float] = {}

    def narrowed(segment: Segment, blocks: int) -> Segment:
        found, total = work.narrowed(with_strip(segment, 1), blocks)
        multiplications[found] = min(total, multiplications.get(found, total))
        return found

    def seconds(segment: Segment) -> float:
        return multiplications.get(segment, work.total(segment))

    whole = work.total(graph)
    cuts = pareto_cuts(graph, FREE, BLOCKS, seconds, narrowed, floor=work.total)
    return [(c.nbytes, c.seconds / whole) for c in cuts]


if __name__ == "__main__":
    main()
