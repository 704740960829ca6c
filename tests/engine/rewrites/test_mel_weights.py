"""MelWeightMatrix of edges that change between runs, on own kernels beside onnxruntime."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import OWN
from tests.session import Session


@pytest.mark.parametrize(("bins", "length", "kind"), [(8, 64, 1), (20, 33, 11)])
def test_triangles_follow_the_edges(
    compiler: Compiler, tmp_path: Path, bins: int, length: int, kind: int
) -> None:
    result = {1: "float", 11: "double"}[kind]
    sizes = f"n = Constant <value_int = {bins}> ()  l = Constant <value_int = {length}> ()"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g (float low, float high) => ({result}[m, k] y) {{ {sizes}'
        f"  r = Constant <value_int = 8192> ()  y = MelWeightMatrix <output_datatype = {kind}> (n, l, r, low, high) }}"
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    session = Session(path, compiler, target=dataclasses.replace(host(), backends=OWN), poison=True)
    assert not any(s.is_fallback for s in session.program.steps)
    theirs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for low, high in ((0.0, 4000.0), (100.0, 3000.0), (300.0, 310.0)):  # the last are all peaks
        inputs = {"low": np.array(low, np.float32), "high": np.array(high, np.float32)}
        (expected,) = theirs.run(None, inputs)
        np.testing.assert_allclose(np.asarray(session.run(inputs)["y"]), expected, rtol=1e-6, strict=True)
    session.close()
