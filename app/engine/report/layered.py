"""Where the boxes of a directed acyclic graph are drawn: layers from top to bottom, few crossings.

Near-linear: each phase sweeps over layers a fixed number of times. Long edges run through points in the
layers between, which edges of one source share; those that would need too many points are left out.

Source: Sugiyama, Tagawa and Toda, 1981, Methods for visual understanding of hierarchical system
structures (layers, barycenters); Barth, Jünger and Mutzel, 2002, Simple and efficient bilayer cross
counting; coordinates by isotonic regression with pool adjacent violators, Ayer et al., 1955.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LAYER_GAP, BOX_GAP, POINT_GAP = 36.0, 24.0, 14.0  # as many pixels at scale 1
POINTS_PER_BOX, MOST_POINTS = 12, 60_000
ROUNDS, LARGE = 4, 20_000  # a larger graph is swept once
STRAIGHT = 4.0  # how much more a piece between two points wants to be straight than one at a box


@dataclass(frozen=True, slots=True)
class Drawing:
    """Centers of boxes, and the way of each edge.

    Attributes:
        centers: (x, y) of each box; all boxes lie in (0, 0) to (width, height).
        layers: the layer of each box, from the top.
        ways: points of each edge from box to box, in the order of the edges; empty for an edge that is
            too long to be drawn.
        crossings: between edges, as drawn.
    """

    width: float
    height: float
    centers: tuple[tuple[float, float], ...]
    layers: tuple[int, ...]
    ways: tuple[tuple[tuple[float, float], ...], ...]
    crossings: int


def draw(sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Place boxes of (width, height); `edges` are pairs of indices.

    Every edge leads from a lower index to a higher one: indices are a topological order. The same
    arguments give the same drawing.

    Raises:
        ValueError: an edge does not.
    """
    for source, sink in edges:
        if not 0 <= source < sink < len(sizes):
            raise ValueError(
                f"edge ({source}, {sink}): expected 0 <= source < sink < {len(sizes)}, in topological order"
            )
    if not sizes:
        return Drawing(0.0, 0.0, (), (), (), 0)
    layer = _layers(len(sizes), edges)
    items = _Items.of(sizes, edges, layer)
    crossings = items.arrange(ROUNDS if len(items.layer) <= LARGE else 1)
    x = items.coordinates(6 if len(items.layer) <= LARGE else 2)
    heights = [max((sizes[i][1] for i in row if i < len(sizes)), default=0.0) for row in items.rows]
    tops = [0.0, *itertools.accumulate(h + LAYER_GAP for h in heights)]
    y = [tops[at] + heights[at] / 2 for at in items.layer]
    left = min(x[i] - sizes[i][0] / 2 for i in range(len(sizes)))
    left = min(left, *x)
    right = max(*x, *(x[i] + sizes[i][0] / 2 for i in range(len(sizes))))
    x = [at - left for at in x]
    return Drawing(
        right - left,
        tops[-1] - LAYER_GAP,
        tuple(zip(x[: len(sizes)], y)),
        tuple(layer),
        tuple(_way(edge, chain, sizes, x, y) for edge, chain in zip(edges, items.chains)),
        crossings,
    )


