"""Operators along an axis, by place, and those that are computed as others: each computes in the simulator what onnxruntime computes."""

from pathlib import Path

import numpy as np
import pytest

from tests.engine.runtime.cuda.programs import check, saved

pytestmark = pytest.mark.simulated

RNG = np.random.default_rng(8)
I = np.array  # noqa: E741
CASES = {
    "argmax": ("y = ArgMax<axis=1, keepdims=0>(x)", "int64[3,4] y", {}),
    "argmin, last of equal": ("y = ArgMin<axis=2, select_last_index=1>(x)", "int64[3,5,1] y", {}),
    "running sums": ("y = CumSum<exclusive=1, reverse=1>(x, a)", "float[3,5,4] y", {"a": I(1)}),
    "largest": ("y, i = TopK<axis=1>(x, k)", "float[3,2,4] y, int64[3,2,4] i", {"k": I([2])}),
    "instances": ("y = InstanceNormalization(x, s, b)", "float[3,5,4] y",
                  {"s": np.float32([1, 2, 3, 4, 5]), "b": np.float32([5, 4, 3, 2, 1])}),
    "scattered elements": ("y = ScatterElements<axis=1>(x, i, u)", "float[3,5,4] y",
                           {"i": I([[[4, 0, 1, -1]]]), "u": np.float32([[[9, 8, 7, 6]]])}),
    "scattered sums": ('y = ScatterND<reduction="add">(x, i, u)', "float[3,5,4] y",
                       {"i": I([[0, 1], [2, -1], [0, 1]]), "u": np.ones((3, 4), np.float32)}),
    "lower triangle": ("y = Trilu<upper=0>(x, k)", "float[3,5,4] y", {"k": I(-1)}),
    "upper triangle": ("y = Trilu(x)", "float[3,5,4] y", {}),
    "neighbors": (
        "a = Reshape(x, s) y = LRN<size=3, alpha=0.5, beta=0.6, bias=1.5>(a)", "float[3,5,2,2] y",
        {"s": I([3, 5, 2, 2])},
    ),
    "gemm of a row": (
        "a = Reshape(x, s) c = ReduceMax<keepdims=1>(a, axes) y = Gemm<beta=0.5, transB=1>(a, w, c)", "float[3,6] y",
        {"s": I([3, 20]), "axes": I([1]), "w": RNG.standard_normal((6, 20), np.float32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_computes_what_it_should(name: str, tmp_path: Path) -> None:
    text, output, constants = CASES[name]
    path = saved(tmp_path, text, "float[3,5,4] x", output, constants)
    check(path, {"x": RNG.standard_normal((3, 5, 4), np.float32)}, tolerance=1e-5)
