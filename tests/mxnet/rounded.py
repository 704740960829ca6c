"""Models that round activations to 8 or 16 bits, compared from one rounding to the next.

A sum in another order differs in its last bits, and where it lies at a half it is rounded to the next step, from
where the difference grows: of resnet18_qdq onnxruntime's own float32 convolutions round 9 of 2.8 million numbers
otherwise than exact sums do, so no spelling gives its outputs. Hence MXNet says what it rounded to, and each
rounding and the outputs are computed by onnxruntime from MXNet's numbers before them. That must give the same
step, or the next one where the number lies at a half, and the same outputs. Of float16, which onnxruntime rounds to
less often, every value is taken from MXNet; one operator may differ by one step.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

GIVEN = ".given"  # appended to the name of a rounded value that is an input


@dataclass(frozen=True, slots=True)
class Rounded:
    """The comparison of one model.

    Attributes:
        count: rounded numbers.
        next_step: those that are rounded to the step beside onnxruntime's.
        farthest: largest distance from a half of one that is, relative to the largest number before rounding;
            infinity where one is farther off than one step. In float16, what is beyond one step.
        outputs: those of the model that follow from MXNet's rounded numbers; what is rounded itself is MXNet's.
    """

    count: int
    next_step: int
    farthest: float
    outputs: tuple[np.ndarray, ...]


def values(model: onnx.ModelProto, symbol: Path) -> list[str]:
    """Results of roundings that are nodes of the symbol, by name; those of constants are left out.

    That is what is quantized to 8 bits, and every value of float16.
    """
    nodes = {n["name"] for n in json.loads(symbol.read_text())["nodes"] if n["inputs"]}
    rounding = {n.output[0] for n in _roundings(model)}
    typed = onnx.shape_inference.infer_shapes(model).graph
    rounding |= {
        v.name
        for v in (*typed.value_info, *typed.output)
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    }
    made = [name for node in model.graph.node for name in node.output]
    return [name for name in made if name in rounding and name in nodes]


def _roundings(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    fixed = {i.name for i in model.graph.initializer}
    found = (n for n in model.graph.node if n.op_type == "QuantizeLinear")
    return [n for n in found if n.input[0] not in fixed and n.input[1] in fixed]


def compared(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]
) -> Rounded:
    """Compute every rounding from those before it, which are given.

    Args:
        model: is changed.
        inputs: of the model.
        given: what MXNet rounded, by name.
    """
    names = [v.name for v in model.graph.output]
    roundings = [n for n in _roundings(model) if n.output[0] in given]
    _cut(model, roundings, given)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    fed = {**inputs, **{name + GIVEN: array for name, array in given.items()}}
    computed = session.run(None, fed)
    found = {o.name: array for o, array in zip(session.get_outputs(), computed)}
    scales = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    next_step, farthest = 0, 0.0
    for name, array in given.items():
        if array.dtype == np.float16:
            count, beyond = _beyond(found[name], array)
            next_step, farthest = next_step + count, max(farthest, beyond)
    for node in roundings:
        name = node.output[0]
        x = {**inputs, **found}[node.input[0]].astype(np.float64)
        scale = _along(scales[node.input[1]].astype(np.float64), _axis(node), x.ndim)
        steps = np.abs(found[name].astype(np.int64) - given[name].astype(np.int64))
        if not steps.any():
            continue
        off = np.abs(x / scale - np.floor(x / scale) - 0.5) * scale / np.abs(x).max()
        farthest = max(farthest, np.inf if steps.max() > 1 else float(off[steps > 0].max()))
        next_step += int((steps > 0).sum())
    count = sum(array.size for array in given.values())
    return Rounded(count, next_step, farthest, tuple({**found, **given}[name] for name in names))


def _beyond(expected: np.ndarray, found: np.ndarray) -> tuple[int, float]:
    """Numbers that differ, and the largest difference beyond one step of float16, of the largest number."""
    steps = np.spacing(np.maximum(np.abs(expected), np.abs(found))).astype(np.float64)
    off = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    largest = float(np.abs(expected).max()) or 1.0
    return int((off > 0).sum()), max(float((off - steps).max()) / largest, 0.0)


def _cut(
    model: onnx.ModelProto, roundings: Sequence[onnx.NodeProto], given: Mapping[str, np.ndarray]
) -> None:
    """Make inputs of what readers of rounded values read, and outputs of those and of what is rounded."""
    for node in model.graph.node:
        for slot, name in enumerate(node.input):
            if name in given:
                node.input[slot] = name + GIVEN
    taken = {v.name for v in (*model.graph.input, *model.graph.output)}
    read = {n.output[0]: n.input[0] for n in roundings}
    for name in given:
        kind = model.graph.input.add(name=name + GIVEN).type.tensor_type
        kind.elem_type = numpy_helper.from_array(given[name]).data_type
        for size in given[name].shape:
            kind.shape.dim.add(dim_value=size)
        for shown in (name, read.get(name, name)):
            if shown not in taken:
                taken.add(shown)
                model.graph.output.add(name=shown)


def _axis(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "axis"), 1)


def _along(scale: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A scale for all, or one for each place along an axis, in a shape that broadcasts."""
    return scale.reshape(-1, *(1,) * (rank - 1 - axis % rank)) if scale.size > 1 else scale.reshape(())
