"""What the original model computes: onnxruntime where it runs there, else the reference evaluator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import onnxruntime

from app.engine import graph
from app.engine.backends import reference
from app.engine.load import load
from app.engine.target import Target

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
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
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


# Sums of products of 8-bit operands.
_PRODUCTS = frozenset({"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "DynamicQuantizeLSTM"})


def distrust(model: ir.Graph, machine: Target) -> str | None:
    """Why onnxruntime on this machine is no oracle for a graph, or None.

    Without VNNI, x86 multiplies 8-bit operands in pairs whose sums saturate at 16 bits; onnxruntime
    accepts that (its quantization guide advises 7-bit weights there).
    """
    if {"avx512_vnni", "avx_vnni"} & set(machine.isa):
        return None
    found = [n.op_type for n in model if n.op_type in _PRODUCTS]
    return f"onnxruntime saturates the 8-bit products of {found[0]} on a CPU without VNNI" if found else None


def original(
    path: Path, inputs: Mapping[str, object], refusal: str | None = None
) -> tuple[dict[str, object], Oracle]:
    """The outputs of the opset-converted model on these inputs, and who computed them.

    `refusal` is a reason not to ask onnxruntime.
    """
    reason = refusal
    if reason is None:
        try:
            run = runtime(path, threads=1, optimized=False)
            return run(inputs), Oracle("onnxruntime", run)
        except Exception as cause:  # onnxruntime raises many types, and any of them means the same
            reason = str(cause).strip().splitlines()[0][:300]
    model = load(path).model
    return evaluate(model, inputs), Oracle("reference", lambda given: evaluate(model, given), reason)
