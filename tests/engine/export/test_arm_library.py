"""Libraries for 64-bit ARM: the bytes of the same plan here, run by an emulator of the processor."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from app.engine.core.program import Program
from app.engine.export.library import Library, library
from app.engine.export.package import archive
from app.engine.export.wheel import wheel_name
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.processor import ARCHITECTURE
from app.kernels.library.object_file import API
from tests.engine.export.files import unpacked_in
from tests.engine.export.test_cross_library import NET
from tests.engine.export.test_library import Array, drawn, planned, whole

pytestmark = pytest.mark.skipif(ARCHITECTURE != "x86_64", reason="libraries for others are made on x86-64")
COMPILER, EMULATOR, SYSTEM = "aarch64-linux-gnu-gcc", "qemu-aarch64-static", "/usr/aarch64-linux-gnu"
needs_emulator = pytest.mark.skipif(
    not all(map(shutil.which, (COMPILER, EMULATOR))), reason=f"no {COMPILER} or no {EMULATOR}"
)


SHARED = ("-L.", "-l:model.so", "-Wl,-rpath,$ORIGIN")


def emulated(at: Path, inputs: Mapping[str, Array], processor: str, link: Sequence[str] = SHARED) -> bytes:
    """Outputs of the archive's example, one after another, run by the emulator of a processor."""
    if not (at / "example").exists():
        subprocess.run([COMPILER, "example.c", *link, "-o", "example"], cwd=at, check=True)
    files = [f"input-{n}.bin" for n in range(len(inputs))]
    for file, array in zip(files, inputs.values()):
        (at / file).write_bytes(np.asarray(array).tobytes())
    command = [EMULATOR, "-cpu", processor, "-L", SYSTEM, "./example", *files]
    done = subprocess.run(command, cwd=at, check=True, capture_output=True, text=True)
    return b"".join((at / f"output-{n}.bin").read_bytes() for n in range(len(done.stdout.splitlines())))


def together(outputs: Mapping[str, Any]) -> bytes:
    """Bytes of outputs, one after another."""
    return b"".join(np.asarray(a).tobytes() for a in outputs.values())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arm")


@pytest.fixture(scope="module")
def program(folder: Path) -> Program:
    return planned(NET, folder, threads=2, target=find("cpu-neon"))


@pytest.fixture(scope="module")
def made(program: Program, compiler: Compiler) -> Library:
    return library(program, compiler, "a net")


@pytest.fixture(scope="module")
def unpacked(made: Library, folder: Path) -> Path:
    return unpacked_in(folder, archive, made)


@needs_emulator
@pytest.mark.parametrize(
    "link", [SHARED, ("model.o", "weights.s", "-lm", "-lpthread")], ids=["shared", "static"]
)
def test_every_byte_is_the_executors_of_the_same_plan(
    made: Library, program: Program, compiler: Compiler, link: Sequence[str], tmp_path: Path
) -> None:
    at = unpacked_in(tmp_path, archive, made)
    with closing(Executor(program, compiler)) as executor:
        for seed in range(2):
            inputs = drawn(program, seed)
            assert emulated(at, inputs, "cortex-a72", link) == together(executor.run(inputs))


# 8-bit products of every sign, with zero points, in which sdot takes both operands as signed.
BYTES = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
bytes (uint8[2,6,9,9] u, int8[2,6,9,9] s, uint8[5,22] m, int8[5,24] n, float[3,64] f)
    => (int32[2,8,9,9] c, int32[2,8,9,9] d, int32[5,12] p, int32[5,20] q, float[3,10] r)
<uint8 zero = {131}, int8 below = {-7}, int8[8,6,3,3] w, int8[22,12] v, int8[24,20] o,
 uint8[10,2,16] four, float[20] scales>
{
  c = ConvInteger <pads: ints = [1, 1, 1, 1]> (u, w, zero)
  d = ConvInteger <pads: ints = [1, 1, 1, 1]> (s, w, below)
  p = MatMulInteger (m, v, zero)
  q = MatMulInteger (n, o, below)
  r = com.microsoft.MatMulNBits <K: int = 64, N: int = 10, bits: int = 4, block_size: int = 32,
        accuracy_level: int = 4> (f, four, scales)
}"""


@needs_emulator
def test_products_of_bytes_take_the_instruction_that_adds_four(tmp_path: Path, compiler: Compiler) -> None:
    target = find("cpu-neon-dotprod")
    program = planned(BYTES, tmp_path, target=target)
    chosen = [step.choice.implementation.name for step in program.steps]
    assert chosen == [*["conv_integer.pixels_dot"] * 2, *["matmul_integer.dot"] * 2, "matmul_nbits.blocks"]
    made = library(program, compiler, "bytes")
    at = unpacked_in(tmp_path, archive, made)
    listing = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "model.so"], cwd=at, capture_output=True, text=True, check=True
    ).stdout
    assert listing.count("\tsdot\t") >= 5
    random = np.random.default_rng(3)
    inputs = {
        k: a if a.dtype.kind == "f" else whole(random, a.dtype, a.shape) for k, a in drawn(program, 3).items()
    }
    with closing(Executor(program, compiler)) as executor:
        found = executor.run(inputs)
    assert emulated(at, inputs, "max") == together(found)
    peer = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    for name, exact in zip(found, peer.run(list(found), inputs)):
        np.testing.assert_allclose(found[name], exact, rtol=0, atol=0.05 if name == "r" else 0)
    with pytest.raises(subprocess.CalledProcessError) as older:
        emulated(at, inputs, "cortex-a72")
    assert older.value.returncode == 1
    assert "processor" in older.value.stderr


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf on this machine")
def test_the_file_is_what_loaders_of_the_architecture_expect(unpacked: Path, made: Library) -> None:
    done = subprocess.run(
        ["readelf", "-aW", "--debug-dump=frames", "model.so"],
        cwd=unpacked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Warning" not in done.stderr
    assert re.search(r"Machine: +AArch64", done.stdout)
    assert set(re.findall(r"LOAD.* (0x\w+)$", done.stdout, re.M)) == {"0x10000"}
    assert set(re.findall(r" UND \w+@(GLIBC_[0-9.]+)", done.stdout)) == {"GLIBC_2.17"}
    assert set(re.findall(r" GLOBAL DEFAULT +\d+ (\w+)$", done.stdout, re.M)) >= set(API)
    assert made.metadata["processor"] == "cpu-neon"
    assert wheel_name(made) == "a_net-1-py3-none-linux_aarch64.whl"
