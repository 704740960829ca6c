"""Nodes that ask for gradients, in place of which the differentiation puts plain operators.

`Gradient` of ai.onnx.preview.training names the values of its own graph between which it differentiates; its
operands are where the gradient is taken. `Backward` is made of a symbol's backward operators: gradients of
values, these values, and what they are computed from; its outputs are gradients of the latter.
"""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from app.engine.core import graph
from app.engine.gradient import dropout, marks, sparse
from app.engine.gradient.differentiate import adjoints, append_needed, ones, upstream
from app.engine.gradient.terms import Maker, Term
from app.engine.model import naming
from app.engine.model.shape_inference import inference
from app.engine.model.shape_inference.tensor_rules import BACKWARD, GRADIENT
from app.engine.types.errors import CyclicGraphError, GraphError, ModelTooLargeError
from app.engine.types.limits import Limits

_MOST = 64  # Gradient nodes of a model: each may differentiate what others made

Results = dict[ir.Value, ir.Value]  # by output of a node that is replaced


def asks(model: ir.Model) -> bool:
    """True if a node of the model, or of a graph nested in it, asks for gradients."""
    return any(_key(node) in (GRADIENT, BACKWARD) for node in model.graph.all_nodes())


def expand(model: ir.Model, limits: Limits) -> None:
    """Replace all nodes that ask for gradients; the inputs of the model have static shapes.

    Raises:
        NotDifferentiableError: an operator on the way has no gradient.
        CyclicGraphError: a gradient is asked of what is computed from it.
        ModelTooLargeError: more nodes than allowed come of it.
        GraphError: a node names no values, or its operands do not fit.
    """
    main = model.graph
    naming.make_unique(model)
    inference.infer(model)
    for node in main.all_nodes():
        if _key(node) in (GRADIENT, BACKWARD) and node.graph is not main:
            raise _error(node, "is in a nested graph; expected in the main graph")
    graph.order_by_wiring(main)
    dropout.take_masks(model)
    gradients = marks.gradients(model)
    marks.mark(model, gradients)
    backward = [node for node in main if _key(node) == BACKWARD]
    if backward:
        maker = Maker("backward.")
        results: Results = {}
        for node in backward:
            results |= _replaced(maker, node, *_of_backward(maker, node))
        _finish(model, maker, results, backward, limits)
    left = [node for node in main if _key(node) == GRADIENT]
    if len(left) > _MOST:
        raise ModelTooLargeError(f"the model has {len(left)} nodes Gradient, allowed are {_MOST}")
    while left:
        node = _next(left)
        left.remove(node)
        maker = Maker(f"{node.name}.")
        _finish(model, maker, _replaced(maker, node, *_of_gradient(maker, node)), [node], limits)
    graph.order_by_wiring(main)
    sparse.declare(v for v in main.outputs if v.name in gradients)


def _key(node: ir.Node) -> tuple[str, str]:
    return node.domain, node.op_type


def _error(node: ir.Node, text: str) -> GraphError:
    return GraphError(f"{node.op_type} {node.name!r}: {text}", pointer=f"node:{node.name}")


def _of_backward(maker: Maker, node: ir.Node) -> tuple[dict[ir.Value, Term], tuple[ir.Value, ...]]:
    """The seeds, and the values that gradients are asked of."""
    count = graph.attribute(node, "count", 0)
    if None in node.inputs or not isinstance(count, int):
        raise _error(node, "an operand is left out, or count is no whole number")
    given = graph.operands(node)
    if not 0 < count <= len(given) // 2 or len(given) < 2 * count + len(node.outputs):
        raise _error(node, f"count is {count} with {len(given)} operands and {len(node.outputs)} outputs")
    gradients, values = given[:count], given[count : 2 * count]
    for gradient, value in zip(gradients, values):
        if graph.shape(gradient) != graph.shape(value) or gradient.dtype != value.dtype:
            raise _error(
                node,
                f"the gradient {gradient.name!r} is {gradient.dtype} {gradient.shape}; expected "
                f"{value.dtype} {value.shape}, as its value",
            )
    return {v: Term(maker, g) for v, g in zip(values, gradients)}, given[2 * count :]


