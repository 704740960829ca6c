"""Mixed precision: nodes whose rounding costs the outputs too much stay float32, and only those.

The target is this machine with the arithmetic of bf16 by other instructions, where it lacks those.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.entry.optimize import optimize
from app.engine.planning import mixed_precision
from app.engine.types.options import Bindings, Options
from app.engine.types.precision import BF16_TOLERANCE
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.types.test_precision import saved
from tests.harness import offering

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
BF16 = Options(precision="bf16", timings="predicted")

# The third product is of [w2, -w2'], which are almost the same: their digits cancel, and rounded ones do not.
CANCELLATION = """
    a0 = MatMul(x, w0)
    a1 = Relu(a0)
    a2 = MatMul(a1, w1)
    a3 = Relu(a2)
    a4 = Concat<axis = 1>(a3, a3)
    a5 = MatMul(a4, w2)
    a6 = Relu(a5)
    y = MatMul(a6, w3)
"""


def cancelling(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    w0, w1, w2, w3 = (rng.standard_normal((64, 64), np.float32) * np.float32(0.2) for _ in range(4))
    near = w2 + rng.standard_normal(w2.shape, np.float32) * np.float32(2e-3)
    constants = {"w0": w0, "w1": w1, "w2": np.concatenate([w2, -near]), "w3": w3}
    return saved(folder, CANCELLATION, ("[32,64]", "[32,64]"), constants)


def optimized(path: Path, compiler: Compiler, options: Options = BF16) -> tuple[Json, list[Json]]:
    """The summary and the decisions on products."""
    summary = optimize(path, offering(host()), options, Bindings(), path.parent, kernels=compiler.cache)
    decisions = json.loads((path.parent / "decisions.json").read_text())["decisions"]
    return summary, [row for row in decisions if row["op"].startswith("MatMul")]


def test_only_the_node_that_loses_digits_stays_float32(compiler: Compiler, tmp_path: Path) -> None:
    summary, rows = optimized(cancelling(tmp_path), compiler)
    (name,) = summary["precision"]["exact"]
    assert [row["precision"] for row in rows] == ["bf16", "bf16", "f32", "bf16"]
    assert name == rows[2]["subject"]
    assert summary["precision"]["used"] == "bf16"
    assert summary["precision"]["reason"].startswith("nodes that stay float32: 1; in bf16 output 'y' differs")
    (found,) = summary["verification"]["outputs"]
    assert found["max_rel"] <= BF16_TOLERANCE


def test_what_keeps_a_node_in_float32_is_told(compiler: Compiler, tmp_path: Path) -> None:
    summary, rows = optimized(cancelling(tmp_path), compiler)
    told = {a["name"]: a["reason"] for a in rows[2]["alternatives"]}["matmul.blocked_bf16"]
    assert told.startswith("kept in float32: its rounding alone moves output 'y' by ")
    assert float(told.split(" by ")[1].split()[0]) > BF16_TOLERANCE
    assert [told] == list(summary["precision"]["exact"].values())


def test_the_same_model_has_the_same_nodes_in_float32(compiler: Compiler, tmp_path: Path) -> None:
    first, second = (optimized(cancelling(tmp_path), compiler) for _ in range(2))
    assert first[0]["precision"] == second[0]["precision"]
    assert first[1] == second[1]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_larger_blocks_are_halved_to_the_same_node(
    count: int, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cancelling(tmp_path)
    apart = optimized(path, compiler)[0]["precision"]["exact"]
    monkeypatch.setattr(mixed_precision, "BLOCKS", count)
    assert optimized(path, compiler)[0]["precision"]["exact"].keys() == apart.keys()


def test_a_block_that_is_not_halved_any_more_stays_whole(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mixed_precision, "BLOCKS", 2)
    monkeypatch.setattr(mixed_precision, "PROGRAMS", 3 + mixed_precision.ROUNDS)
    summary, rows = optimized(cancelling(tmp_path), compiler)
    assert [row["precision"] for row in rows] == ["bf16", "bf16", "f32", "f32"]
    assert all("its rounding and that of 1 nearby move" in r for r in summary["precision"]["exact"].values())


def test_nothing_is_kept_in_float32_where_nothing_is_verified(compiler: Compiler, tmp_path: Path) -> None:
    options = Options(precision="bf16", timings="predicted", verify=False)
    summary, rows = optimized(cancelling(tmp_path), compiler, options)
    assert {row["precision"] for row in rows} == {"bf16"}
    assert summary["precision"]["exact"] == {}
    assert summary["precision"]["reason"] == ""


def test_a_model_all_of_whose_nodes_must_be_kept_is_float32(compiler: Compiler, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((64, 64), np.float32)
    near = {"w": np.concatenate([w, -w - rng.standard_normal(w.shape, np.float32) * np.float32(1e-3)])}
    path = saved(tmp_path, "a = Concat<axis = 1>(x, x) y = MatMul(a, w)", ("[8,64]", "[8,64]"), near)
    summary, rows = optimized(path, compiler)
    assert summary["precision"]["used"] == "f32"
    assert summary["precision"]["exact"] == {}
    assert summary["precision"]["reason"].startswith("in bf16 output 'y' differs")
    assert [row["precision"] for row in rows] == ["f32"]


def test_nodes_are_mixed_only_where_each_rounds_for_itself() -> None:
    assert mixed_precision.mixes(BF16, find("cpu-avx512-bf16"))
    assert not mixed_precision.mixes(BF16, find("cpu-avx512"))
    assert not mixed_precision.mixes(BF16, find("cuda-sm90"))
    assert not mixed_precision.mixes(Options(), find("cpu-avx512-bf16"))
    assert not mixed_precision.mixes(Options(precision="bf16", exact={"n": "why"}), find("cpu-avx512-bf16"))
