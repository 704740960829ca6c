"""Rows of ensembles of trees: sums of leaves, then labels and transformed scores."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, Operands, of_values, typed_call
from app.engine.backends.cpu.rows import after, single_rejection
from app.engine.backends.cpu.scores import classes_of, scored
from app.engine.backends.cpu.tree_tables import Tables, pack
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, Workspace
from app.engine.core.group import Group, of_group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators import forest as meaning
from app.engine.operators.forest import AGGREGATES, Forest, floats, targets_of
from app.engine.operators.operands import data
from app.kernels.cpu.trees import LANES

Array: TypeAlias = np.ndarray[Any, Any]
INPUTS = ("float32", "float64", "int32", "int64")
BLOCK = 256  # rows whose columns are held while a tree is read from the cache
COLUMNS = 2**15  # numbers of columns of a block
EXACT = 2**24  # numbers below which float32 has all integers
STEP_SECONDS = 0.7e-9  # of one comparison among LANES, measured
_KINDS = {"SUM": "sum", "AVERAGE": "mean", "MIN": "min", "MAX": "max"}


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums of a forest as the kernel makes them.

    Attributes:
        number: element type of thresholds and sums.
        form: see `app.kernels.cpu.trees.FORMS`.
        aggregate: sum, mean, min or max.
        width: sums of a row.
        base: added to each.
        met: whether the kernel tells which sums some leaf had a weight for.
        entries: weights of leaves, and for the form sparse where those of each begin, and their targets.
        values: of leaves: the only weight, or their number.
        targets: of the trees, in the form value.
    """

    number: str
    form: str
    aggregate: str
    width: int
    base: Array
    met: bool
    forest: Forest
    entries: tuple[Array, ...]
    values: Array
    targets: Array


def _number(node: ir.Node) -> np.dtype[Any]:
    """Precision of comparisons and sums: that of float64 inputs, else float32."""
    return np.dtype(np.float64 if graph.element_type(data(node)) == np.float64 else np.float32)


def _rows_and_features(node: ir.Node) -> tuple[int, int]:
    shape = graph.static_shape(data(node))
    return (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])


