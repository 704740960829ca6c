"""`make bench-microcontrollers`: bytes of activations of int8 networks in rows, beside published ones.

One byte a value; activations alone, without weights, the network's input, scratch and code, as the published
figures count. Predicted and not executed: `rings` and `rows` are placed and replayed by the checker, plans
with columns computed twice are counted by their rings.

Published: MCUNetV2, Lin et al., 2021, arXiv:2110.15352 (MobileNetV2 at 224 in patches, with
recompute); msf-CNN, Huang and Baccelli, 2025, arXiv:2505.11483 (MobileNetV2-0.35 at 144 as a chain).
"""

from app.engine.memory.rows.arena import arena
from app.engine.memory.rows.cuts import pareto_cuts, with_strip
from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.replay import replay
from benchmarks.row_networks import Chain, mobilenet_v2

FREE = frozenset({"x"})
BLOCKS = (1, 2, 3, 4, 6, 8, 9)  # of columns
SMALL = "MobileNetV2-0.35 at 144"
MSF_CNN: tuple[tuple[int, float | None], ...] = (
    (83_133, 1.02),
    (25_803, 1.25),
    (21_389, 1.30),
    (8_560, 1.68),
)  # byte, times the multiplications
NETWORKS = (
    ("MobileNetV2 at 224", mobilenet_v2(width=1), ((172 * 1024, None),)),
    (f"{SMALL}, no residuals", mobilenet_v2(144, 0.35, 1, 1, False, False), MSF_CNN),
    (f"{SMALL}, residuals", mobilenet_v2(144, 0.35, 1, 1, True, False), ()),
)


def main() -> None:
    """Print the table."""
    for name, network, published in NETWORKS:
        network.average()
        print(f"{name}: {network.columns.total(network.segment):.0f} multiplications")
        for by_rows in (False, True):
            print(f"    {'rows' if by_rows else 'rings':12} {_placed(network.segment, by_rows)}")
        for nbytes, factor in recomputed(network):
            print(f"    recomputed   {nbytes:8} byte, {factor:.3f} times the multiplications")
        for nbytes, factor in published:
            times = "more" if factor is None else f"{factor:.3f} times the"
            print(f"    published    {nbytes:8} byte, {times} multiplications")


def _placed(graph: Segment, by_rows: bool) -> str:
    """Bytes of the smallest plan without recompute, placed and replayed."""
    cuts = pareto_cuts(graph, FREE, (1,), by_rows=by_rows)[0]
    at = sum(v.nbytes for v in graph.values)
    found = arena(graph, [p.segment for p in cuts.parts], {"x": at}, 1, not by_rows)
    replay(graph, [*found.emitted(graph)], found.whole, at + graph.by_name["x"].nbytes)
    table = f", and a table of {found.table_rows} addresses" if found.table_rows else ""
    return f"{found.nbytes:8} byte, bound of these calls {found.solution.lower_bound}{table}"


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
