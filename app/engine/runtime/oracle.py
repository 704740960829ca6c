"""Outputs of the original model: from onnxruntime where it runs there, else from the reference evaluator."""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from app.engine import reference
from app.engine.core import graph
from app.engine.model.load import load
from app.engine.model.naming import make_unique
from app.engine.model.shape_inference.inference import forget_shapes, infer
from app.engine.operators import block_quantized
from app.engine.report.onnx import export
from app.engine.runtime.verify import compare
from app.engine.types.deadline import TimeUpError, limited
from app.engine.types.saturation import saturated
from app.engine.types.target import Target

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, object]], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Oracle:
    """A way to compute the original's outputs. `reason` tells why it is not onnxruntime."""

    name: str
    run: Run
    reason: str = ""


def runtime(path: Path, *, threads: int, optimized: bool) -> Run:
    """A model file in onnxruntime, with all of its optimizations or with none.

    Raises:
        Exception: whatever onnxruntime raises for a model that it does not support.
    """
    return running(opened(path, threads=threads, optimized=optimized))


def opened(path: Path, *, threads: int, optimized: bool) -> onnxruntime.InferenceSession:
    """A session of onnxruntime, see `runtime`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def running(session: onnxruntime.InferenceSession, outputs: Sequence[str] = ()) -> Run:
    """The runs of a session; of `outputs`, or of all."""
    names = list(outputs) or [o.name for o in session.get_outputs()]
    accepted = {i.name for i in session.get_inputs()}

    def run(inputs: Mapping[str, object]) -> dict[str, object]:
        fed = {k: v for k, v in inputs.items() if k in accepted}
        return dict(zip(names, session.run(names, fed), strict=True))

    return run


def evaluate(model: ir.Model, inputs: Mapping[str, object]) -> dict[str, object]:
    """The outputs of a model, node by node in the reference evaluator."""
    values: dict[ir.Value, object] = {v: inputs[v.name or ""] for v in model.graph.inputs if v.name in inputs}
    for value in model.graph.initializers.values():
        if value not in values and value.const_value is not None:
            values[value] = graph.constant(value)
    for node in model.graph:
        captured = graph.captures(node)
        operands = [None if v is None else values[v] for v in (*node.inputs, *captured)]
        named = [v for v in node.outputs if v.name]
        values.update(zip(named, reference.prepare(node)(operands), strict=True))
    return {v.name or "": values[v] for v in model.graph.outputs}


def rejection(model: ir.Graph, machine: Target) -> str | None:
    """Reason why onnxruntime on this machine is no oracle for a graph, or None."""
    return saturated((node.op_type for node in model.all_nodes()), machine)


def reloaded(path: Path) -> ir.Model:
    """A model that was written by us, with its external data beside it."""
    model = load(path, external={p.name: p for p in path.parent.iterdir() if p.is_file()}).model
    forget_shapes(model)
    make_unique(model)  # errors name nodes
    return model


# What rounds to steps: an operand at the edge of one is moved a whole step by the last bit of a float.
_ROUNDING = frozenset(
    {"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeLSTM", "QLinearMatMul", "QLinearConv"}
)
_SCALES = {
    "QuantizeLinear": (1,),
    "DequantizeLinear": (1,),
    "QLinearConv": (1, 4, 6),
    "QLinearMatMul": (1, 4, 6),
}
NUDGE = 2.0**-20  # of a number: what sums of some hundred products in float32 are off by
_HALF_STEPS = {
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.BFLOAT16: 2.0**-8,
}  # of a power of two, its fraction
NUDGES = 3


def rounds(model: ir.Graph) -> bool:
    """True if values are quantized on the way, so that rounding is amplified to steps."""
    return any(
        n.op_type in _ROUNDING or (n.op_type == "MatMulNBits" and block_quantized.form_of(n).rounds)
        for n in model
    )


def spread(path: Path, inputs: Mapping[str, object], oracle: Oracle) -> dict[str, float]:
    """By output, how far it moves when all weights, scales and inputs are off by rounding.

    The largest difference, as a fraction of the output's maximum, of NUDGES evaluations in which every
    float of them is multiplied by a number within NUDGE of 1, or half a step of 16 bits, drawn from a seed.
    """
    expected = oracle.run(inputs)
    found = dict.fromkeys(expected, 0.0)
    for seed in range(NUDGES):
        rng = np.random.default_rng(seed)
        model = reloaded(path)
        scales = {n.inputs[i] for n in model.graph for i in _SCALES.get(n.op_type, ()) if i < len(n.inputs)}
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and (len(tensor.shape) > 1 or value in scales):
                value.const_value = ir.tensor(_nudged(tensor.numpy(), rng), name=value.name)
        given = {name: _nudged(np.asarray(array), rng) for name, array in inputs.items()}
        if oracle.name == "onnxruntime":
            with tempfile.TemporaryDirectory() as scratch:
                file = Path(scratch) / "nudged.onnx"
                export(model, file)
                moved = runtime(file, threads=1, optimized=False)(given)
        else:
            moved = evaluate(model, given)
        for row in compare(expected, moved, 0.0):
            found[row.name] = max(found[row.name], row.max_rel)
    return found


def _nudged(array: Array, rng: np.random.Generator) -> Array:
    try:
        kind = ir.DataType.from_numpy(array.dtype)
    except TypeError:  # not of a type of ONNX
        return array
    if not kind.is_floating_point():
        return array
    nudge = _HALF_STEPS.get(kind, NUDGE)
    return (array * (1.0 + rng.uniform(-nudge, nudge, array.shape))).astype(array.dtype)


UNCERTAIN = 1e-2  # of an output's maximum; an oracle that is farther from itself counts as this far


def roundoff(model: ir.Model) -> dict[str, float]:
    """By output of floats computed in 16 bits, half a step of that type at a power of two, as its fraction.

    Two sums that are as near to the true one as float32 brings them may be rounded to neighbors. What is
    made float32 afterwards, as in a converted model that keeps the types of its outputs, is off by that too.
    """
    infer(model)
    steps: dict[ir.Value, float] = {}
    for node in model.graph:
        through = max((steps.get(v, 0.0) for v in (*node.inputs, *graph.captures(node)) if v), default=0.0)
        steps |= {
            v: max(through, _HALF_STEPS.get(v.dtype or ir.DataType.UNDEFINED, 0.0)) for v in node.outputs
        }
    floats = [v for v in model.graph.outputs if v.dtype is not None and v.dtype.is_floating_point()]
    return {v.name or "": steps[v] for v in floats if steps.get(v)}


def uncertainty(
    path: Path, inputs: Mapping[str, object], expected: Mapping[str, object], oracle: Oracle
) -> dict[str, float]:
    """By output, the difference that onnxruntime's own optimizations make, as a fraction of its maximum.

    `expected` is what it computes without them. UNCERTAIN at most; in 16 bits the `roundoff` and `spread` of
    the model at least, and nothing else where the oracle is another. None of outputs that nothing tells of.
    """
    least = roundoff(reloaded(path))
    if least:
        moved = spread(path, inputs, oracle)
        least = {name: max(step, moved[name]) for name, step in least.items()}
    if oracle.name != "onnxruntime":
        return least
    try:
        rows = compare(expected, runtime(path, threads=1, optimized=True)(inputs), 0.0)
    except Exception:  # onnxruntime raises many types, and any of them means that nothing was measured
        return least
    return {row.name: max(min(row.max_rel, UNCERTAIN), least.get(row.name, 0.0)) for row in rows}


def original(
    path: Path, inputs: Mapping[str, object], rejection: str | None = None, seconds: float = math.inf
) -> tuple[dict[str, object], Oracle]:
    """The outputs of the opset-converted model on these inputs, and who computed them.

    `rejection` is a reason not to ask onnxruntime; `seconds` is how long the reference evaluator may take.

    Raises:
        TimeUpError: it takes longer.
    """
    reason = rejection
    if reason is None:

        def run(given: Mapping[str, object]) -> dict[str, object]:
            return runtime(path, threads=1, optimized=False)(given)  # nothing stays in memory between runs

        try:
            return run(inputs), Oracle("onnxruntime", run)
        except Exception as cause:  # onnxruntime raises many types, and any of them means the same
            reason = str(cause).strip().splitlines()[0][:300]
    model = reloaded(path)
    try:
        with limited(seconds):
            expected = evaluate(model, inputs)
    except TimeUpError as cause:
        raise TimeUpError(f"the original takes {cause} in the reference evaluator; {reason}") from None
    return expected, Oracle("reference", lambda given: evaluate(model, given), reason)
