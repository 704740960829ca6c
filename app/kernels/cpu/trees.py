"""Ensembles of decision trees: several rows, or several trees of one row, go down side by side.

A node is a threshold and a link, next to each other in one table. The link holds the place of a column in
its low bits and, above these, the distance from the node to the first of its two children, which are
neighbors. A row goes to the second child where the column exceeds the threshold; there are no branches. A
leaf has distance 0, its threshold is its value, and its column is number 0, which holds minus infinity, so
what has arrived stays. A step of one descent waits for memory and for a comparison; LANES of them, whose
positions are in registers, fill the time.

Columns are copies of the features that nodes read, NaN in them made a number, see
`app.engine.operators.forest`. Leaves are added up in the order of the trees, in the precision of the
thresholds, as onnxruntime does on one thread: scores that meet a limit exactly get the same labels.
"""

from app.kernels.cpu.codegen.inner import njit

LANES = 8
WIDE = 32  # bits of a column's place in a link of 64 bits
TREE = 4  # numbers of a tree: its root, steps that all rows take, further ones, target of its leaves

_HEADER = """\
from numba import {number}, int64, uint8
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.trees import fill


@njit(error_model="numpy", boundscheck=False)
def descend(columns, nodes, links, {positions}, sure, more):
    for _ in range(sure):
{step}
    while more > 0:
{step}
        if {moved} == 0:
            break
        more -= 1
    return {positions}


@njit(error_model="numpy", boundscheck=False)
def add(v, sums, there, target, {entries}targets):
{add}


@njit(error_model="numpy", boundscheck=False)
def finish(sums, there, base, count, rows, targets):
    for r in range(rows):
        for i in range(targets):
            v = sums[r * targets + i]
{finish}
            sums[r * targets + i] = v + base[i]


"""

_ROWS = """\
def kernel(
    x, y, there, nodes, links, table, trees, base, {entries}scratch,
    size, groups, count, s0, s1, s2, features, targets, begin, end, thread,
):
    columns = at(scratch, thread * size)
    values = at(columns, s2)
    for unit in range(begin, end):
        fill(at(x, unit * features), columns, table, 1, 1, s0, s1, s2, features)
        for g in range(groups):
            t = g * {LANES}
            sure = trees[t * {TREE} + 1]
            more = trees[t * {TREE} + 2]
            {positions} = descend(columns, nodes, links, {roots}, sure, more)
{values}
        sums = at(y, unit * targets)
        met = at(there, unit * targets)
        for i in range(targets):
            sums[i] = 0
{clear}
        for t in range(count):
            add(values[t], sums, met, trees[t * {TREE} + 3], {entries}targets)
        finish(sums, met, base, count, 1, targets)
"""

_BLOCKS = """\
def kernel(
    x, y, there, nodes, links, table, trees, base, {entries}scratch,
    size, block, rows, count, s0, s1, s2, features, targets, begin, end, thread,
):
    columns = at(scratch, thread * size)
    values = at(columns, block * s2)
    for unit in range(begin, end):
        first = unit * block
        width = min(block, rows - first)
        groups = (width + {LANES} - 1) // {LANES}
        sums = at(y, first * targets)
        met = at(there, first * targets)
        for i in range(width * targets):
            sums[i] = 0
{clear}
        for g in range(groups):
            r = g * {LANES}
            side = at(columns, r * s2)
            left = min({LANES}, width - r)
            fill(at(x, (first + r) * features), side, table, {LANES}, left, s0, s1, s2, features)
        for t in range(count):
            root = trees[t * {TREE}]
            sure = trees[t * {TREE} + 1]
            more = trees[t * {TREE} + 2]
            target = trees[t * {TREE} + 3]
            for g in range(groups):
                r = g * {LANES}
                {positions} = descend(at(columns, r * s2), nodes, links, {roots}, sure, more)
{values}
                for k in range(min({LANES}, width - r)):
                    i = (r + k) * targets
                    add(values[k], at(sums, i), at(met, i), target, {entries}targets)
        finish(sums, met, base, count, width, targets)
"""

