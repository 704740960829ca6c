"""Casts that kernels of processors take in, and those that they leave."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core import pipeline
from app.engine.core.calls import KernelCall
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.passes.narrow_storage import NarrowStorage
from app.engine.planning import session
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import saved
from tests.harness import OWN
from tests.session import Session

HEADER = '<ir_version: 10, opset_import: ["": 23]>'
OPTIONS = Options(backends=OWN, autotune=False)
NORM = "n = LayerNormalization(x, s, b)"


def narrowed(text: str, folder: Path, options: Options = OPTIONS) -> ir.Graph:
    """The graph of a file after the pass."""
    path = saved(f"{HEADER} {text}", folder)
    compilation = session.canonical(load(path), host(), options, Bindings(), load_registry())
    return pipeline.run(compilation, (NarrowStorage(),)).graph


def test_a_kernel_that_converts_takes_the_place_of_casts(tmp_path: Path) -> None:
    graph = narrowed("g (float16[4,9] x) => (float16[4,9] y) { y = Softmax(x) }", tmp_path)
    assert [n.op_type for n in graph] == ["Softmax"]
    assert [v.name for v in graph.outputs] == ["y"]
    assert {v.dtype for v in (*graph.inputs, *graph.outputs)} == {ir.DataType.FLOAT16}


def test_a_cast_that_others_read_stays_for_them(tmp_path: Path) -> None:
    text = "g (float16[4,9] x) => (float16[4,9] y) { a = Softmax(x) b = MatMul(x, t) y = Add(a, b) }"
    text = text.replace("x)", "x, float16[9,9] t)", 1)
    graph = narrowed(text, tmp_path)
    (softmax,) = (n for n in graph if n.op_type == "Softmax")
    assert [v.name for v in softmax.inputs if v is not None] == ["x"]
    assert [n.op_type for n in graph].count("Cast") == 3  # of x and t for the product, of the sum


def test_a_result_that_others_read_stays_float32(tmp_path: Path) -> None:
    text = "g (float[4,9] x) => (float16[4,9] y, float[4,9] z) { a = Softmax(x) y = Cast<to = 10>(a) z = Exp(a) }"
    (softmax,) = (n for n in narrowed(text, tmp_path) if n.op_type == "Softmax")
    assert softmax.outputs[0].dtype == ir.DataType.FLOAT


def test_what_a_library_computes_keeps_its_casts(tmp_path: Path) -> None:
    text = "g (float16[4,9] x) => (float16[4,9] y) { y = Softmax(x) }"
    options = Options(backends=("onnxruntime", *OWN), autotune=False)
    graph = narrowed(text, tmp_path, options)
    assert [n.op_type for n in graph] == ["Cast", "Softmax", "Cast"]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_attention_reads_a_cache_of_16_bits_where_it_lies(
    kind: str, tmp_path: Path, compiler: Compiler
) -> None:
    text = f"""g (float[1,2,1,16] q, {kind}[1,2,60,16] pk, {kind}[1,2,60,16] pv, {kind}[1,2,1,16] k,
               {kind}[1,2,1,16] v) => (float[1,2,1,16] y, {kind}[1,2,61,16] nk, {kind}[1,2,61,16] nv)
        {{ nk = Concat<axis = 2>(pk, k) nv = Concat<axis = 2>(pv, v)
           ck = Cast<to = 1>(nk) cv = Cast<to = 1>(nv)
           t = Transpose<perm = [0,1,3,2]>(ck) s = MatMul(q, t) f = Constant<value_float = 0.25>()
           m = Mul(s, f) p = Softmax(m) y = MatMul(p, cv) }}"""
    made = Session(saved(f"{HEADER} {text}", tmp_path), compiler, options=OPTIONS, poison=True)
    rng = np.random.default_rng(0)
    dtype = ir.DataType[kind.upper()].numpy()
    lengths = {"q": 1, "pk": 60, "pv": 60, "k": 1, "v": 1}
    given = {n: rng.standard_normal((1, 2, r, 16)).astype(np.float32) for n, r in lengths.items()}
    given = {n: a if n == "q" else a.astype(dtype) for n, a in given.items()}
    found = made.run(given)
    names = [s.group.op for s in made.program.steps]
    assert all(isinstance(c, KernelCall) for s in made.program.steps for c in s.calls)
    made.close()
    assert "Cast" not in str(
        [n.op_type for s in made.program.steps for n in s.group.nodes if len(s.group.nodes) == 1]
    )
    assert names.count("Attention") == 1, names
    keys, values = (np.concatenate([given[f"p{n}"], given[n]], 2) for n in "kv")
    np.testing.assert_array_equal(found["nk"], keys)
    keys, values = keys.astype(np.float64), values.astype(np.float64)
    scores = np.exp(given["q"].astype(np.float64) @ keys.swapaxes(2, 3) / 4)
    expected = scores / scores.sum(-1, keepdims=True) @ values
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-6)