@after(single_rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    x, shape = data(node), graph.static_shape(data(node))
    if graph.element_type(x).name not in INPUTS:
        return f"input {x.name!r} is {graph.element_type(x)}; the kernel takes {', '.join(INPUTS)}"
    if len(shape) not in (1, 2):
        return f"input {x.name!r} has rank {len(shape)}, expected samples of features"
    needed = meaning.features_of(node)
    if needed > shape[-1]:
        return f"a node reads feature {needed - 1}, input {x.name!r} has {shape[-1]}"
    base, width = _base(node), targets_of(node)
    if len(base) not in _base_lengths(node, width):
        return f"'base_values' has {len(base)} entries for {width} targets"
    found = sums_of(group)
    if len(found.forest.roots) == 0:
        return "it has no trees"
    if found.form != "value" and len(found.values) > EXACT:
        return f"it has {len(found.values)} leaves, the kernel takes {EXACT}"
    return None


def _base(node: ir.Node) -> Array:
    return floats(node, "base_values")


def _base_lengths(node: ir.Node, width: int) -> tuple[int, ...]:
    return (0, 1, 2) if node.op_type == "TreeEnsembleClassifier" and width == 2 else (0, width)


@of_group
def sums_of(group: Group) -> Sums:
    """The forest of a group in the form that suits its leaves."""
    node = group.anchor
    number = _number(node)
    forest = meaning.forest_of(node, number)
    width = targets_of(node)
    classes = classes_of(node, forest.leaves.targets, forest.leaves.weights)
    base = _base(node).astype(number)
    if classes.choice == "single":
        width = 1
    elif classes.choice == "second" and len(base) != width:
        base = np.zeros(0, number)
    base = base if len(base) else np.zeros(width, number)
    aggregate = _aggregate(node)
    form, entries, values, targets, always = _form(forest, width)
    met = aggregate in ("min", "max") or (classes.choice == "largest" and len(always) < width)
    return Sums(number.name, form, aggregate, width, base, met, forest, entries, values, targets)


def _form(forest: Forest, width: int) -> tuple[str, tuple[Array, ...], Array, Array, set[int]]:
    """Form, entries, values of leaves, targets of trees, and targets that every row meets."""
    leaves = forest.leaves
    counts = np.diff(leaves.starts)
    reached = _reached(forest)
    own = [np.unique(leaves.targets[_entries(leaves.starts, found)]) for found in reached]
    single = [len(t) == 1 and bool((counts[found] == 1).all()) for t, found in zip(own, reached)]
    always = {int(t[0]) for t, is_single in zip(own, single) if is_single}
    if all(single):
        values = np.zeros(len(counts), leaves.weights.dtype)
        held = counts == 1
        values[held] = leaves.weights[leaves.starts[:-1][held]]
        return "value", (), values, np.array([int(t[0]) for t in own], np.int64), always
    numbers, targets = np.arange(len(counts)).astype(leaves.weights.dtype), np.zeros(len(own), np.int64)
    if (counts == width).all() and (leaves.targets.reshape(-1, width) == np.arange(width)).all():
        return "dense", (leaves.weights,), numbers, targets, set(range(width))
    return "sparse", (leaves.weights, leaves.starts, leaves.targets), numbers, targets, always


def _aggregate(node: ir.Node) -> str:
    if node.op_type == "TreeEnsemble":
        return _KINDS[AGGREGATES[graph.attribute(node, "aggregate_function", 1)]]
    default = "SUM"
    return _KINDS[
        default
        if node.op_type == "TreeEnsembleClassifier"
        else graph.attribute(node, "aggregate_function", default)
    ]


def _entries(starts: Array, leaves: Array) -> Array:
    """Positions of the weights of some leaves."""
    counts = starts[leaves + 1] - starts[leaves]
    ends = np.cumsum(counts)
    return np.repeat(starts[leaves] - (ends - counts), counts) + np.arange(int(counts.sum()))


def _reached(forest: Forest) -> list[Array]:
    """Leaves of each tree."""
    found: list[list[Array]] = [[] for _ in forest.roots]
    level, tree = forest.roots, np.arange(len(forest.roots))
    seen = np.zeros(len(forest.children), bool)
    while len(level):
        for number in np.unique(tree[level < 0]).tolist():
            found[number].append(~level[(level < 0) & (tree == number)])
        inner = level >= 0
        level, tree = level[inner], tree[inner]
        level, index = np.unique(level, return_index=True)
        tree = tree[index]
        fresh = ~seen[level]
        seen[level] = True
        level, tree = forest.children[level[fresh]].reshape(-1), np.repeat(tree[fresh], 2)
    return [np.unique(np.concatenate(part)) if part else np.zeros(0, np.int64) for part in found]


@of_group
def tables_of(group: Group, together: bool) -> Tables:
    """Packed nodes of a group."""
    sums = sums_of(group)
    return pack(sums.forest, sums.values, sums.targets, together)


def _sum_call(group: Group, context: PlanningContext, y: Operand, there: Operand) -> Call:
    """The call that makes the sums of all rows in `y`."""
    node, sums = group.anchor, sums_of(group)
    rows, features = _rows_and_features(node)
    together = rows >= LANES
    tables = tables_of(group, together)
    itemsize = np.dtype(sums.number).itemsize
    link = "int64*" if tables.nodes.itemsize == 8 else "int32*"
    nodes = Constant(tables.nodes)
    s2 = tables.ends[2]
    if together:
        share = -(-rows // context.threads)
        block = max(min(BLOCK, COLUMNS // s2, share) // LANES, 1) * LANES
        size, units = block * s2 + LANES, -(-rows // block)
        extent: tuple[int, ...] = (block, rows, len(tables.trees))
    else:
        size, units = s2 + len(tables.trees), rows
        extent = (len(tables.trees) // LANES, len(sums.targets))
    names = (f"{sums.number}*", "int64*", "int64*")
    operands: Operands = (
        *of_values(data(node)), y, there,
        (f"{sums.number}*", nodes), (link, nodes),
        ("int64*", Constant(tables.columns)), ("int64*", Constant(tables.trees)),
        (f"{sums.number}*", Constant(sums.base)),
        *((name, Constant(array)) for name, array in zip(names, sums.entries)),
        (f"{sums.number}*", Workspace(size * itemsize, per_thread=True)),
        size, *extent, *tables.ends, features, sums.width,
    )  # fmt: skip
    static = (sums.number, tables.bits, sums.form, sums.aggregate, sums.met, together)
    return typed_call("app.kernels.cpu.trees:forest", operands, units, static)


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    node, sums = group.anchor, sums_of(group)
    rows, _ = _rows_and_features(node)
    there: Operand = ("uint8*", Workspace(rows * sums.width if sums.met else 1))
    classes = classes_of(node, sums.forest.leaves.targets, sums.forest.leaves.weights)
    y = node.outputs[-1] if node.op_type != "TreeEnsembleClassifier" else None
    plain = classes.transform == "NONE" and classes.choice == "none"
    if y is not None and plain and graph.element_type(y).name == sums.number:
        return (_sum_call(group, context, (f"{sums.number}*", y), there),)
    raw: Operand = (f"{sums.number}*", Workspace(rows * sums.width * np.dtype(sums.number).itemsize))
    total = _sum_call(group, context, raw, there)
    return (total, scored(node, classes, raw, there if sums.met else None, rows, sums.width))


def _cost(group: Group, context: PlanningContext) -> float:
    rows, _ = _rows_and_features(group.anchor)
    tables = tables_of(group, rows >= LANES)
    seconds = rows * tables.levels * STEP_SECONDS / min(context.threads, max(rows // LANES, 1))
    return max(seconds, roofline(context.target, flops=0, nbytes=tables.nodes.nbytes))


IMPLEMENTATIONS = tuple(
    Implementation(
        f"trees.{op.removeprefix('TreeEnsemble').lower() or 'ensemble'}",
        op,
        "numba-cpu",
        _rejection,
        _lower,
        _cost,
        domain=meaning.DOMAIN,
    )
    for op in meaning.OPERATORS
)