def _of_gradient(maker: Maker, node: ir.Node) -> tuple[dict[ir.Value, Term], tuple[ir.Value, ...]]:
    """Ones as the seed of the value that the node names, and its operands."""
    named, target = _named(node)
    if None in node.inputs:
        raise _error(node, "an operand is left out")
    given = graph.operands(node)
    if len(named) != len(given) or len(node.outputs) > len(graph.attribute(node, "xs", ())):
        raise _error(node, f"{len(given)} operands for {len(named)} names in xs and zs")
    for value, at in zip(named, given):
        if graph.shape(value) != graph.shape(at) or value.dtype != at.dtype:
            raise _error(node, f"operand {at.name!r} is not as {value.name!r}, which it stands for")
    substituted = {v: at for v, at in zip(named, given) if v is not at}
    moved = _copied(maker, target, named, substituted) if substituted else target
    return {moved: ones(maker, moved)}, given


def _named(node: ir.Node) -> tuple[tuple[ir.Value, ...], ir.Value]:
    """The values of xs and zs, and y."""
    assert node.graph is not None
    known = {v.name: v for v in graph.values(node.graph)}
    names: list[str] = [*graph.attribute(node, "xs", ()), *graph.attribute(node, "zs", ())]
    found = []
    for name in (*names, graph.attribute(node, "y", "")):
        if name not in known:
            raise _error(node, f"names {name!r}; expected a value of its graph")
        found.append(known[name])
    return tuple(found[:-1]), found[-1]


def _copied(
    maker: Maker, target: ir.Value, named: Sequence[ir.Value], at: Mapping[ir.Value, ir.Value]
) -> ir.Value:
    """The target computed anew, with other values in the place of those that are named."""
    made = dict(at)
    for node in upstream((target,), named):
        if not any(v in made for v in graph.reads(node)):
            continue
        inputs = [made.get(v, v) if v is not None else None for v in node.inputs]
        copy = ir.Node(node.domain, node.op_type, inputs, list(node.attributes.values()),
                       num_outputs=len(node.outputs), name=f"{maker.prefix}{node.name}")  # fmt: skip
        for old, new in zip(node.outputs, copy.outputs):
            new.name, new.shape, new.type = f"{maker.prefix}{old.name}", old.shape, old.type
            made[old] = new
        maker.nodes.append(copy)
    return made.get(target, target)


def _next(left: Sequence[ir.Node]) -> ir.Node:
    """A node whose value depends on none that is left.

    Raises:
        CyclicGraphError: there is none.
    """
    waiting = set(left)
    for node in left:
        named, target = _named(node)
        if waiting.isdisjoint(upstream((target, *named))):
            return node
    raise CyclicGraphError(
        f"Gradient {left[0].name!r} asks for the gradient of a value that is computed from it",
        pointer=f"node:{left[0].name}",
    )


def _replaced(
    maker: Maker, node: ir.Node, seeds: Mapping[ir.Value, Term], variables: Sequence[ir.Value]
) -> Results:
    """Gradients in place of the outputs of a node, which have their names."""
    found = adjoints(maker, seeds, variables)
    results: Results = {}
    for output, variable in zip(node.outputs, variables):
        if not output.name or not (output.uses() or output.is_graph_output()):
            continue
        like = Term(maker, variable)
        term = found[variable] if variable in found else maker.zeros(like.shape, like.dtype)
        result = term.op("Identity").value
        result.name, result.shape, result.type = output.name, variable.shape, variable.type
        result.metadata_props.update(output.metadata_props)
        results[output] = result
        output.name = f"{output.name}.replaced"
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    return results


def _finish(
    model: ir.Model, maker: Maker, results: Results, replaced: Sequence[ir.Node], limits: Limits
) -> None:
    """Put the new nodes into the graph, and take those out that they replace."""
    if len(model.graph) + len(maker.nodes) > limits.nodes:
        raise ModelTooLargeError(f"the model has more than {limits.nodes} nodes once gradients are expanded")
    model.graph.remove(replaced, safe=True)
    append_needed(model.graph, maker, tuple(results.values()))
    graph.order_by_wiring(model.graph)
    naming.make_unique(model)
    inference.infer(model)
