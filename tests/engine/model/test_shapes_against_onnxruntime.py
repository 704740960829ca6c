"""Shapes and types that inference tells, against what onnxruntime computes.

The official node tests with other sizes, attributes and versions, drawn from seeds: of all operators, in all
forms that the tests know. What onnxruntime refuses says nothing.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.backend.test.loader import load_model_tests

from app.engine.core import graph
from app.engine.model import naming
from app.engine.model.load import load
from app.engine.model.shape_inference import inference
from app.engine.types.errors import EngineError, UnknownOperatorError

pytestmark = pytest.mark.long

Random = np.random.Generator
SEEDS = 3
CASES = 4  # of one operator
# Attributes that decide over shapes, and what they are drawn from.
CHANGED = {
    "strides": (1, 4),
    "dilations": (1, 3),
    "pads": (0, 3),
    "kernel_shape": (1, 4),
    "output_padding": (0, 2),
    "ceil_mode": (0, 2),
    "keepdims": (0, 2),
    "axis": (-3, 3),
    "blocksize": (1, 4),
    "start": (-3, 3),
    "end": (-3, 4),
}


def resized(array: Any, sizes: dict[int, int]) -> Any:
    """The array, each of whose sizes became another, the elements repeated; scalars stay."""
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        return array
    return np.resize(array, [sizes[n] for n in array.shape])


def changed(model: onnx.ModelProto, random: Random) -> onnx.ModelProto:
    """Other attributes and another version of the operator set."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    for attribute in copy.graph.node[0].attribute:
        low, high = CHANGED.get(attribute.name, (0, 0))
        if high and random.random() < 0.6:
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = int(random.integers(low, high))
            for i in range(len(attribute.ints)):
                attribute.ints[i] = int(random.integers(low, high))
    for entry in copy.opset_import:
        if not entry.domain and random.random() < 0.4:
            entry.version = min(entry.version, int(random.choice([11, 13, 16, 18, 20])))
    return copy


def restated(model: onnx.ModelProto, arrays: Sequence[Any], constant: bool) -> dict[str, Any]:
    """Declare the inputs' sizes, and no others; with `constant`, inputs after the first are weights."""
    main = model.graph
    for value, array in zip(main.input, arrays):
        if isinstance(array, np.ndarray):
            del value.type.tensor_type.shape.dim[:]
            for n in array.shape:
                value.type.tensor_type.shape.dim.add(dim_value=n)
    for value in main.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    del main.value_info[:]
    fed = {v.name: a for v, a in zip(main.input, arrays)}
    if not constant:
        return fed
    free = list(main.input[:1])
    for value in main.input[1:]:
        array = fed[value.name]
        weight = None
        if isinstance(array, np.ndarray) and array.dtype != object:
            weight = onnx.numpy_helper.from_array(array, value.name)
        if weight is None or weight.data_type != value.type.tensor_type.elem_type:
            free.append(value)
        else:
            main.initializer.append(weight)
            del fed[value.name]
    copies = [onnx.ValueInfoProto.FromString(v.SerializeToString()) for v in free]
    del main.input[:]
    main.input.extend(copies)
    return fed


def difference(path: Path, fed: dict[str, Any]) -> str | None:
    """How inference differs from onnxruntime, empty where they agree; None where that says nothing."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        found = session.run(None, fed)
    except Exception:  # onnxruntime raises many types
        return None
    try:
        model = load(path).model
        naming.make_unique(model)
        inference.infer(model)
    except UnknownOperatorError:
        return None  # onnxruntime has some operators in versions that lack them
    except EngineError as error:
        return "" if "which a window spans" in error.message else f"refused: {error.message}"
    for value, array, output in zip(model.graph.outputs, found, session.get_outputs()):
        if not isinstance(array, np.ndarray) or not isinstance(value.type, ir.TensorType):
            if value.type is None:
                return f"{output.name} has no type, expected {output.type}"
            continue
        if graph.dtype(value) not in (None, array.dtype):
            return f"{output.name} is {graph.dtype(value)}, expected {array.dtype}"
        if value.shape is not None:
            told = [d if isinstance(d, int) else None for d in value.shape]
            if len(told) != array.ndim or any(t not in (None, n) for t, n in zip(told, array.shape)):
                return f"{output.name} is {told}, expected {list(array.shape)}"
    return ""


def cases() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    """Some node tests of each operator, other attributes preferred over more of the same."""
    seen: dict[str, int] = {}
    for case in load_model_tests(kind="node"):
        nodes = case.model.graph.node
        op = nodes[0].op_type if len(nodes) == 1 else "several"
        given = [np.asarray(a) if isinstance(a, np.generic) else a for a in case.data_sets[0][0]]
        if len(given) != len(case.model.graph.input):
            continue
        key = f"{op} {sorted((a.name, a.type) for a in nodes[0].attribute)}" if len(nodes) == 1 else op
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= CASES:
            yield case.name, case.model, given


@pytest.mark.filterwarnings("ignore")  # the test cases themselves divide by zero and overflow
def test_inference_tells_what_onnxruntime_computes_for_all_operators(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    told, wrong = 0, []
    for number, (name, model, given) in enumerate(cases()):
        for seed in range(SEEDS):
            random = np.random.default_rng([number, seed])
            sizes = sorted({n for a in given if isinstance(a, np.ndarray) for n in a.shape})
            drawn = {n: int(random.choice([n, n, n + 1, 2 * n, 1, random.integers(1, 7)])) for n in sizes}
            arrays = [resized(a, drawn) for a in given]
            if any(isinstance(a, np.ndarray) and a.size > 100_000 for a in arrays):
                continue
            for constant in (False, True):
                copy = changed(model, random)
                fed = restated(copy, arrays, constant)
                path.write_bytes(copy.SerializeToString())
                found = difference(path, fed)
                told += found is not None
                if found:
                    shapes = [getattr(a, "shape", None) for a in arrays]
                    wrong.append(f"{name} seed {seed}, constant {constant}, {shapes}: {found}")
    assert not wrong, "\n".join(wrong)
    assert told > 1000


SCALES = (0.7, 0.6, 0.3, 1.1, 2.3, 0.1, 1.7)


@pytest.mark.parametrize("policy", ["scales", "stretch", "not_larger", "not_smaller"])
def test_sizes_of_resized_images_are_rounded_as_onnxruntime_rounds(policy: str, tmp_path: Path) -> None:
    path, wrong = tmp_path / "m.onnx", []
    for (a, b), scale in itertools.product([(10, 7), (3, 11), (9, 20), (30, 17)], SCALES):
        scaled = f"<float[2] scales = {{{scale}, {scale}}}>", "x, , scales", ""
        sized = f"<int64[2] sizes = {{{int(a * scale) + 1}, {int(b * scale) + 2}}}>", "x, , , sizes"
        form = scaled if policy == "scales" else (*sized, f', keep_aspect_ratio_policy = "{policy}"')
        declared, operands, attribute = form
        text = f"""<ir_version: 8, opset_import: ["": 19]> g (float[1, 1, {a}, {b}] x) => (float[n, c, h, w] y)
            {declared} {{ y = Resize <axes = [2, 3]{attribute}> ({operands}) }}"""
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        found = difference(path, {"x": np.zeros((1, 1, a, b), np.float32)})
        if found != "":
            wrong.append(f"{a} x {b} by {scale}: {found}")
    assert not wrong, "\n".join(wrong)