def _layers(boxes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Longest path from the top; a box without a source comes right before its first sink."""
    layer = [0] * boxes
    for source, sink in sorted(edges, key=lambda e: e[1]):
        layer[sink] = max(layer[sink], layer[source] + 1)
    fed = {sink for _, sink in edges}
    first: dict[int, int] = {}
    for source, sink in edges:
        first[source] = min(first.get(source, layer[sink]), layer[sink])
    for source, at in first.items():
        if source not in fed:
            layer[source] = at - 1
    lowest = min(layer)
    return [at - lowest for at in layer]


def _way(
    edge: tuple[int, int],
    chain: Sequence[int] | None,
    sizes: Sequence[tuple[float, float]],
    x: Sequence[float],
    y: Sequence[float],
) -> tuple[tuple[float, float], ...]:
    if chain is None:
        return ()
    source, sink = edge
    points = [(x[source], y[source] + sizes[source][1] / 2)]
    points += [(x[i], y[i]) for i in chain]
    points.append((x[sink], y[sink] - sizes[sink][1] / 2))
    # A point between two at the same x tells nothing.
    bends = [
        b for a, b, c in zip(points, points[1:], points[2:]) if not abs(a[0] - b[0]) + abs(b[0] - c[0]) < 1
    ]
    return (points[0], *bends, points[-1])


class _Items:
    """Boxes, then the points of long edges, in rows: what lies side by side in one layer."""

    def __init__(self, widths: list[float], layer: list[int], boxes: int) -> None:
        self.widths = widths
        self.layer = layer
        self.boxes = boxes
        self.chains: list[tuple[int, ...] | None] = []  # of each edge; None where it is left out
        self.above: list[list[int]] = []
        self.below: list[list[int]] = []
        self.rows: list[list[int]] = []

    @classmethod
    def of(
        cls, sizes: Sequence[tuple[float, float]], edges: Sequence[tuple[int, int]], layer: Sequence[int]
    ) -> "_Items":
        """Points are made layer by layer for each source, up to its furthest sink."""
        self = cls([w for w, _ in sizes], list(layer), len(sizes))
        reach = _reach(edges, layer, min(POINTS_PER_BOX * len(sizes) + 512, MOST_POINTS))
        chains: dict[int, list[int]] = {}
        pieces: dict[tuple[int, int], None] = {}
        for source, sink in edges:
            span = layer[sink] - layer[source]
            if span > reach:
                self.chains.append(None)
                continue
            chain = chains.setdefault(source, [])
            while len(chain) < span - 1:
                self.widths.append(0.0)
                self.layer.append(layer[source] + len(chain) + 1)
                chain.append(len(self.layer) - 1)
            way = (source, *chain[: span - 1], sink)
            pieces |= dict.fromkeys(itertools.pairwise(way))
            self.chains.append(way[1:-1])
        self.above = [[] for _ in self.layer]
        self.below = [[] for _ in self.layer]
        for upper, lower in pieces:
            self.above[lower].append(upper)
            self.below[upper].append(lower)
        self.rows = [[] for _ in range(max(self.layer) + 1)]
        for i in self._by_depth():
            self.rows[self.layer[i]].append(i)
        return self

    def _by_depth(self) -> list[int]:
        """All items, each after the neighbour that leads to it: what belongs together begins together."""
        seen = [False] * len(self.layer)
        found = []
        for root in range(self.boxes):
            stack = [root]
            while stack:
                i = stack.pop()
                if seen[i]:
                    continue
                seen[i] = True
                found.append(i)
                stack.extend(reversed(self.below[i]))
        return found

    def arrange(self, rounds: int) -> int:
        """Order each row by the mean place of its neighbours, downwards and upwards; keep the best."""
        place = [0.0] * len(self.layer)
        for row in self.rows:
            _number(row, place)
        best, kept = self._crossings(place), [list(row) for row in self.rows]
        for _ in range(rounds):
            if best == 0:
                break
            for rows, near in ((self.rows[1:], self.above), (self.rows[-2::-1], self.below)):
                for row in rows:
                    wanted = {i: _mean([place[j] for j in near[i]], place[i]) for i in row}
                    row.sort(key=wanted.__getitem__)  # stable: equals stay as they are
                    _number(row, place)
            found = self._crossings(place)
            if found < best:
                best, kept = found, [list(row) for row in self.rows]
        self.rows = kept
        return best

    def _crossings(self, place: Sequence[float]) -> int:
        """Pairs of pieces that cross, by a Fenwick tree over each row."""
        total = 0
        for upper, lower in itertools.pairwise(self.rows):
            tree = [0] * (len(lower) + 1)
            seen = 0
            for i in upper:
                ends = [int(place[j]) for j in self.below[i]]
                for end in ends:
                    at, before = end + 1, 0
                    while at:
                        before += tree[at]
                        at &= at - 1
                    total += seen - before
                for end in ends:
                    at = end + 1
                    while at < len(tree):
                        tree[at] += 1
                        at += at & -at
                seen += len(ends)
        return total

    def coordinates(self, rounds: int) -> list[float]:
        """Centers: every item near its neighbours, in the order of its row, at least a gap apart."""
        x = [0.0] * len(self.layer)
        offsets = [self._offsets(row) for row in self.rows]
        for row, offset in zip(self.rows, offsets):
            for i, at in zip(row, offset):
                x[i] = at - offset[-1] / 2
        rows = list(zip(self.rows, offsets))
        none: list[list[int]] = [[] for _ in self.layer]
        sweeps = [(rows, self.above, none), (rows[::-1], none, self.below)] * rounds
        for order, above, below in (
            *sweeps,
            (rows, self.above, self.below),
            (rows[::-1], self.above, self.below),
        ):
            for row, offset in order:
                targets, weights = [], []
                for i, at in zip(row, offset):
                    target, weight = self._pull(i, (*above[i], *below[i]), x)
                    targets.append(target - at)
                    weights.append(weight)
                for i, at, placed in zip(row, offset, _isotonic(targets, weights)):
                    x[i] = placed + at
        return x

    def _offsets(self, row: Sequence[int]) -> list[float]:
        found, end = [], 0.0
        for i in row:
            gap = BOX_GAP if i < self.boxes else POINT_GAP
            found.append(end + self.widths[i] / 2)
            end += self.widths[i] + gap
        return found

    def _pull(self, i: int, near: Iterable[int], x: Sequence[float]) -> tuple[float, float]:
        """Where the neighbours want an item, and how strongly; one without stays, weakly."""
        total = weight = 0.0
        for j in near:
            strength = STRAIGHT if i >= self.boxes and j >= self.boxes else 1.0
            total += strength * x[j]
            weight += strength
        return (total / weight, weight) if weight else (x[i], 0.05)


def _reach(edges: Sequence[tuple[int, int]], layer: Sequence[int], most: int) -> int:
    """The longest span of edges that can all be drawn with so many points."""
    by_source: dict[int, list[int]] = {}
    for source, sink in edges:
        by_source.setdefault(source, []).append(layer[sink] - layer[source])
    for spans in by_source.values():
        spans.sort()
    known = sorted({span for spans in by_source.values() for span in spans})
    low, high = 0, len(known)
    while low < high:
        middle = (low + high + 1) // 2
        limit = known[middle - 1]
        points = sum(
            max(spans[at - 1] - 1, 0) if (at := bisect_right(spans, limit)) else 0
            for spans in by_source.values()
        )
        low, high = (middle, high) if points <= most else (low, middle - 1)
    return known[low - 1] if low else 1


def _number(row: Sequence[int], place: list[float]) -> None:
    for at, i in enumerate(row):
        place[i] = float(at)


def _mean(found: Sequence[float], otherwise: float) -> float:
    return sum(found) / len(found) if found else otherwise


def _isotonic(targets: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The increasing sequence nearest to the targets, by weighted least squares."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, items
    for target, weight in zip(targets, weights):
        mean, total, items = target, weight, 1
        while blocks and blocks[-1][0] >= mean:
            other, more, count = blocks.pop()
            mean = (mean * total + other * more) / (total + more)
            total, items = total + more, items + count
        blocks.append((mean, total, items))
    return [mean for mean, _, items in blocks for _ in range(items)]
