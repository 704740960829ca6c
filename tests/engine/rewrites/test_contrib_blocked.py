"""Images of blocked channels, as onnxruntime's optimizer writes them: what it computes of its file, in ONNX's operators."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from app.engine.model.runtime_operators import block_of_channels
from tests.engine.canonical import Array, canonical, exported, runtime, saved

NETWORK = """<ir_version: 10, opset_import: ["": 21]>
g (float[2,3,24,20] x) => (float[2,N,H,W] y, float[2,20,1,1] z) {
    a = Conv<pads = [1,1,1,1], strides = [2,2]>(x, stem, shift)  b = Relu(a)
    c = Conv<pads = [1,0,1,2], group = 32>(b, spatial)  d = HardSigmoid<alpha = 0.2>(c)
    e = Conv(d, narrow)  f = MaxPool<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]>(e)
    k = Conv(f, grouped_in)  l = Conv<group = 2>(k, grouped)  m = Conv(l, residual)  n = Add(m, f)  o = Relu(n)
    p = AveragePool<kernel_shape = [2,2], count_include_pad = 1, pads = [0,1,0,1]>(o)  q = Conv(p, few)
    r = Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(q, , factors)
    s = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(q, , factors)
    y = Concat<axis = 1>(r, s)
    t = GlobalAveragePool(o)  u = GlobalMaxPool(e)  z = Add(t, u)
}"""
WEIGHTS = {
    "stem": (32, 3, 3, 3), "shift": (32,), "spatial": (32, 1, 3, 3), "narrow": (20, 32, 1, 1),
    "grouped_in": (64, 20, 1, 1), "grouped": (64, 32, 1, 1), "residual": (20, 64, 1, 1), "few": (20, 20, 2, 2),
}  # fmt: skip


def test_a_file_of_the_optimizer_computes_what_the_model_did(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {
        n: (rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(np.float32) for n, s in WEIGHTS.items()
    }
    original = saved(NETWORK, tmp_path, weights | {"factors": np.array([1, 1, 2, 3], np.float32)})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(original), options, providers=["CPUExecutionProvider"])
    optimized = canonical(tmp_path / "optimized.onnx")
    assert not {n.op_type for n in optimized.graph} & {"ReorderInput", "ReorderOutput", "Upsample"}
    assert {n.domain for n in optimized.graph} == {""}
    given = {"x": rng.standard_normal((2, 3, 24, 20)).astype(np.float32)}
    expected, found = runtime(original, given), runtime(exported(optimized.model, tmp_path), given)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=2e-6 * np.abs(array).max(), err_msg=name)


@pytest.mark.parametrize(("node", "images", "weights"), [
    ('Conv<pads = [1,1,1,1], activation = "Relu">(b, W, B, s)', (1, 32, 6, 5), (32, 32, 3, 3)),
    ('Conv<group = 2, activation = "Clip", activation_params = [0.0, 0.5]>(b, W, B)', (1, 64, 4, 5), (32, 32, 1, 1)),
    ('Conv<group = 32, strides = [2,1], kernel_shape = [3,3]>(b, W)', (1, 32, 6, 5), (32, 1, 3, 3)),
    ("Conv<dilations = [2,1], pads = [2,0,2,1]>(x, W, B)", (2, 4, 9, 8), (32, 4, 3, 2)),
    ('Conv<auto_pad = "SAME_UPPER", strides = [2,1]>(b, W, B)', (1, 32, 9, 5), (32, 32, 3, 2)),
    ("Upsample<scales = [1,1,3,2]>(b)", (1, 32, 4, 5), None),
    ('Upsample<scales = [1,1,2,2], mode = "linear", coordinate_transformation_mode = "align_corners">(b)',
     (1, 32, 4, 5), None),
    ("AveragePool<kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]>(b)", (1, 32, 6, 5), None),
    ("MaxPool<kernel_shape = [2,2], ceil_mode = 1, strides = [2,2]>(b)", (1, 32, 7, 5), None),
])  # fmt: skip
@pytest.mark.parametrize("last", [0, 1])
def test_operators_on_blocked_images(
    node: str, images: tuple[int, ...], weights: tuple[int, ...] | None, last: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(1)
    shape = (images[0], *images[2:], images[1]) if last and "(x" not in node else images
    given = {"x": rng.standard_normal(shape).astype(np.float32)}
    constants: dict[str, Array] = {}
    if weights is not None:
        constants["W"] = rng.standard_normal(weights).astype(np.float32)
        constants["B"] = rng.standard_normal(weights[0]).astype(np.float32)
    text = f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft.nchwc": 1]>
        g (float[{",".join(map(str, shape))}] x) => (float[a,b,c,d] y) {{
            b = com.microsoft.nchwc.ReorderInput<channels_last = {last}>(x)  s = Sigmoid(b)
            n = com.microsoft.nchwc.{node}
            y = com.microsoft.nchwc.ReorderOutput<channels = 29, channels_last = {last}>(n)
        }}"""
    path = saved(text, tmp_path, constants)
    expected = runtime(path, given)["y"]
    optimized = canonical(path)
    assert {n.domain for n in optimized.graph} == {""}
    found = runtime(exported(optimized.model, tmp_path), given)["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_blocks_are_as_wide_as_registers() -> None:
    assert block_of_channels() in (8, 16)
