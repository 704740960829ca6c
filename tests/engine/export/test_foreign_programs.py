"""The library from other languages and with another C library: programs of docs/library.md as they stand.

onnxruntime for C#, Java and Triton is not to be had here. What they call of its C interface is called from C.
"""

import os
import re
import shlex
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from app.engine.core.program import Program
from app.engine.export.custom_operator import graph
from app.engine.export.library import Library, library
from app.engine.export.package import archive
from app.engine.runtime.cpu.executor import Executor
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.export.files import unpacked_in
from tests.engine.export.test_library import NET, drawn, planned, pytestmark  # noqa: F401

GUIDE = Path(__file__).parents[3] / "docs" / "library.md"
JNA = Path("/usr/share/java/jna.jar")
ANSWER = re.compile(r"y\[0\] = [0-9.e-]+\n")


def needs(*programs: str, file: Path | None = None) -> pytest.MarkDecorator:
    absent = [name for name in programs if shutil.which(name) is None]
    absent += [] if file is None or file.exists() else [str(file)]
    return pytest.mark.skipif(bool(absent), reason=f"this machine has no {' and no '.join(absent)}")


def program(language: str) -> str:
    """The first program of the guide in a language."""
    found, *_ = re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    return str(found)


def answer(command: str, folder: Path) -> str:
    home = {**os.environ, "HOME": str(folder), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}  # noqa: TID251
    done = subprocess.run(command, cwd=folder, shell=True, capture_output=True, text=True, env=home)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return planned(NET, tmp_path_factory.mktemp("net"), threads=2)


@pytest.fixture(scope="module")
def made(plan: Program, compiler: Compiler) -> Library:
    return library(plan, compiler, "net")


@pytest.fixture
def unpacked(made: Library, tmp_path: Path) -> Path:
    """The folder of the archive."""
    return unpacked_in(tmp_path, archive, made)


@needs("javac", "java", file=JNA)
def test_java_runs_the_library(unpacked: Path) -> None:
    (unpacked / "Main.java").write_text(program("java"))
    answer(f"javac -cp {JNA} Main.java", unpacked)
    assert ANSWER.fullmatch(answer(f"java -cp {JNA}:. Main", unpacked))


@needs("go", "cc")
def test_go_runs_the_library(unpacked: Path) -> None:
    # Go takes every object of a folder for its own.
    for name in ("model.o", "weights.s", "example.c"):
        (unpacked / name).unlink()
    (unpacked / "main.go").write_text(program("go"))
    answer("go mod init example && go build -o main", unpacked)
    assert ANSWER.fullmatch(answer("./main", unpacked))


@needs("musl-gcc")
def test_musl_runs_the_library(unpacked: Path) -> None:
    (unpacked / "main.c").write_text(program("c"))
    answer("musl-gcc main.c -L. -l:model.so -Wl,-rpath,'$ORIGIN' -o main", unpacked)
    assert "musl" in answer("readelf -l main | grep interpreter", unpacked)
    assert ANSWER.fullmatch(answer("./main", unpacked))


@needs("cc")
@pytest.mark.parametrize("version", [1, 2], ids=["as Java and Triton", "as C#"])
def test_onnxruntime_in_c_runs_the_operator(
    plan: Program, made: Library, compiler: Compiler, unpacked: Path, version: int
) -> None:
    runtime, *_ = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    (unpacked / "net.onnx").write_bytes(graph(made))
    inputs = drawn(plan, 3)
    for name, array in inputs.items():
        (unpacked / f"{name}.bin").write_bytes(array.tobytes())
    source = Path(__file__).with_name("onnxruntime_check.c")
    answer(f"cc -O1 -I. {shlex.quote(str(source))} -ldl -o check", unpacked)
    files = [f"{name}.bin" for name in inputs]
    command = ["./check", str(runtime), "./model.so", "net.onnx", str(version), *files]
    done = subprocess.run(command, cwd=unpacked, capture_output=True)
    assert done.returncode == 0, done.stderr
    with closing(Executor(plan, compiler)) as executor:
        assert done.stdout == b"".join(np.asarray(a).tobytes() for a in executor.run(inputs).values())
