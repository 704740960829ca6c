"""Libraries of bfloat16 by tile registers and of 8 bits, in processes that never asked for these registers."""

import platform
import shutil
import subprocess
import sys
import zipfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.export.library import Library, library
from app.engine.export.package import archive
from app.engine.export.wheel import module_name, wheel
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Precision, Target, find, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.export.files import unpacked_in, written
from tests.engine.export.test_library import Array, drawn, model

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="libraries are for x86-64"),
    pytest.mark.skipif(
        "amx_bf16" not in host().isa, reason="this machine has no AMX, or does not permit its use"
    ),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine"),
]
NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[2,3,32,32] x) => (float[2,40] y)
<float[32,3,7,7] w, float[32] b, float[48,32,3,3] w2, float[48] b2, float[48,64] v, float[64,40] u>
{
  c = Conv <pads: ints = [3, 3, 3, 3], strides: ints = [2, 2]> (x, w, b)
  r = Relu (c)
  c2 = Conv <pads: ints = [1, 1, 1, 1]> (r, w2, b2)
  r2 = Relu (c2)
  p = GlobalAveragePool (r2)
  f = Flatten (p)
  g = MatMul (f, v)
  h = Tanh (g)
  y = MatMul (h, u)
}"""
DYNAMIC = """<ir_version: 10, opset_import: ["" : 21]>
net (float[2,48] x) => (float[2,40] y)
<float[48,64] v, float[64,40] u>
{
  s = Constant <value_float: float = 0.01> ()
  z = Constant <value: tensor = int8 z {0}> ()
  q = QuantizeLinear (v, s, z)
  k = QuantizeLinear (u, s, z)
  a, sa, za = DynamicQuantizeLinear (x)
  m = MatMulInteger (a, q, za)
  g = Cast <to: int = 1> (m)
  h = Mul (g, sa)
  t = Tanh (h)
  c, sc, zc = DynamicQuantizeLinear (t)
  n = MatMulInteger (c, k, zc)
  o = Cast <to: int = 1> (n)
  y = Mul (o, sc)
}"""
DESCRIBED = replace(
    find("cpu-avx512-bf16"),
    name="described",
    isa=(*find("cpu-avx512-bf16").isa, "amx_tile", "amx_bf16", "amx_int8"),
)
# A thread whose stack of signals cannot hold the registers keeps its process from having them.
REFUSED = """
#define _GNU_SOURCE
#include <signal.h>
#include "model.h"
int main(void) {
    static char memory[5000];
    stack_t stack = {.ss_sp = memory, .ss_size = sizeof memory};
    stowplan *model;
    if (sigaltstack(&stack, 0)) return 99;
    return stowplan_create(&model, 1, 0);
}
"""
WRONG_CPU = 3


def planned(text: str, precision: Precision, target: Target, folder: Path) -> Program:
    path = folder / "net.onnx"
    path.write_bytes(model(text).SerializeToString())
    options = Options(autotune=False, threads=2, precision=precision)
    return session.planned(
        session.canonical(load(path), target, options, Bindings(), load_registry()), options
    )


@pytest.fixture(
    scope="module",
    params=[(NET, "bf16", host()), (NET, "bf16", DESCRIBED), (DYNAMIC, "f32", host())],
    ids=["bf16", "bf16 of a described processor", "8 bits"],
)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    text, precision, target = request.param
    return planned(text, precision, target, tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def made(program: Program, compiler: Compiler) -> Library:
    return library(program, compiler, "net")


@pytest.fixture(scope="module")
def expected(program: Program, compiler: Compiler) -> tuple[dict[str, Array], list[bytes]]:
    """Inputs, and the bytes of the executor's outputs."""
    inputs = drawn(program, 3)
    with closing(Executor(program, compiler)) as executor:
        return inputs, [np.asarray(a).tobytes() for a in executor.run(inputs).values()]


@pytest.fixture
def unpacked(made: Library, tmp_path: Path) -> Path:
    """The folder of the archive."""
    return unpacked_in(tmp_path, archive, made)


def built(folder: Path, source: str) -> None:
    link = ["-L.", "-l:model.so", "-Wl,-rpath,$ORIGIN"]
    subprocess.run(["cc", "-Wall", "-Werror", source, *link, "-o", "program"], cwd=folder, check=True)


def test_tile_registers_multiply_bfloat16_and_no_8_bits(program: Program) -> None:
    names = [s.choice.implementation.name for s in program.steps if s.calls]
    precision = program.compilation.options.precision
    tiles = {"conv.blocked_stem_tiles", "conv.blocked_tiles"}
    assert set(names) & tiles == (tiles if precision == "bf16" else set())


def test_a_program_of_c_computes_the_executors_bytes(
    unpacked: Path, expected: tuple[dict[str, Array], list[bytes]]
) -> None:
    built(unpacked, "example.c")
    inputs, outputs = expected
    for n, array in enumerate(inputs.values()):
        array.tofile(unpacked / f"input-{n}.bin")
    subprocess.run(["./program", *(f"input-{n}.bin" for n in range(len(inputs)))], cwd=unpacked, check=True)
    assert [(unpacked / f"output-{n}.bin").read_bytes() for n in range(len(outputs))] == outputs


def test_the_wheel_computes_the_executors_bytes(
    made: Library, tmp_path: Path, expected: tuple[dict[str, Array], list[bytes]]
) -> None:
    inputs, outputs = expected
    with zipfile.ZipFile(written(wheel, made, "the plan")) as file:
        file.extractall(tmp_path)
    np.savez(tmp_path / "given.npz", **inputs)
    text = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np
import {module_name(made)} as model
np.savez("found.npz", *model.InferenceSession().run(None, dict(np.load("given.npz"))))
"""
    subprocess.run([sys.executable, "-I", "-c", text], cwd=tmp_path, check=True)
    found = np.load(tmp_path / "found.npz")
    assert [found[f"arr_{n}"].tobytes() for n in range(len(outputs))] == outputs


def test_a_process_that_may_not_have_the_registers_is_refused_what_needs_them(
    program: Program, unpacked: Path
) -> None:
    (unpacked / "refused.c").write_text(REFUSED)
    built(unpacked, "refused.c")
    status = subprocess.run(["./program"], cwd=unpacked, check=False).returncode
    needs_tiles = program.compilation.options.precision == "bf16"
    assert status == (WRONG_CPU if needs_tiles else 0)
