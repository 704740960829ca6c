"""Rules that give values of unknown size a place: as prefixes of values whose size bounds theirs.

Where NonZero, Compress, NonMaxSuppression, TopK, ConstantOfShape, Range, Slice or Loop make a value whose
size a run finds out, and operators read it, it becomes a prefix (see `prefix`); outputs of the graph too in
libraries, which have no other memory for them, and in regions of shapes, which have formulas of the whole.
What reads prefixes computes with wholes and leaves prefixes again, so all of it has places in the arena and
compiled kernels. Outputs of the graph, and operands of operators without a rule, are taken off the wholes at
the end.
"""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Replacement, RewriteRule, sole_reader
from app.engine.operators.tables import elementwise
from app.engine.rewrites.bounded import computing, extents, growing, movement
from app.engine.rewrites.bounded.movement import Results
from app.engine.rewrites.bounded.prefix import Nodes, Prefix, prefix_of

LONGEST = 64  # nodes of a branch that is computed whatever its condition
_ELEMENTWISE = tuple(row.op for row in elementwise.OPERATORS if row.elementwise and not row.per_axis)
_BUILDS: dict[str, Callable[[Nodes, ir.Node], Results]] = {
    **dict.fromkeys((op for op in _ELEMENTWISE if op != "Dropout"), computing.elementwise),
    **dict.fromkeys(computing.REDUCTIONS, computing.reduction),
    **dict.fromkeys(("ArgMax", "ArgMin"), computing.extremum),
    **dict.fromkeys(computing.SLICEWISE, computing.by_slice),
    "Transpose": movement.transpose,
    "Unsqueeze": movement.unsqueeze,
    "Squeeze": movement.squeeze,
    "Reshape": movement.reshape,
    "Flatten": movement.flatten,
    "Shape": movement.shape,
    "Size": movement.size,
    "Gather": movement.gather,
    "GatherND": movement.gather_nd,
    "Split": movement.split,
    "Concat": movement.concat,
    **dict.fromkeys(("ScatterElements", "ScatterND"), movement.scatter),
}
# Operators that find out the size of their results; taken over where something goes on with these.
_SOURCES: dict[str, Callable[[Nodes, ir.Node], Results]] = {
    "NonZero": computing.nonzero,
    "Compress": computing.compress,
    "NonMaxSuppression": computing.suppress,
    "TopK": computing.top,
    "ConstantOfShape": computing.full,
    "Range": computing.numbers,
    "Slice": movement.cut,
    "Expand": movement.expand,
    "Loop": growing.loop,
}


def of_prefixes(node: ir.Node) -> Replacement | None:
    """An operator on prefixes is the same on their wholes, and a prefix again."""
    if not any(prefix_of(v) is not None for v in node.inputs):
        return None
    return _replaced(node, (_BUILDS | _SOURCES)[node.op_type])


def bound_size(node: ir.Node) -> Replacement | None:
    """A value whose size a run finds out is a prefix, where an operator that can do with one reads it."""
    readers = [use.node for v in _dynamic(node) for use in v.uses()]
    if not any(r.op_type in _BUILDS or r.op_type in _SOURCES for r in readers) and node.op_type != "Loop":
        return None  # of a loop the turns run in the compiled driver, whoever reads their stacks
    return _bounded(node)


def bound_output(node: ir.Node) -> Replacement | None:
    """An output of the graph whose size a run finds out is a prefix."""
    return _bounded(node) if any(v.is_graph_output() for v in _dynamic(node)) else None


def _dynamic(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.outputs if v.shape is not None and graph.is_dynamic(v)]


def _bounded(node: ir.Node) -> Replacement | None:
    if any(prefix_of(v) is not None for v in node.inputs):
        return None
    return _replaced(node, _SOURCES[node.op_type])


def _replaced(node: ir.Node, build: Callable[[Nodes, ir.Node], Results]) -> Replacement | None:
    n = Nodes(node)
    results = build(n, node)
    if results is None:
        for made in reversed(n.made):  # a node counts as a reader from its creation on
            for i in range(len(made.inputs)):
                made.replace_input_with(i, None)
        return None
    outputs = [n.prefix(r) if isinstance(r, Prefix) else r for r in results]
    return Replacement([o if v.name else None for v, o in zip(node.outputs, outputs, strict=True)], n.made)


