"""STFT in all its forms against onnxruntime: shapes, types and values."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.engine.core import graph
from app.engine.model.load import load
from app.engine.model.shape_inference import inference
from app.engine.runtime.oracle import evaluate
from app.engine.runtime.verify import compare
from tests.engine.canonical import runtime

LENGTH = 37
FORMS = list(
    itertools.product(
        ("[2, 37]", "[2, 37, 1]", "[2, 37, 2]"),
        ("float", "double"),
        (0, 1, None),  # onesided
        ("window", "length", "both", "odd window"),
        (True, False),  # constant steps, windows and lengths
    )
)


@pytest.mark.parametrize(("shape", "kind", "onesided", "frames", "constant"), FORMS)
def test_every_form_gives_what_onnxruntime_gives(
    shape: str, kind: str, onesided: int | None, frames: str, constant: bool, tmp_path: Path
) -> None:
    size = 9 if frames == "odd window" else 16
    dtype = {"float": np.float32, "double": np.float64}[kind]
    random = np.random.default_rng(size)
    given: dict[str, Any] = {"step": np.array(5, np.int64)}
    if frames != "length":
        given["window"] = random.random(size).astype(dtype)
    if frames in ("length", "both"):
        given["length"] = np.array(size, np.int64)
    operands = ["step", "window" if "window" in given else "", "length" if "length" in given else ""]
    while not operands[-1]:
        operands.pop()
    declared = {"step": "int64 step", "window": f"{kind}[{size}] window", "length": "int64 length"}
    free = "" if constant else "".join(f", {declared[n]}" for n in given)
    attribute = "" if onesided is None else f"<onesided = {onesided}>"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({kind}{shape} x{free}) => ({kind} y) '
        f"{{ y = STFT {attribute} (x, {', '.join(operands)}) }}"
    )
    if constant:
        proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in given.items())
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    dims = tuple(d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim)
    fed = {"x": random.standard_normal(dims).astype(dtype), **({} if constant else given)}
    try:
        expected = runtime(path, fed)
    except Exception as cause:  # onnxruntime refuses one-sided spectra of complex signals
        assert shape == "[2, 37, 2]"
        assert onesided != 0
        pytest.skip(str(cause)[:80])
    model = load(path).model
    inference.infer(model)
    for row in compare(expected, evaluate(model, fed), 1e-5):
        assert row.ok, row
    if constant:
        assert graph.shape(model.graph.outputs[0]) == expected["y"].shape


def test_a_model_of_torch_stft_is_evaluated_without_a_last_axis(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 64] x, float[16] window) => (float[1, 13, 9, 2] y)
        <int64 step = {4}, int64 length = {16}>
        { y = STFT <onesided = 1> (x, step, window, length) }"""
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    random = np.random.default_rng(0)
    x, window = (random.standard_normal(s).astype(np.float32) for s in ((1, 64), (16,)))
    found = np.asarray(evaluate(load(path).model, {"x": x, "window": window})["y"])
    spectra = np.stack([np.fft.rfft(x[0, i * 4 : i * 4 + 16] * window) for i in range(13)])
    np.testing.assert_allclose(found[0, ..., 0] + 1j * found[0, ..., 1], spectra, atol=1e-5)
