"""A symbol through the service's doors: planned in process, optimized with its outputs verified, uploaded."""

from pathlib import Path

import numpy as np
import pytest

from app.cli.main import main
from app.engine.entry import optimize
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from tests.engine.model.mxnet.writing import Symbols, params
from tests.jobs.service import Served

RANDOM = np.random.default_rng(1)


def network() -> Symbols:
    s = Symbols()
    x = s.add("Convolution", "c", s.var("data"), s.var("w"), kernel="(3, 3)", num_filter=4, no_bias=True)
    x = s.add("Pooling", "p", s.add("Activation", "a", x, act_type="relu"), global_pool=True, pool_type="avg")
    x = s.add("FullyConnected", "f", x, s.var("v"), s.var("b"), num_hidden=5)
    s.add("SoftmaxOutput", "softmax", x, s.var("softmax_label"))
    return s


def written(folder: Path) -> tuple[Path, Path]:
    shapes = {"w": (4, 3, 3, 3), "v": (5, 4), "b": (5,)}
    arrays = {name: RANDOM.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return network().save(folder), params(folder, arrays)


def test_a_symbol_is_optimized_and_verified(tmp_path: Path) -> None:
    symbol, weights = written(tmp_path)
    options = Options(autotune=False, benchmark_seconds=0.05)
    bindings = Bindings({"data": (2, 3, 8, 8)})
    summary = optimize.optimize(
        symbol, host(), options, bindings, tmp_path, kernels=tmp_path / "k", external={"w": weights}
    )
    assert summary["verification"]["status"] == "verified"
    assert (tmp_path / "optimized.onnx").exists()


def test_explain_plans_a_symbol(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    symbol, _ = written(tmp_path)
    assert main(["explain", str(symbol), "--input", "data=2x3x8x8", "--target", "cpu-avx2"]) == 0
    assert "softmax" in capsys.readouterr().out


def test_a_symbol_is_uploaded_with_its_parameters(service: Served, tmp_path: Path) -> None:
    symbol, weights = written(tmp_path)
    hashes = [
        service.http.post("/v1/blobs", content=path.read_bytes()).json()["sha256"]
        for path in (symbol, weights)
    ]
    manifest = {"name": "net", "model": hashes[0], "external_data": {"net-0000.params": hashes[1]}}
    found = service.http.post("/v1/models?wait=60", json=manifest).json()
    assert (found["state"], found["report"]["outputs"][0]["name"]) == ("ready", "softmax_output")
    alone = service.http.post("/v1/models?wait=60", content=symbol.read_bytes()).json()
    assert (alone["state"], alone["code"]) == ("invalid", "external-data-invalid")
    assert "0000.params" in alone["detail"]
