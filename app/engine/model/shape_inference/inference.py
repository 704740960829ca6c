"""Shape and type inference: the one place that calls the inference library.

The library is run on whole models and only ever refines what values already say. So everything
that is said about computed values is forgotten first: exporters and converters leave wrong
claims, and so does an inference that knew less.
"""

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir
from onnx_shape_inference import SYM_DATA_KEY as SYMBOLIC
from onnx_shape_inference import ShapeInferenceContext, infer_symbolic_shapes, registry

from app.engine.core import graph
from app.engine.model.shape_inference import tensor_rules
from app.engine.types.errors import GraphError


def infer(model: ir.Model) -> None:
    """Set shapes and types of all computed values, nested graphs included.

    A Loop body sees its carried values with the shapes of their initial values, wherever the body
    returns the same; a dimension that changes from one iteration to the next stays unknown.

    Raises:
        GraphError: operands do not fit an operator, or a loop changes the rank of a carried value.
    """
    tensor_rules.complete()
    forget(model)
    for _, received in _carried(model):
        received.shape = None  # the library fills in that of the initial value
    _run(model)
    # Each turn leaves at least one more dimension unknown.
    while _widen_loops(model):
        forget(model)
        _run(model)


def infer_node(node: ir.Node, opsets: Mapping[str, int]) -> None:
    """Set shapes and types of the outputs of one node that belongs to no graph.

    Raises:
        ValueError: operands do not fit the operator, or it has no rule.
    """
    tensor_rules.complete()
    domain = "" if node.domain == "ai.onnx" else node.domain
    rule = registry.get(domain, node.op_type, opsets.get(domain, opsets.get("ai.onnx", 1)))
    if rule is None:
        raise ValueError(f"{node.op_type} has no shape rule")
    rule(ShapeInferenceContext(opsets), node)
    for value in node.outputs:
        value.const_value = None


def forget(model: ir.Model) -> None:
    """Drop what is claimed about values that a shape rule computes."""
    for value in _computed(model):
        value.shape = None
        value.type = None


def forget_shapes(model: ir.Model, keep: Iterable[ir.Value] = ()) -> None:
    """Drop the shapes that a file claims of values that a shape rule computes, but those of `keep`.

    onnxruntime without optimizations allocates outputs of nested graphs by such a claim, and fails where it
    is wrong.
    """
    tensor_rules.complete()
    for value in set(_computed(model)).difference(keep):
        value.shape = None


def _computed(model: ir.Model) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        if registry.get(node.domain, node.op_type, model.opset_imports.get(node.domain, 1)) is not None:
            yield from node.outputs


def _run(model: ir.Model) -> None:
    try:
        infer_symbolic_shapes(model, warn_on_missing=False, adopt_declared_symbols=False)
    except ValueError as cause:  # OpUsageError and ShapeInferenceError are ValueErrors
        name = getattr(cause, "node_name", None) or getattr(getattr(cause, "node", None), "name", "")
        if name in {node.name for node in model.graph}:
            reason = f": {cause.__cause__}" if cause.__cause__ is not None else ""
            raise GraphError(f"types cannot be inferred: {cause}{reason}", pointer=f"node:{name}") from cause
        # A nested graph that does not fit may be a branch that is never taken. This policy only
        # writes where nothing is known, and leaves unknown what does not fit.
        forget(model)
        try:
            infer_symbolic_shapes(model, policy="skip", warn_on_missing=False, adopt_declared_symbols=False)
        except ValueError as found:
            raise GraphError(f"types cannot be inferred: {found}", pointer=f"node:{name}") from found
    # The library notes elements of small integer tensors on values that nodes compute; whether
    # these are constants is for folding to say, with the operator's own arithmetic.
    for node in model.graph.all_nodes():
        for value in (*node.outputs, *(v for v in node.inputs if v is not None)):
            value.metadata_props.pop(SYMBOLIC, None)
            if value.producer() is not None:
                value.const_value = None


def _carried(model: ir.Model) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Outputs that the body of each Loop returns for the next iteration, and the inputs that receive them."""
    for node in model.graph.all_nodes():
        if node.op_type == "Loop" and not node.domain:
            for body in graph.bodies(node):
                yield from zip(body.outputs[1 : len(body.inputs) - 1], body.inputs[2:])


def _widen_loops(model: ir.Model) -> bool:
    """Free the dimensions that an iteration changes; whether there were any."""
    changed = False
    for returned, received in _carried(model):
        if received.shape is None or returned.shape is None or received.shape == returned.shape:
            continue
        if len(received.shape) != len(returned.shape):
            raise GraphError(
                f"a Loop changes the rank of {received.name!r} from {len(received.shape)} to "
                f"{len(returned.shape)}; it must stay the same",
                pointer=f"value:{received.name}",
            )
        dims = [
            a if not isinstance(a, int) or a == b else ir.SymbolicDim(f"{received.name}.{axis}")
            for axis, (a, b) in enumerate(zip(received.shape, returned.shape))
        ]
        if any(a != b for a, b in zip(dims, received.shape)):
            received.shape = ir.Shape(dims)
            changed = True
    return changed
