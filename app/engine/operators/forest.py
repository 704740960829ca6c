"""Ensembles of decision trees as comparisons: one form for every mode of a node and every version.

A comparison reads a column, a copy of a feature, and leads to its first child where the column is at most the
threshold, else to its second. NaN takes part through the column: as plus infinity, which is above every
threshold, as minus infinity, or in a column that tells NaN (1) from numbers (0). So

    x <= t    compares with t, `x < t` with the next smaller number, and `x > t`, `x >= t` swap the children;
    x == t    is `x <= t`, then not `x < t`; `x != t` swaps the children;
    x in S    is a search in the sorted elements of S, then `x == t`.

Several comparisons may lead to one child, so a tree is a graph without cycles. Leaves are numbered apart:
child ~n is leaf n.

Source: ONNX operator specifications TreeEnsemble 5, TreeEnsembleClassifier and TreeEnsembleRegressor 1 to 5.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.types.errors import GraphError

Array: TypeAlias = np.ndarray[Any, Any]
DOMAIN = "ai.onnx.ml"
OPERATORS = ("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor")
MAX_DEPTH = 4096  # comparisons on a way from a root to a leaf
ABOVE, BELOW, IS_NAN = 0, 1, 2  # NaN of a column: plus infinity, minus infinity, the number 1
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")  # as TreeEnsemble numbers them
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_LEQ, _LT, _GTE, _GT, _EQ, _NEQ, _MEMBER = range(7)
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_LEAF = "LEAF"


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Inner nodes as a file has them.

    Attributes:
        features: that they read.
        modes: positions in `_MODES`.
        splits: thresholds, float64.
        true, false: child by result of the comparison; ~n for leaf n.
        tracks: whether NaN goes to the true child whatever the comparison says.
        members: elements of the sets of nodes that test membership, in the order of these.
        roots: of the trees.
    """

    features: Array
    modes: Array
    splits: Array
    true: Array
    false: Array
    tracks: Array
    members: Sequence[Array]
    roots: Array


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """Weights of leaves: those of leaf n are at starts[n] to starts[n + 1], in the order of the file."""

    starts: Array
    targets: Array
    weights: Array


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees as comparisons.

    Attributes:
        columns: int64[n, 2], feature and kind (ABOVE, BELOW, IS_NAN) of each, ordered by kind.
        column, thresholds: of each comparison; thresholds have the precision of the comparison.
        children: int64[comparisons, 2].
        roots: of the trees, comparisons or ~leaf.
    """

    columns: Array
    column: Array
    thresholds: Array
    children: Array
    roots: Array
    leaves: Leaves


def check(node: ir.Node) -> None:
    """Refuse an ensemble whose nodes are no trees, or that names what does not exist.

    Raises:
        GraphError: it tells node, attribute and the number that does not fit.
    """
    nodes, leaves = _read(node)
    if len(leaves.targets) and not 0 <= leaves.targets.min() <= leaves.targets.max() < targets_of(node):
        wrong = leaves.targets[(leaves.targets < 0) | (leaves.targets >= targets_of(node))][0]
        _refuse(node, f"a leaf has a weight for target {wrong}, there are {targets_of(node)}")
    if len(nodes.features) and nodes.features.min() < 0:
        _refuse(node, f"a node reads feature {nodes.features.min()}")
    shape = None if node.inputs[0] is None else graph.shape(node.inputs[0])
    if shape and features_of(node) > shape[-1]:
        _refuse(node, f"a node reads feature {features_of(node) - 1}, its input has {shape[-1]}")
    _check_depth(node, nodes)


def features_of(node: ir.Node) -> int:
    """Number of features that an input needs: one more than the last that a node reads."""
    named = np.asarray(graph.attribute(node, "nodes_featureids", ()), np.int64)
    if node.op_type != "TreeEnsemble":
        named = named[np.array(graph.attribute(node, "nodes_modes", ()), object) != _LEAF]
    return int(named.max(initial=-1)) + 1


def targets_of(node: ir.Node) -> int:
    """Scores of a sample: targets, or classes."""
    if node.op_type != "TreeEnsembleClassifier":
        return int(graph.attribute(node, "n_targets", 1))
    return len(
        graph.attribute(node, "classlabels_strings", ()) or graph.attribute(node, "classlabels_int64s", ())
    )


def floats(node: ir.Node, name: str) -> Array:
    """An attribute of numbers, or its form in double precision, as float64."""
    tensor = graph.attribute(node, f"{name}_as_tensor", None)
    if tensor is not None:
        return np.asarray(tensor.numpy(), np.float64).reshape(-1)
    return np.asarray(graph.attribute(node, name, ()), np.float32).astype(np.float64)


def forest_of(node: ir.Node, number: np.dtype[Any]) -> Forest:
    """The comparisons of a node that `check` accepts, in the precision `number`."""
    nodes, leaves = _read(node)
    maker = _Comparisons(nodes, number)
    features, kinds = np.array(maker.features, np.int64), np.array(maker.kinds, np.int64)
    columns, column = np.unique(np.stack([kinds, features], axis=1), axis=0, return_inverse=True)
    return Forest(
        np.ascontiguousarray(columns[:, ::-1]).reshape(-1, 2),
        column.reshape(-1),
        np.array(maker.thresholds, number),
        np.stack([maker.first, maker.second], axis=1).astype(np.int64).reshape(-1, 2),
        nodes.roots,
        Leaves(leaves.starts, leaves.targets, leaves.weights.astype(number)),
    )


class _Comparisons:
    """Comparisons of inner nodes: one under the number of each node, those that it needs beside it behind."""

    def __init__(self, nodes: Nodes, number: np.dtype[Any]) -> None:
        self._number = number
        t = nodes.splits.astype(number)
        swaps = np.isin(nodes.modes, (_GTE, _GT))
        strict = np.isin(nodes.modes, (_LT, _GTE))
        self.features: list[int] = nodes.features.tolist()
        first = np.where(swaps, nodes.false, nodes.true)
        second = np.where(swaps, nodes.true, nodes.false)
        nan_first = swaps ^ nodes.tracks
        at = np.where(strict, np.nextafter(t, number.type(-np.inf)), t)
        kinds = np.where(nan_first, BELOW, ABOVE)
        # No number is below minus infinity, or compares with NaN; every number is at most infinity.
        never = np.isnan(t) | (strict & (t == -np.inf))
        always = ~never & ~nan_first & (at == np.inf)
        nan_child = np.where(nodes.tracks, nodes.true, nodes.false)
        apart = never | always
        self.thresholds: list[float] = np.where(apart, 0.5, at).tolist()
        self.kinds: list[int] = np.where(apart, IS_NAN, kinds).tolist()
        self.first: list[int] = np.where(never, nodes.false, first).tolist()
        self.second: list[int] = np.where(apart, nan_child, second).tolist()
        sets = iter(nodes.members)
        for i in np.flatnonzero(nodes.modes >= _EQ).tolist():
            true, false = int(nodes.true[i]), int(nodes.false[i])
            found = next(sets).astype(number) if nodes.modes[i] == _MEMBER else t[i : i + 1]
            inside, outside = (false, true) if nodes.modes[i] == _NEQ else (true, false)
            # NaN differs from every number, and is in no set.
            nan = true if nodes.tracks[i] else outside
            self._apart(
                i, self._search(self.features[i], np.unique(found[~np.isnan(found)]), inside, outside), nan
            )

    def _apart(self, i: int, numbers: int, nan: int) -> None:
        """Comparison i leads numbers to one child and NaN to another."""
        self.thresholds[i], self.kinds[i] = 0.5, IS_NAN
        self.first[i], self.second[i] = numbers, nan

    def _new(self, feature: int, threshold: float, first: int, second: int) -> int:
        self.features.append(feature)
        self.kinds.append(ABOVE)
        self.thresholds.append(threshold)
        self.first.append(first)
        self.second.append(second)
        return len(self.features) - 1

    def _search(self, feature: int, found: Array, inside: int, outside: int) -> int:
        """The child for a number: `inside` where it is one of these, which are sorted."""
        if len(found) == 0:
            return outside
        if len(found) > 1:
            middle = len(found) // 2
            halves = (
                self._search(feature, part, inside, outside) for part in (found[:middle], found[middle:])
            )
            return self._new(feature, float(found[middle - 1]), *halves)
        (t,) = found
        if t != -np.inf:
            below = float(np.nextafter(t, self._number.type(-np.inf)))
            inside = self._new(feature, below, outside, inside)
        return self._new(feature, float(t), inside, outside)


def _refuse(node: ir.Node, reason: str) -> None:
    raise GraphError(f"{node.op_type} {node.name!r}: {reason}", pointer=f"node:{node.name}")


def _check_depth(node: ir.Node, nodes: Nodes) -> None:
    """Refuse what leads back to itself, and ways that are too long; what no root reaches does not count."""
    count = len(nodes.features)
    children = np.stack([nodes.true, nodes.false], axis=1)
    reached = np.zeros(count, bool)
    level = np.unique(nodes.roots[nodes.roots >= 0])
    while len(level):
        reached[level] = True
        below = np.unique(children[level])
        level = below[below >= 0][~reached[below[below >= 0]]]
    ends = children[reached].reshape(-1)
    waiting = np.bincount(ends[ends >= 0], minlength=count)  # comparisons that lead to each and are not done
    level = np.flatnonzero(reached & (waiting == 0))
    done = depth = 0
    while len(level):
        done, depth = done + len(level), depth + 1
        if depth > MAX_DEPTH:
            _refuse(node, f"a tree is deeper than {MAX_DEPTH} comparisons")
        ends = children[level].reshape(-1)
        ends, counts = np.unique(ends[ends >= 0], return_counts=True)
        waiting[ends] -= counts
        level = ends[waiting[ends] == 0]
    if done < reached.sum():
        stuck = int(np.flatnonzero(reached & (waiting > 0))[0])
        _refuse(node, f"node {stuck} leads back to itself: a tree has no cycles")


def _read(node: ir.Node) -> tuple[Nodes, Leaves]:
    return _read_five(node) if node.op_type == "TreeEnsemble" else _read_classic(node)


def _equal_lengths(node: ir.Node, columns: Mapping[str, Sequence[Any] | Array]) -> None:
    """Refuse attributes that must be as long as the first and are not."""
    (first, count), *others = ((name, len(found)) for name, found in columns.items())
    for name, length in others:
        if length != count:
            _refuse(node, f"{name!r} has {length} entries, {first!r} has {count}")


def _ints(node: ir.Node, name: str, default: Array | None = None) -> Array:
    found = graph.attribute(node, name, None)
    if found is None or (len(found) == 0 and default is not None):
        return np.zeros(0, np.int64) if default is None else default
    return np.asarray(found, np.int64)


def _read_classic(node: ir.Node) -> tuple[Nodes, Leaves]:
    """Nodes are known by a tree and a number in it; leaves are nodes of a mode of their own."""
    prefix = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
    modes = graph.attribute(node, "nodes_modes", ())
    names = ("nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids")
    columns = {name: _ints(node, name) for name in names}
    columns["nodes_values"] = floats(node, "nodes_values")
    tracks = _ints(node, "nodes_missing_value_tracks_true", np.zeros(len(modes), np.int64))
    _equal_lengths(node, {"nodes_modes": modes, **columns, "nodes_missing_value_tracks_true": tracks})
    weights = floats(node, f"{prefix}_weights")
    entries = {f"{prefix}_{name}": _ints(node, f"{prefix}_{name}") for name in ("treeids", "nodeids", "ids")}
    _equal_lengths(node, {f"{prefix}_weights": weights, **entries})
    codes = _codes(node, modes)
    trees, numbers, features, true, false, values = columns.values()
    keys = _Keys(node, trees, numbers)
    is_leaf = codes < 0
    inner, leaf = np.flatnonzero(~is_leaf), np.flatnonzero(is_leaf)
    number = np.empty(len(codes), np.int64)
    number[inner], number[leaf] = np.arange(len(inner)), ~np.arange(len(leaf))
    _, roots = np.unique(trees, return_index=True)  # a tree begins with its first node
    nodes = Nodes(
        features[inner],
        codes[inner],
        values[inner],
        number[keys.find(trees[inner], true[inner], "nodes_truenodeids")],
        number[keys.find(trees[inner], false[inner], "nodes_falsenodeids")],
        tracks[inner] != 0,
        (),
        number[np.sort(roots)],
    )
    owner_trees, owner_numbers = entries[f"{prefix}_treeids"], entries[f"{prefix}_nodeids"]
    owner = number[keys.find(owner_trees, owner_numbers, f"{prefix}_nodeids")]
    held = np.flatnonzero(owner < 0)  # weights of inner nodes mean nothing
    held = held[np.argsort(~owner[held], kind="stable")]
    starts = np.searchsorted(~owner[held], np.arange(len(leaf) + 1))
    return nodes, Leaves(starts, entries[f"{prefix}_ids"][held], weights[held])


def _codes(node: ir.Node, modes: Sequence[str]) -> Array:
    """Positions in `_MODES`; -1 for leaves."""
    known = {mode: code for code, mode in enumerate(_MODES[:_MEMBER])} | {_LEAF: -1}
    unknown = sorted(set(modes) - known.keys())
    if unknown:
        _refuse(node, f"'nodes_modes' has {unknown[0]!r}; known are {', '.join(known)}")
    return np.array([known[mode] for mode in modes], np.int64)


class _Keys:
    """Positions of nodes by tree and number."""

    def __init__(self, node: ir.Node, trees: Array, numbers: Array) -> None:
        self._node = node
        self._trees, self._numbers = np.unique(trees), np.unique(numbers)
        keys, _ = self._keys(trees, numbers)
        self._order = np.argsort(keys, kind="stable")
        self._known = keys[self._order]
        twice = self._order[1:][self._known[1:] == self._known[:-1]]
        if len(twice):
            _refuse(node, f"tree {trees[twice[0]]} has two nodes {numbers[twice[0]]}")

    def _keys(self, trees: Array, numbers: Array) -> tuple[Array, Array]:
        """One number for a tree and a number in it, and whether both occur at all."""
        known = np.ones(len(trees), bool)
        parts = []
        for found, names in ((trees, self._trees), (numbers, self._numbers)):
            at = np.minimum(np.searchsorted(names, found), max(len(names) - 1, 0))
            known &= names[at] == found if len(names) else False
            parts.append(at)
        return parts[0] * len(self._numbers) + parts[1], known

    def find(self, trees: Array, numbers: Array, attribute: str) -> Array:
        """Positions of these nodes; refuses one that does not exist."""
        keys, known = self._keys(trees, numbers)
        at = np.minimum(np.searchsorted(self._known, keys), max(len(self._known) - 1, 0))
        if len(self._known):
            known &= self._known[at] == keys
        missing = np.flatnonzero(~known)
        if len(missing):
            tree, number = trees[missing[0]], numbers[missing[0]]
            _refuse(self._node, f"{attribute!r} names node {number} of tree {tree}, which does not exist")
        return self._order[at]


def _read_five(node: ir.Node) -> tuple[Nodes, Leaves]:
    """Inner nodes and leaves are known by their positions."""
    splits = _tensor(node, "nodes_splits")
    modes = _tensor(node, "nodes_modes").astype(np.int64)
    empty = np.zeros(len(modes), np.int64)
    names = ("featureids", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
    columns = {f"nodes_{name}": _ints(node, f"nodes_{name}") for name in names}
    tracks = _ints(node, "nodes_missing_value_tracks_true", empty)
    _equal_lengths(
        node,
        {"nodes_modes": modes, "nodes_splits": splits, **columns, "nodes_missing_value_tracks_true": tracks},
    )
    weights, targets = _tensor(node, "leaf_weights"), _ints(node, "leaf_targetids")
    _equal_lengths(node, {"leaf_weights": weights, "leaf_targetids": targets})
    if len(modes) and not 0 <= modes.min() <= modes.max() <= _MEMBER:
        _refuse(
            node, f"'nodes_modes' has values from {modes.min()} to {modes.max()}, known are 0 to {_MEMBER}"
        )
    features, true, true_leaf, false, false_leaf = columns.values()
    roots = _ints(node, "tree_roots")
    for name, found, count in (
        ("tree_roots", roots, len(modes)),
        ("nodes_truenodeids", true[true_leaf == 0], len(modes)),
        ("nodes_truenodeids", true[true_leaf != 0], len(weights)),
        ("nodes_falsenodeids", false[false_leaf == 0], len(modes)),
        ("nodes_falsenodeids", false[false_leaf != 0], len(weights)),
    ):
        outside = found[(found < 0) | (found >= count)]
        if len(outside):
            _refuse(node, f"{name!r} has {outside[0]}, expected 0 to {count - 1}")
    members = _sets(_tensor(node, "membership_values")) if "membership_values" in node.attributes else []
    if len(members) < (modes == _MEMBER).sum():
        _refuse(node, f"'membership_values' has {len(members)} sets for {(modes == _MEMBER).sum()} nodes")
    nodes = Nodes(
        features, modes, splits,
        np.where(true_leaf != 0, ~true, true), np.where(false_leaf != 0, ~false, false),
        tracks != 0, members, roots,
    )  # fmt: skip
    return nodes, Leaves(np.arange(len(weights) + 1), targets, weights)


def _tensor(node: ir.Node, name: str) -> Array:
    found = graph.attribute(node, name, None)
    return np.zeros(0) if found is None else np.asarray(found.numpy(), np.float64).reshape(-1)


def _sets(values: Array) -> list[Array]:
    """Sets that NaN separates."""
    ends = np.flatnonzero(np.isnan(values))
    parts = np.split(values, ends)
    parts = [part[~np.isnan(part)] for part in parts]
    return parts if len(ends) == 0 or len(parts[-1]) else parts[:-1]
