"""Rows that groups read, beside what onnxruntime computes when one row of an operand changes."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from app.engine.core.registry import load as load_registry
from app.engine.memory.rows.geometry import ROW, only
from app.engine.operators.row_maps import GroupRows, group_rows
from tests.harness import Array, group_of, model_of

REGISTRY = load_registry()
RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Array] = {
    "w3": RNG.standard_normal((4, 4, 3, 3)).astype(np.float32),
    "w2": RNG.standard_normal((4, 4, 2, 2)).astype(np.float32),
    "w4": RNG.standard_normal((4, 4, 4, 4)).astype(np.float32),
    "w5": RNG.standard_normal((4, 4, 5, 5)).astype(np.float32),
    "d5": RNG.standard_normal((4, 1, 5, 5)).astype(np.float32),
    "c": np.arange(1, 5, dtype=np.float32),
    "none": np.zeros(0, np.float32),
    "two": np.array([1, 1, 2, 2], np.float32),
    "half": np.array([1, 1, 0.5, 0.5], np.float32),
    "pads": np.array([0, 0, 2, 1, 0, 0, 1, 1], np.int64),
}

# Bodies of graphs of x: float[1, 4, 12, 10] that make y, each a map of rows.
MAPS = {
    "window": "y = Conv<pads = [1, 1, 1, 1]>(x, w3)",
    "window of stride 2": "y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w3)",
    "even window": "y = Conv<strides = [2, 2]>(x, w2)",
    "dilated window": "y = Conv<dilations = [2, 2], pads = [2, 2, 2, 2]>(x, w3)",
    "automatic padding": 'y = Conv<auto_pad = "SAME_LOWER", strides = [2, 2]>(x, w5)',
    "depthwise": "y = Conv<group = 4, pads = [2, 2, 2, 2]>(x, d5)",
    "transposed": "y = ConvTranspose<strides = [2, 2]>(x, w2)",
    "transposed, overlapping": "y = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w4)",
    "transposed, 3 taps": "y = ConvTranspose<strides = [2, 2], output_padding = [1, 1]>(x, w3)",
    "average": "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)",
    "average to the end": "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(x)",
    "nearest": 'y = Resize<mode = "nearest", nearest_mode = "floor">(x, none, two)',
    "linear": 'y = Resize<mode = "linear">(x, none, two)',
    "corners": 'y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, none, two)',
    "smaller": 'y = Resize<mode = "linear">(x, none, half)',
    "depth to space": "y = DepthToSpace<blocksize = 2>(x)",
    "space to depth": "y = SpaceToDepth<blocksize = 2>(x)",
    "padding": "y = Pad(x, pads)",
    "elementwise": "y = Relu(x)",
    "softmax of channels": "y = Softmax<axis = 1>(x)",
    "concat of channels": "n = Neg(x) y = Concat<axis = 1>(x, n)",
    "normalization": "y = BatchNormalization(x, c, c, c, c)",
    "two windows": "a = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x) y = Conv<strides = [2, 2]>(a, w3)",
}
BARRIERS = {
    "softmax of rows": "y = Softmax<axis = 2>(x)",
    "transposed axes": "y = Transpose<perm = [0, 2, 3, 1]>(x)",
    "statistics of the image": "y = InstanceNormalization(x, c, c)",
    "concat of rows": "n = Neg(x) y = Concat<axis = 2>(x, n)",
    "reflection": 'y = Pad<mode = "reflect">(x, pads)',
}
# Maps whose intervals hold more than what is read: one rule for all rows, gaps, indices clamped at
# the border.
WIDER = {"corners", "dilated window", "nearest"}


def _model(body: str) -> ir.Model:
    kinds = {np.dtype(np.float32): "float", np.dtype(np.int64): "int64"}
    constants = {k: v for k, v in CONSTANTS.items() if k in body}
    given = [f"{kinds[v.dtype]}[{','.join(map(str, v.shape))}] {k}" for k, v in constants.items()]
    inputs = ", ".join(["float[1,4,12,10] x", *given])
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float[n,a,h,w] y) {{ {body} }}'
    return model_of(text, constants)


def _rows(body: str) -> GroupRows:
    return group_rows(group_of(_model(body), REGISTRY), REGISTRY)


def _influence(body: str) -> Array:
    """bool[rows of y, rows of x]: a row of y changes with a row of x."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    proto = ir.to_proto(_model(body))
    assert isinstance(proto, onnx.ModelProto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    x = np.random.default_rng(1).standard_normal((1, 4, 12, 10)).astype(np.float32)
    before = session.run(None, {"x": x})[0]
    found = []
    for row in range(12):
        changed = x.copy()
        changed[:, :, row] += np.float32(1.5)
        found.append((session.run(None, {"x": changed})[0] != before).any(axis=(0, 1, 3)))
    return np.stack(found, axis=1)


@pytest.mark.parametrize("name", MAPS)
def test_a_map_names_the_rows_that_have_an_influence(name: str):
    found = _rows(MAPS[name])
    assert found.barrier is None
    assert not found.accumulated
    ((_, rows),) = found.reads
    influence = _influence(MAPS[name])
    for i, own in enumerate(influence):
        reached = np.flatnonzero(own)
        low, high = max(rows.low(i), 0), min(rows.high(i), 12)
        if len(reached):
            assert low <= reached.min()
            assert reached.max() < high
            if name not in WIDER:
                assert (low, high) == (reached.min(), reached.max() + 1)


@pytest.mark.parametrize("name", BARRIERS)
def test_a_barrier_says_why_and_reads_all_rows(name: str):
    found = _rows(BARRIERS[name])
    assert found.barrier
    ((_, rows),) = found.reads
    assert (rows.low(0), rows.high(0)) == (0, 12)


@pytest.mark.parametrize("body", ["y = GlobalAveragePool(x)", "a = Relu(x) y = GlobalAveragePool(a)"])
def test_a_mean_over_the_image_takes_a_turn_for_each_row(body: str):
    found = _rows(body)
    assert found.accumulated
    assert [m for _, m in found.reads] == [ROW]


def test_a_factor_of_each_channel_is_one_row_for_all():
    model = model_of(
        '<ir_version: 10, opset_import: ["": 21]> g (float[1,4,12,10] x, float[1,4,1,1] s) '
        "=> (float[1,4,12,10] y) { y = Mul(x, s) }"
    )
    found = group_rows(group_of(model, REGISTRY), REGISTRY)
    assert {v.name: m for v, m in found.reads} == {"x": ROW, "s": only(0)}
