"""Wheels of several processors: the module takes the first that the processor can run."""

import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.cli.main import main
from app.engine.export.image import WEIGHTS_SYMBOL, assembly, image
from app.engine.export.library import Library, library
from app.engine.export.wheel import joined as joined_wheels
from app.engine.export.wheel import wheel
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.processor import ARCHITECTURE, compiled_for
from app.kernels.library.joining import joined
from app.kernels.library.kernel_objects import kernel_objects
from app.kernels.library.linker import Weights, shared_library
from app.kernels.library.object_file import API, Emitter
from tests.engine.export.files import written
from tests.engine.export.test_library import NET, drawn, planned

pytestmark = pytest.mark.skipif(
    ARCHITECTURE != "x86_64" or not {"avx2", "fma"} <= set(host().isa), reason="needs x86-64 with AVX2"
)


@pytest.fixture(scope="module")
def wheels(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> dict[str, io.BytesIO]:
    """For AVX2, for 64-bit ARM, and for a processor that has an instruction set that no x86-64 with AVX-512 has."""
    folder = tmp_path_factory.mktemp("wheels")
    avx2 = library(planned(NET, folder, target=find("cpu-avx2")), compiler, "a net")
    neon = library(planned(NET, folder, target=find("cpu-neon")), compiler, "a net")
    return {
        "cpu-avx2": written(wheel, avx2, "the plan of AVX2"),
        "cpu-neon": written(wheel, neon, "the plan of ARM"),
        "other": written(wheel, _other(compiler, folder), "another plan"),
    }


def _other(compiler: Compiler, folder: Path) -> Library:
    program, own = planned(NET, folder), compiled_for()
    usual = library(program, compiler, "a net")
    told = {**usual.metadata, "processor": "other", "features": f"{own.features},+xop,+fma4,+tbm"}
    found = image(program)
    tables = Emitter(own).of_assembly(assembly(found, str(told["features"]), told))
    obj = joined([tables, *kernel_objects(found.symbols, compiler, own)], API)
    shared = shared_library(obj, API, "model.so", Weights(WEIGHTS_SYMBOL, found.weights.parts, b""))
    return replace(usual, shared=shared, metadata=told)


def ran(wheel: io.BytesIO, folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """A program in a process that has the module of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        assert file.testzip() is None
        file.extractall(folder)
        rows = file.read("a_net-1.dist-info/RECORD").decode().splitlines()
        assert {row.split(",")[0] for row in rows} == set(file.namelist())
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_module_takes_what_the_processor_can_run(
    wheels: dict[str, io.BytesIO], compiler: Compiler, tmp_path: Path
) -> None:
    whole, again = io.BytesIO(), io.BytesIO()
    name = joined_wheels(list(wheels.values()), whole)
    assert name == "a_net-1-py3-none-linux_aarch64.linux_x86_64.whl"
    joined_wheels(list(wheels.values())[::-1], again)
    assert whole.getvalue() == again.getvalue()
    inputs = drawn(planned(NET, tmp_path), 3)
    np.savez(tmp_path / "given.npz", **inputs)
    program = """
import numpy as np
import a_net
np.save("found.npy", a_net.run(**np.load("given.npz"))[0])
print(a_net.explain(), end="")
"""
    texts, found = [], []
    for n, each in enumerate((whole, wheels["cpu-avx2"])):
        done = ran(each, tmp_path / str(n), program.replace("given", str(tmp_path / "given")))
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
        found.append(np.load(tmp_path / str(n) / "found.npy"))
    assert texts == ["the plan of AVX2"] * 2
    assert found[0].tobytes() == found[1].tobytes()


def test_a_processor_that_runs_none_is_told_so(wheels: dict[str, io.BytesIO], tmp_path: Path) -> None:
    whole = written(joined_wheels, [wheels["cpu-neon"], wheels["other"]])
    done = ran(whole, tmp_path, "import a_net")
    assert done.returncode == 1
    assert (
        "ImportError: this processor lacks instructions of all that a_net is for: other, cpu-neon"
        in done.stderr
    )


def test_wheels_that_do_not_belong_together_are_refused(
    wheels: dict[str, io.BytesIO], compiler: Compiler, tmp_path: Path
) -> None:
    avx2 = wheels["cpu-avx2"]
    other = written(wheel, library(planned(NET, tmp_path), compiler, "another"), "")
    for given, reason in (
        ([avx2, avx2], "'cpu-avx2' is in several"),
        ([avx2, other], "'a_net' and of 'another' differ"),
        ([avx2, io.BytesIO(b"PK")], "expected a wheel that Stowplan made"),
        ([avx2, _older(wheels["cpu-neon"])], "made by another version"),
        ([], "at least one"),
    ):
        with pytest.raises(ValueError, match=reason):
            joined_wheels(given, io.BytesIO())


def _older(wheel: io.BytesIO) -> io.BytesIO:
    """The wheel with another text of its module."""
    raw = io.BytesIO()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(raw, "w") as archive:
        for path in source.namelist():
            archive.writestr(path, source.read(path) + (b"\n" if path.endswith("__init__.py") else b""))
    return raw


def test_the_command_line_joins_wheels(
    wheels: dict[str, io.BytesIO], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name in ("cpu-avx2", "cpu-neon"):
        paths.append(tmp_path / f"{name}.whl")
        paths[-1].write_bytes(wheels[name].getvalue())
    assert main(["join-wheels", *map(str, paths), "--out", str(tmp_path / "both")]) == 0
    (made,) = (tmp_path / "both").iterdir()
    assert capsys.readouterr().out == f"{made}\n"
    assert made.read_bytes() == written(joined_wheels, [wheels["cpu-neon"], wheels["cpu-avx2"]]).getvalue()
    assert main(["join-wheels", str(paths[0]), str(paths[0])]) != 0
    assert "is in several" in capsys.readouterr().err
