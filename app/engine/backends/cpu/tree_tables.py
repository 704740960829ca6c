"""Tables of a forest for the kernels of `app.kernels.cpu.trees`: nodes in the order in which rows meet them.

Breadth first, so that the children of a node are neighbors and the upper levels of a tree share cache lines.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from app.engine.operators.forest import IS_NAN, Forest
from app.kernels.cpu.trees import LANES, TREE, WIDE

Array: TypeAlias = np.ndarray[Any, Any]
BITS = (12, 16, WIDE)  # of a column's place in a link; WIDE where distances or columns are many
BALANCED = 0.6  # difference of the deepest and the mean leaf below which no row stops early


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """A packed forest.

    Attributes:
        bits: of a column's place in a link.
        nodes: thresholds and links, as integers of the size of a link.
        columns: feature of each column, of which number 0 has none.
        ends: columns up to which NaN is plus infinity, minus infinity, told from numbers.
        trees: int64[n, TREE], filled up to whole groups of LANES where `lanes` is 1.
        levels: comparisons of a row, predicted.
    """

    bits: int
    nodes: Array
    columns: Array
    ends: tuple[int, int, int]
    trees: Array
    levels: float


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Nodes of all trees, those of a tree together, level by level, children side by side.

    Attributes:
        refs: comparison or ~leaf of each.
        links: place of the first child; of a second node for one comparison, that of the first node; its own
            of leaves.
        is_comparison: whether a node compares; others always lead to `links`.
        roots: places of the roots.
        depths: longest way from each root, and the mean over leaves.
    """

    refs: Array
    links: Array
    is_comparison: Array
    roots: Array
    depths: tuple[Array, Array]


def pack(forest: Forest, values: Array, targets: Array, together: bool) -> Tables:
    """Tables of a forest.

    Args:
        forest: what is packed.
        values: of leaves, in the precision of the thresholds.
        targets: of the trees.
        together: rows go down side by side; else trees of one row do.
    """
    places = _places(forest)
    lanes = LANES if together else 1
    kinds = forest.columns[:, 1]
    columns = np.concatenate([[0], forest.columns[:, 0]])
    ends = tuple(1 + int((kinds <= kind).sum()) for kind in range(IS_NAN + 1))
    distances = places.links - np.arange(len(places.links))
    farthest = int(np.abs(distances).max(initial=0))
    wide = forest.thresholds.itemsize == 8
    bits = next(b for b in BITS if b == WIDE or (not wide and _fits(b, len(columns) * lanes, farthest)))
    column = np.zeros(len(places.refs), np.int64)
    threshold = np.zeros(len(places.refs), forest.thresholds.dtype)
    compares, leaf = places.is_comparison, places.refs < 0
    column[compares] = (forest.column[places.refs[compares]] + 1) * lanes
    threshold[compares] = forest.thresholds[places.refs[compares]]
    threshold[leaf] = values[~places.refs[leaf]]
    link = (distances << bits) | column
    if bits < WIDE:
        nodes = np.empty((len(link), 2), np.int32)
        nodes[:, 0], nodes[:, 1] = threshold.view(np.int32), link
    else:
        nodes = np.zeros((len(link), 2), np.int64)
        nodes.view(threshold.dtype)[:, 0], nodes[:, 1] = threshold, link
    deepest, mean = places.depths
    trees = _trees(places.roots, deepest, mean, targets, 1 if together else LANES)
    return Tables(bits, nodes, columns, ends, trees, float(mean.sum()))  # type: ignore[arg-type]  # three


def _fits(bits: int, places: int, farthest: int) -> bool:
    """True if links of 32 bits hold so many places of columns and distances up to `farthest`."""
    return places <= 1 << bits and farthest < 1 << (31 - bits)


def _trees(roots: Array, deepest: Array, mean: Array, targets: Array, group: int) -> Array:
    """The table of trees; those of a group, which go down together, take the same steps."""
    count = -(-len(roots) // group) * group
    table = np.zeros((count, TREE), np.int64)
    table[:, 0] = roots[0] if len(roots) else 0
    table[: len(roots), 0], table[: len(roots), 3] = roots, targets
    padded = np.zeros((2, count))
    padded[0, : len(roots)], padded[1, : len(roots)] = deepest, mean
    most, usual = padded.reshape(2, -1, group).max(axis=2)
    sure = np.where(most - usual < BALANCED, most, np.floor(usual))
    table[:, 1], table[:, 2] = np.repeat(sure, group), np.repeat(most - sure, group)
    return table


def _places(forest: Forest) -> _Places:
    """Breadth first, all trees at once; a comparison that several lead to has one node with children.

    Other nodes for it lead to that one.
    """
    first_node = np.full(len(forest.children), -1, np.int64)  # of each comparison
    refs: list[Array] = []
    trees: list[Array] = []
    links: list[Array] = []
    compares: list[Array] = []
    level, tree = forest.roots, np.arange(len(forest.roots))
    start = 0
    while len(level):
        numbers = start + np.arange(len(level))
        start += len(level)
        link, is_new = numbers.copy(), np.zeros(len(level), bool)
        inner = np.flatnonzero(level >= 0)
        fresh, index = np.unique(level[inner], return_index=True)
        unplaced = first_node[fresh] < 0
        is_new[inner[index[unplaced]]] = True
        new = np.flatnonzero(is_new)
        first_node[level[new]] = numbers[new]
        link[new] = start + 2 * np.arange(len(new))
        again = inner[~is_new[inner]]
        link[again] = first_node[level[again]]
        for column, found in ((refs, level), (trees, tree), (links, link), (compares, is_new)):
            column.append(found)
        level, tree = forest.children[level[new]].reshape(-1), np.repeat(tree[new], 2)
    depths = _depths(len(forest.roots), refs, trees, links, compares)
    ref, owner, link, compare = (np.concatenate(column) for column in (refs, trees, links, compares))
    order = np.argsort(owner, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    roots = place[: len(forest.roots)]
    return _Places(ref[order], place[link[order]], compare[order], roots, depths)


def _depths(
    count: int, refs: list[Array], trees: list[Array], links: list[Array], compares: list[Array]
) -> tuple[Array, Array]:
    """Longest way from each root, and mean level of its leaves; nodes are numbered level by level."""
    starts = np.cumsum([0, *(len(level) for level in refs)])
    longest = np.zeros(starts[-1], np.int64)
    changed = True
    while changed:  # once more for each way over nodes that lead to others; twice where there are none
        changed = False
        for start, ref, link, compare in reversed(list(zip(starts, refs, links, compares))):
            below = longest[link]
            below[compare] = np.maximum(below[compare], longest[link[compare] + 1])
            found = np.where(ref >= 0, below + 1, 0)
            changed |= bool((found > longest[start : start + len(ref)]).any())
            longest[start : start + len(ref)] = found
    sums, leaves = np.zeros(count), np.zeros(count)
    for depth, (ref, tree) in enumerate(zip(refs, trees)):
        met = np.bincount(tree[ref < 0], minlength=count)
        sums += depth * met
        leaves += met
    return longest[:count], sums / np.maximum(leaves, 1)
