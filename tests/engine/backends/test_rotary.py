"""Patterns that stand for RotaryEmbedding: which are found, and that the outputs stay the same."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.backends.cpu.rotary import REWRITES
from app.engine.types.target import PRESETS
from tests.engine.canonical import assert_same_outputs, canonical, saved

HEAD = '<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]> g'
TABLES = "{0}[9,4] c, {0}[9,4] s, int64[2,5] i"
X4, X3 = "{0}[2,3,5,12] x", "{0}[2,5,36] x"
TURN = "Sub(ac, bs) j = Add(as, bc)"
PRODUCTS = "ac = Mul(a, c) bs = Mul(b, s) as = Mul(a, s) bc = Mul(c, b) r = " + TURN


def counted(signature: str, body: str, folder: Path, **given: Any) -> Counter[str]:
    path = saved(f"{HEAD} {signature} {{ {body} }}", folder)
    assert "numba-cpu" in PRESETS[0].backends
    compilation = canonical(path, rewrites=REWRITES)
    assert_same_outputs(path, compilation, 2e-3 if "float16" in signature else 1e-5, **given)
    return Counter(n.op_type for n in compilation.graph)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("x", [X4, X3])
@pytest.mark.parametrize("positions", [True, False])
def test_the_operator_comes_back(
    x: str, kind: str, interleaved: int, positions: bool, tmp_path: Path
) -> None:
    width = 12 if "12" in x else 36
    attributes = f"interleaved = {interleaved}, rotary_embedding_dim = 8"
    attributes += ", num_heads = 3" if width == 36 else ""
    tables = TABLES if positions else "{0}[2,5,4] c, {0}[2,5,4] s"
    ids = {"i": np.arange(10).reshape(2, 5) % 9} if positions else {}
    signature = f"({x}, {tables}) => ({kind}[{'a,b,c,d' if width == 12 else 'a,b,c'}] y)".replace("{0}", kind)
    names = "x, c, s, i" if positions else "x, c, s"
    found = counted(signature, f"y = RotaryEmbedding<{attributes}>({names})", tmp_path, **ids)
    assert found["RotaryEmbedding"] == 1
    assert found["Mul"] == 0
    gathered = 2 if positions and kind == "float16" else 0  # tables in 16 bits that change between runs
    assert found["Gather"] == gathered


def test_of_one_position_for_all_sequences(tmp_path: Path) -> None:
    signature = "(float[1,3,5,8] x, float[9,4] c, float[9,4] s, int64[1] i) => (float[a,b,d,e] y)"
    body = "y = com.microsoft.RotaryEmbedding(x, i, c, s)"
    assert counted(signature, body, tmp_path, i=np.array([3]))["RotaryEmbedding"] == 1


HALVES = "n = Constant<value = int64[2] {4, 4}>() a, b = Split<axis = -1>(x, n) "


@pytest.mark.parametrize(
    ("signature", "body"),
    [
        ("(float[2,3,5,8] x, float[2,1,5,4] c, float[2,1,5,4] s)", f"{HALVES}{PRODUCTS} y = Concat<axis = 3>(r, j)"),
        ("(float[2,5,3,8] x, float[2,5,1,4] c, float[2,5,1,4] s)", f"{HALVES}{PRODUCTS} y = Concat<axis = -1>(r, j)"),
        ("(float[1,3,5,8] x, float[5,4] c, float[5,4] s)", f"{HALVES}{PRODUCTS} y = Concat<axis = 3>(r, j)"),
    ],
)  # fmt: skip
def test_products_and_sums_of_halves(signature: str, body: str, tmp_path: Path) -> None:
    found = counted(f"{signature} => (float[a,b,d,e] y)", body, tmp_path)
    assert found["RotaryEmbedding"] == 1
    assert found["Concat"] == found["Split"] == 0


@pytest.mark.parametrize(
    "body",
    [
        f"{HALVES}{PRODUCTS} y = Concat<axis = 3>(j, r)",  # in the other order
        f"{HALVES}{PRODUCTS} y = Concat<axis = 2>(r, j)",
        f"n = Constant<value = int64[2] {{4, 4}}>() b, a = Split<axis = -1>(x, n) {PRODUCTS} y = Concat<axis = 3>(r, j)",
        f"{HALVES}{PRODUCTS} z = Concat<axis = 3>(r, j) y = Add(z, z) w = Relu(r)",  # a half is read elsewhere
        f"{HALVES}{PRODUCTS.replace('bc = Mul(c, b)', 'bc = Mul(b, s)')} y = Concat<axis = 3>(r, j)",
    ],
)  # fmt: skip
def test_others_stay(body: str, tmp_path: Path) -> None:
    more = ", float[f,g,h,k] w" if "w = " in body else ""
    signature = f"(float[2,3,5,8] x, float[2,1,5,4] c, float[2,1,5,4] s) => (float[a,b,d,e] y{more})"
    assert counted(signature, body, tmp_path)["RotaryEmbedding"] == 0


@pytest.mark.parametrize(("kind", "heads"), [("float", 3), ("double", 1)])
def test_angles_that_differ_by_head_stay_and_so_does_float64(kind: str, heads: int, tmp_path: Path) -> None:
    table = f"{kind}[2,{heads},5,4]"
    signature = f"({kind}[2,3,5,8] x, {table} c, {table} s) => ({kind}[a,b,d,e] y)"
    body = f"{HALVES}{PRODUCTS} y = Concat<axis = 3>(r, j)"
    assert counted(signature, body, tmp_path)["RotaryEmbedding"] == 0
