"""A library of a model whose input shapes have symbols is refused, with the reason."""

from pathlib import Path

import onnx
import onnx.parser
import pytest

from app.engine.entry.optimize import optimize
from app.engine.types.errors import ExportError
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import bound
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler


def test_a_library_has_one_shape(tmp_path: Path, compiler: Compiler) -> None:
    text = '<ir_version: 10, opset_import: ["": 21]> net (float[N, 4] x) => (float[N, 4] y) { y = Relu (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    shapes, region = bound({"x": ["N<=8", 4]})
    options, bindings = Options(autotune=False, export=("c",)), Bindings(shapes, region=region)
    with pytest.raises(
        ExportError, match=r"one shape and the input shapes have symbols \(N:1\.\.8\)"
    ) as told:
        optimize(tmp_path / "net.onnx", host(), options, bindings, tmp_path, kernels=compiler.cache)
    assert told.value.pointer == "/input_shapes"