# How the weights of a leaf reach its targets: its value is the only weight, the number of a row of weights
# for all targets, or the number of a list of targets and weights.
_FORMS = {
    "value": ("", "    {}"),
    "dense": ("weights, ", "    leaf = int64(v) * targets\n    for i in range(targets):\n        {}"),
    "sparse": (
        "weights, starts, owners, ",
        "    leaf = int64(v)\n"
        "    for e in range(starts[leaf], starts[leaf + 1]):\n"
        "        i = owners[e]\n"
        "        {}",
    ),
}
_OPERANDS = {"value": ("target", "v"), "dense": ("i", "weights[leaf + i]"), "sparse": ("i", "weights[e]")}
_STEPS = {
    "sum": "sums[{i}] += {w}",
    "min": "sums[{i}] = {w} if there[{i}] == 0 or {w} < sums[{i}] else sums[{i}]",
    "max": "sums[{i}] = {w} if there[{i}] == 0 or {w} > sums[{i}] else sums[{i}]",
}
FORMS = tuple(_FORMS)


def forest(number: str, bits: int, form: str, aggregate: str, met: bool, together: bool) -> str:
    """Source of a kernel that adds up the leaves that rows of x reach.

    x: T[rows, features]; y: number[rows, targets]; there: uint8 like y, 1 where a leaf had a weight, written
    only if `met`; nodes and links: the same table of nodes; table: int64, the feature of each column, those
    up to s0 with NaN as plus infinity, up to s1 as minus infinity, up to s2 those that tell NaN from numbers;
    trees: int64[trees, TREE]; base: number[targets]. `bits` are those of a column's place in a link; `form`
    is one of FORMS; `aggregate` is sum, mean, min or max; `together`: rows side by side, in blocks of
    `block`, which are the units; else trees are, and units are rows.
    """
    wide = bits == WIDE
    stride = 4 if wide and number == "float32" else 2
    lanes = range(LANES)
    step, clear = [], "there[i] = 0" if met else "pass"
    for k in lanes:
        lane = f" + {k}" if together else ""
        step += [
            f"n{k} = int64(links[p{k} * 2 + 1])",
            f"d{k} = n{k} >> {bits}",
            f"p{k} += d{k} + (columns[(n{k} & {(1 << bits) - 1}){lane}] > nodes[p{k} * {stride}])",
        ]
    entries, text = _FORMS[form]
    i, w = _OPERANDS[form]
    add = text.format(_STEPS.get(aggregate, _STEPS["sum"]).format(i=i, w=w))
    if met:
        indent = " " * (len(add.splitlines()[-1]) - len(add.splitlines()[-1].lstrip()))
        add += f"\n{indent}there[{i}] = 1"
    spaces = 16 if together else 12
    target = "values[{k}]" if together else "values[t + {k}]"
    body = (_BLOCKS if together else _ROWS).format(
        positions=", ".join(f"p{k}" for k in lanes),
        roots=", ".join("root" if together else f"trees[(t + {k}) * {TREE}]" for k in lanes),
        values="\n".join(f"{' ' * spaces}{target.format(k=k)} = nodes[p{k} * {stride}]" for k in lanes),
        clear=" " * 12 + clear.replace("there", "met"),
        entries=entries,
        LANES=LANES,
        TREE=TREE,
    )
    header = _HEADER.format(
        number=number,
        positions=", ".join(f"p{k}" for k in lanes),
        step="\n".join(f"        {line}" for line in step),
        moved=f"({' | '.join(f'd{k}' for k in lanes)})",
        entries=entries,
        add=add,
        finish=" " * 12 + (f"v = v / {number}(count)" if aggregate == "mean" else "pass"),
    )
    return header + body


@njit(error_model="numpy", boundscheck=False)
def fill(x, columns, table, lanes, rows, s0, s1, s2, features):
    """Columns of `lanes` rows side by side, of which there are `rows`; the last stands in for the others."""
    for k in range(lanes):
        columns[k] = -_INFINITY
    for s in range(1, s1):
        beyond = _INFINITY if s < s0 else -_INFINITY
        for k in range(lanes):
            i = s * lanes + k
            columns[i] = x[min(k, rows - 1) * features + table[s]]
            if columns[i] != columns[i]:
                columns[i] = beyond
    for s in range(s1, s2):
        for k in range(lanes):
            v = x[min(k, rows - 1) * features + table[s]]
            columns[s * lanes + k] = 1 if v != v else 0


_INFINITY = float("inf")
