"""A symbol through the service's doors: planned in process, optimized with its outputs verified, uploaded."""

from pathlib import Path

import pytest

from app.cli.main import main
from app.engine.entry import optimize
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.model.mxnet.writing import written


def test_a_symbol_is_optimized_and_verified(compiler: Compiler, tmp_path: Path) -> None:
    symbol, weights = written(tmp_path)
    options = Options(autotune=False, benchmark_seconds=0.05)
    bindings = Bindings({"data": (2, 3, 8, 8)})
    summary = optimize.optimize(
        symbol, host(), options, bindings, tmp_path, kernels=compiler.cache, external={"w": weights}
    )
    assert summary["verification"]["status"] == "verified"
    assert (tmp_path / "optimized.onnx").exists()


def test_explain_plans_a_symbol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    symbol, _ = written(tmp_path)
    assert main(["explain", str(symbol), "--input", "data=2x3x8x8", "--target", "cpu-avx2"]) == 0
    assert "softmax" in capsys.readouterr().out