def inline_nonempty(node: ir.Node) -> Replacement | None:
    """If(c) { an empty constant } else { y } = the first elements of y, of which there are none if c.

    What its branch reads are prefixes and values of static shape, so all of it is computed on wholes.
    """
    branches = {n: node.attributes[n].as_graph() for n in ("then_branch", "else_branch")}
    empty = next((n for n, g in branches.items() if _empty_axis(g) is not None), None)
    axis = None if empty is None else _empty_axis(branches[empty])
    if axis is None or node.outputs[0].shape is None:
        return None
    branch = branches["else_branch" if empty == "then_branch" else "then_branch"]
    members = tuple(branch)
    if not 0 < len(members) <= LONGEST or any(_is_unfit(m) for m in members):
        return None
    result = branch.outputs[0]
    if result.producer() not in members:
        return None
    n, condition = Nodes(node), graph.operand(node, 0)
    branch.outputs.clear()
    branch.remove(members)
    for member in members:
        member.name = f"{node.name}.{member.name}"
    ends = [n.constant([e]) for e in (np.iinfo(np.int64).max, 0)]
    end = n.number("Where", _flat(n, condition), *(ends if empty == "else_branch" else reversed(ends)))
    limits = [n.constant([0]), end, n.constant([axis])]
    taken = n("Slice", [result, *limits], result.dtype, ())
    taken.shape = node.outputs[0].shape
    return Replacement([taken], [*members, *n.made])


def limit_suppression(node: ir.Node) -> Replacement | None:
    """The first k results of NonMaxSuppression of one class are those of one that chooses at most k."""
    scores, most = graph.operand(node, 1), graph.constant(graph.input_at(node, 2))
    limit = _read(node.outputs[0])
    if scores.shape is None or list(scores.shape)[:2] != [1, 1] or most is None or limit is None:
        return None
    if most.item() <= limit:
        return None
    n = Nodes(node)
    inputs = [*node.inputs[:2], n.constant(np.full(most.shape, limit)), *node.inputs[3:]]
    new = ir.Node("", node.op_type, inputs, list(node.attributes.values()))
    return Replacement(new.outputs, [new])


def _read(value: ir.Value) -> int | None:
    """Slices of the first axis that are read at most, all of them in front; None where all may be."""
    reader = sole_reader(value)
    while reader is not None and reader.op_type in ("Slice", "Gather", "Squeeze", "Cast"):
        given = [graph.constant(graph.input_at(reader, i)) for i in range(1, 5)]
        if reader.op_type == "Slice":
            starts, ends, axes, steps = given
            if starts is None or axes is None or len(axes) != 1 or (steps is not None and steps[0] != 1):
                return None
            if axes[0] == 0 and (starts[0] != 0 or (ends is not None and ends[0] < 0)):
                return None
            if axes[0] == 0 and ends is not None:
                return max(int(ends[0]), 1)
        elif reader.op_type == "Gather":
            if value is not reader.inputs[0] or graph.attribute(reader, "axis", 0) != 1:
                return None
        elif reader.op_type == "Squeeze" and (given[0] is None or list(given[0]) != [1]):
            return None
        value = reader.outputs[0]
        reader = sole_reader(value)
    return None


def _flat(n: Nodes, condition: ir.Value) -> ir.Value:
    return n("Reshape", [condition, n.constant([1])], ir.DataType.BOOL, (1,))


def _empty_axis(branch: ir.Graph) -> int | None:
    """The first axis of extent 0 of a branch that is a constant; None of others."""
    found = graph.constant(graph.source(branch.outputs[0])) if len(branch.outputs) == 1 else None
    return found.shape.index(0) if found is not None and 0 in found.shape else None


def _is_unfit(member: ir.Node) -> bool:
    """True if a node of a branch is not one that computes on prefixes and values of static shape."""
    if member.op_type not in _BUILDS and member.op_type not in _SOURCES:
        return True
    around = (v for v in member.inputs if v is not None and v.graph is not member.graph)
    return any(graph.is_dynamic(v) and prefix_of(v) is None for v in around)


def rows(backend: str) -> tuple[RewriteRule, ...]:
    """The rules, for targets of a backend."""
    return (
        RewriteRule(extents.tell_extents, extents.OPERATORS, nested=False, backends=(backend,)),
        RewriteRule(of_prefixes, (*_BUILDS, *_SOURCES), nested=False, backends=(backend,)),
        RewriteRule(limit_suppression, ("NonMaxSuppression",), backends=(backend,)),
        RewriteRule(bound_size, tuple(_SOURCES), nested=False, backends=(backend,)),
        RewriteRule(bound_output, tuple(_SOURCES), nested=False, backends=(backend,), for_libraries=True),
        RewriteRule(inline_nonempty, ("If",), nested=False, backends=(backend,)),
    )
