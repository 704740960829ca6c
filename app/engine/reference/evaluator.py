"""Builds the evaluator of one node: onnx.reference with our corrections in front of its classes."""

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError

from app.engine.core import graph
from app.engine.reference import contrib, control, corrections, encoders, ml, recurrent, windows
from app.engine.reference.correction import Correction, operator_class

NEWEST_OPSET = onnx.defs.onnx_opset_version()

CORRECTIONS: tuple[Correction, ...] = (
    *contrib.CORRECTIONS,
    *control.CORRECTIONS,
    *corrections.CORRECTIONS,
    *encoders.CORRECTIONS,
    *ml.CORRECTIONS,
    *recurrent.CORRECTIONS,
    *windows.CORRECTIONS,
)
PACKAGES = {("", "ImageDecoder"): "PIL"}  # what an operator imports beyond the requirements
_CLASSES = tuple((row, operator_class(row)) for row in CORRECTIONS)


@cache
def corrected(domain: str, op: str, version: int) -> type[Any] | None:
    """Our class for an operator of this opset version; None where the reference's own is right."""
    return next(
        (c for r, c in _CLASSES if (r.domain, r.op) == (domain, op) and r.since <= version < r.until), None
    )


class Evaluator(ReferenceEvaluator):  # type: ignore[misc]  # onnx.reference is not typed
    """The reference evaluator, corrected; nested bodies and function bodies use it too."""

    def _load_impl(self, node: onnx.NodeProto, input_types: Any = None) -> Any:
        own = corrected(node.domain, node.op_type, self.opsets.get(node.domain, 1))
        return super()._load_impl(node, input_types) if own is None else own


Compute = Callable[[Sequence[object | None]], Sequence[object]]


def build(node: ir.Node, opsets: dict[str, int]) -> Compute:
    """A function from a node's inputs, then its captured values, to all its outputs.

    Values are matched by name, which must be unique in the model.
    """
    captured = graph.captures(node)
    proto = ir.to_proto(node)
    body = onnx.GraphProto(name=node.name or "node", node=[proto], output=[])
    named = dict.fromkeys((*(v for v in node.inputs if v is not None), *captured))
    body.input.extend(ir.to_proto(v) for v in named)
    (operator,) = Evaluator(body, opsets=opsets).rt_nodes_
    names = tuple(v.name for v in captured)
    explicit = len(node.inputs)
    if operator.need_context():
        return lambda values: operator.run(*values[:explicit], context=dict(zip(names, values[explicit:])))
    bodies = [getattr(operator, a.name) for a in proto.attribute if a.type == onnx.AttributeProto.GRAPH]

    def compute(values: Sequence[object | None]) -> Sequence[object]:
        for inner in bodies:  # an operator that runs its bodies on their own inputs alone
            inner.rt_inits_.update(zip(names, values[explicit:]))
        results: Sequence[object] = operator.run(*values[:explicit])
        return results

    return compute


@cache
def missing(domain: str, op: str, version: int) -> str | None:
    """Rejection of an operator that cannot be evaluated, or None."""
    package = PACKAGES.get((domain, op))
    if package is not None and importlib.util.find_spec(package) is None:
        return f"{op} needs the package {package!r}, which is not installed"
    if corrected(domain, op, version) is not None:
        return None
    bare = onnx.GraphProto(name="none")
    try:
        Evaluator(bare, opsets={"": NEWEST_OPSET, domain: version})._load_impl(
            onnx.NodeProto(op_type=op, domain=domain)
        )
    except RuntimeContextError:  # a function whose body depends on the types of its inputs
        return None
    except (RuntimeError, ValueError, KeyError):  # NotImplementedError is a RuntimeError
        title = f"{domain}::{op}" if domain else op
        return f"the reference evaluator has no {title} of opset {version}"
    return None
