"""Kinds of kernels and steps: each leaves in a library with the executor's bytes, or is rejected by name."""

import ctypes
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.core.streams.stream_group import STREAM, StreamGroup
from app.engine.export.image import rejections
from app.engine.export.library import library
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import ExportError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.export.test_library import drawn, instance, planned, pytestmark, ran  # noqa: F401
from tests.engine.export.test_static_program import check as check_alone
from tests.engine.export.test_static_program import needs_linker
from tests.engine.passes.streams.chains import OPTIONS, inverted_residuals
from tests.engine.passes.streams.transformers import attention

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
TEXTS = {
    "einsum": "net (float[2,3,4] x, float[2,4,5] z) => (float[2,5,3] y) "
    '{ y = Einsum <equation = "bij,bjk->bki"> (x, z) }',
    "batch statistics": "net (float[4,3,5] x, float[3] s, float[3] b, float[3] m, float[3] v) "
    "=> (float[4,3,5] y, float[3] mean, float[3] variance) "
    "{ y, mean, variance = BatchNormalization <training_mode = 1> (x, s, b, m, v) }",
    "weights of ConvTranspose that are inputs": "net (float[1,4,6,6] x, float[4,3,3,3] w) "
    "=> (float[1,3,13,13] y) { y = ConvTranspose <strides = [2, 2]> (x, w) }",
    "integers": "net (float[1,4,9,9] x) => (float[1,6,9,9] y)\n"
    "<int8[6,4,3,3] w>\n{ s = Constant <value_float = 0.05> ()  z = Constant <value: tensor = uint8 {120}> ()  "
    "t = Constant <value_float = 0.01> ()  q = QuantizeLinear (x, s, z)  a = DequantizeLinear (q, s, z)  "
    "b = DequantizeLinear (w, t)  c = Conv <pads = [1, 1, 1, 1]> (a, b)  r = Relu (c)  "
    "k = QuantizeLinear (r, s, z)  y = DequantizeLinear (k, s, z) }",
    "dynamic quantization": "net (float[3,32] x) => (float[3,16] y)\n"
    "<int8[32,16] w>\n{ t = Constant <value_float = 0.01> ()  q, s, z = DynamicQuantizeLinear (x)  "
    "p = MatMulInteger (q, w, z)  f = Cast <to = 1> (p)  u = Mul (s, t)  y = Mul (f, u) }",
    "4-bit weights": "net (float[3,32] x) => (float[3,16] y)\n"
    "<uint8[16,1,16] w, float[16] s>\n{ y = com.microsoft.MatMulNBits <K = 32, N = 16, bits = 4, "
    "block_size = 32> (x, w, s) }",
}


def check(program: Program, compiler: Compiler, folder: Path) -> None:
    """Fails unless the library gives the executor's bytes on several inputs."""
    (folder / "model.so").write_bytes(library(program, compiler, "net").shared.content)
    with (
        closing(Executor(program, compiler)) as executor,
        instance(ctypes.CDLL(str(folder / "model.so"))) as handle,
    ):
        native = ctypes.CDLL(str(folder / "model.so"))
        for seed in range(4):
            inputs = drawn(program, seed)
            outputs = executor.run(dict(inputs))
            found = ran(native, handle, inputs, outputs)
            assert [a.tobytes() for a in found] == [np.asarray(a).tobytes() for a in outputs.values()]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_the_library_gives_the_executors_bytes(text: str, compiler: Compiler, tmp_path: Path) -> None:
    check(planned(head(text) + text, tmp_path), compiler, tmp_path)


def head(text: str) -> str:
    """The opsets that a model needs."""
    return HEAD.replace("]", ', "com.microsoft" : 1]') if "com.microsoft" in text else HEAD


@pytest.mark.parametrize("threads", [1, 2])
def test_products_of_16_bit_integers_leave_with_the_executors_bytes(
    threads: int, compiler: Compiler, tmp_path: Path
) -> None:
    text = """net (float[1,3,56,56] x) => (float[1,128,28,28] y)
    <float[64,3,3,3] v, float[128,64,1,1] w>
    { a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, v)  r = Relu (a)  y = Conv (r, w) }"""
    plain = planned(HEAD + text, tmp_path).compilation.model.graph
    chosen = {n.name or "": "chosen" for n in plain if n.op_type == "Conv"}
    options = Options(autotune=False, threads=threads, export=("c",), fast_algorithms=False, int16=chosen)
    loaded = load(tmp_path / "net.onnx")
    program = session.planned(
        session.canonical(loaded, host(), options, Bindings(), load_registry()), options
    )
    used = [s.choice.implementation.precision for s in program.steps if s.group.anchor.op_type == "Conv"]
    assert "int16" in used
    check(program, compiler, tmp_path)


@pytest.fixture
def in_strips(tmp_path: Path) -> Program:
    """A program that takes less memory in strips of rows."""
    options = replace(OPTIONS, prefer="memory")
    path = inverted_residuals(1).save(tmp_path)
    program = session.planned(
        session.canonical(load(path), host(), options, Bindings(), load_registry()), options
    )
    assert STREAM in {step.group.op for step in program.steps}
    return program


def test_strips_of_rows_are_rows_of_the_library(
    in_strips: Program, compiler: Compiler, tmp_path: Path
) -> None:
    check(in_strips, compiler, tmp_path)


def test_heads_are_rows_of_the_library(compiler: Compiler, tmp_path: Path) -> None:
    options = replace(OPTIONS, prefer="memory")
    loaded = load(attention(tmp_path / "layer.onnx", 64))
    program = session.planned(
        session.canonical(loaded, host(), options, Bindings(), load_registry()), options
    )
    assert any(s.group.by_heads for s in program.steps if isinstance(s.group, StreamGroup))
    check(program, compiler, tmp_path)


@needs_linker
def test_strips_of_rows_run_on_a_device(in_strips: Program, compiler: Compiler, tmp_path: Path) -> None:
    check_alone(in_strips, compiler, tmp_path, "strips")


def test_a_step_that_a_run_specializes_is_rejected_by_name(compiler: Compiler, tmp_path: Path) -> None:
    text = f"{HEAD}net (float[4,6] x, int64[1] start, int64[1] end) => (float[n,6] y) {{ y = Slice (x, start, end) }}"
    with pytest.raises(ExportError, match=r"\(Slice\) runs in Python; value 'y' has no fixed shape"):
        library(planned(text, tmp_path), compiler, "net")


def test_values_that_are_no_tensors_of_numbers_are_refused_as_what_they_are(tmp_path: Path) -> None:
    text = f"{HEAD}net (float[2] x, string[2] words) => (float[2] y) {{ y = Exp (x) }}"
    assert rejections(planned(text, tmp_path)) == ["value 'words' is tensor(string), not a tensor of numbers"]
