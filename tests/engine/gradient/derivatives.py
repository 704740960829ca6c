"""Derivatives by central differences in float64, the oracle of training graphs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from app.engine.gradient.differentiate import TrainingGraph, training_graph
from app.engine.model.shape_inference import inference
from app.engine.reference.evaluator import Evaluator

Array = np.ndarray[Any, Any]
STEP = 1e-6
Compute = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]


def model(
    body: str, inputs: Mapping[str, Array], constants: Mapping[str, Array], opset: int = 21
) -> ir.Model:
    """A graph in ONNX text whose outputs are `y` and `loss`, with inferred types."""
    kinds = {"float64": "double", "float32": "float", "int64": "int64", "int32": "int32", "bool": "bool"}
    given = ", ".join(
        f"{kinds[a.dtype.name]}[{','.join(map(str, a.shape))}] {n}" for n, a in (inputs | constants).items()
    )
    kind = "double" if any(a.dtype == np.float64 for a in inputs.values()) else "float"
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> g ({given}) => ({kind} loss) {{ {body} }}'
    )
    kept = [v for v in proto.graph.input if v.name not in constants]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    found = ir.from_proto(proto)
    for value in found.graph.inputs:  # `double[]` of the text is any rank
        value.shape = ir.Shape(inputs[value.name or ""].shape)
    inference.infer(found)
    return found


def by_reference(graph: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs, by the reference evaluator."""
    return _named(graph, inputs, Evaluator(graph))


def by_onnxruntime(graph: onnx.ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs, by onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return _named(graph, inputs, onnxruntime.InferenceSession(graph.SerializeToString(), options))


def _named(graph: onnx.ModelProto, inputs: Mapping[str, Array], session: Any) -> dict[str, Array]:
    given = {i.name: inputs[i.name] for i in graph.graph.input}
    return dict(zip((o.name for o in graph.graph.output), session.run(None, given)))


def variable(graph: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The graph with an initializer as an input."""
    opened = onnx.ModelProto()
    opened.CopyFrom(graph)
    for tensor in tuple(opened.graph.initializer):
        if tensor.name == name:
            opened.graph.initializer.remove(tensor)
            kind = opened.graph.input.add(name=name).type.tensor_type
            kind.elem_type = tensor.data_type
            for n in tensor.dims:
                kind.shape.dim.add(dim_value=n)
    return opened


def check(
    built: ir.Model,
    inputs: Mapping[str, Array],
    wrt: tuple[str, ...] | None,
    *,
    directions: int = 2,
    tolerance: float = 1e-5,
    step: float = STEP,
    full_check: bool = True,
    compute: Compute = by_reference,
) -> TrainingGraph:
    """Compare gradients of `loss` with differences along random directions."""
    rng = np.random.default_rng(1)
    forward = ir.to_proto(built)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in forward.graph.initializer}
    made = training_graph(built, "loss", wrt)
    proto = ir.to_proto(made.model)
    onnx.checker.check_model(proto, full_check=full_check)
    found = compute(proto, inputs)
    for name, output in made.gradients.items():
        at = inputs[name] if name in inputs else weights[name]
        assert found[output].shape == at.shape, (name, found[output].shape, at.shape)
        assert found[output].dtype == at.dtype
        opened = variable(forward, name)
        for _ in range(directions):
            direction = rng.standard_normal(at.shape)
            sides = [
                np.sum(compute(opened, {**inputs, name: at + sign * step * direction})["loss"])
                for sign in (1, -1)
            ]
            expected = (sides[0] - sides[1]) / (2 * step)
            along = float(np.sum(found[output] * direction))
            scale = float(np.linalg.norm(found[output]) * np.linalg.norm(direction))
            assert abs(along - expected) <= tolerance * (1 + abs(expected) + scale), (name, along, expected)
            assert np.all(np.isfinite(found[output]))
    return made
