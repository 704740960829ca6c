"""Libraries for 64-bit ARM: the bytes of the same plan here, run by an emulator of the processor."""

import io
import re
import shutil
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.export.library import Library, library
from app.engine.export.package import archive, archive_name
from app.engine.export.wheel import wheel_name
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.processor import ARCHITECTURE
from app.kernels.library.object_file import API
from tests.engine.export.test_cross_library import NET
from tests.engine.export.test_library import drawn, planned

pytestmark = pytest.mark.skipif(ARCHITECTURE != "x86_64", reason="libraries for others are made on x86-64")
COMPILER, EMULATOR, SYSTEM = "aarch64-linux-gnu-gcc", "qemu-aarch64-static", "/usr/aarch64-linux-gnu"
needs_emulator = pytest.mark.skipif(
    not all(map(shutil.which, (COMPILER, EMULATOR))), reason=f"no {COMPILER} or no {EMULATOR}"
)


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
    with tarfile.open(fileobj=io.BytesIO(archive(made))) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive_name(made.metadata)


@needs_emulator
@pytest.mark.parametrize(
    "link",
    [["-L.", "-l:model.so", "-Wl,-rpath,$ORIGIN"], ["model.o", "weights.o", "-lm", "-lpthread"]],
    ids=["shared", "static"],
)
def test_every_byte_is_the_executors_of_the_same_plan(
    unpacked: Path, program: Program, compiler: Compiler, link: list[str]
) -> None:
    subprocess.run([COMPILER, "example.c", *link, "-o", "example"], cwd=unpacked, check=True)
    with closing(Executor(program, compiler)) as executor:
        for seed in range(2):
            inputs = drawn(program, seed)
            for n, array in enumerate(inputs.values()):
                array.tofile(unpacked / f"input-{n}.bin")
            files = [f"input-{n}.bin" for n in range(len(inputs))]
            subprocess.run([EMULATOR, "-L", SYSTEM, "./example", *files], cwd=unpacked, check=True)
            for n, array in enumerate(executor.run(inputs).values()):
                assert (unpacked / f"output-{n}.bin").read_bytes() == np.asarray(array).tobytes()


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
