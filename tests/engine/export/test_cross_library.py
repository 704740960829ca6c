"""Libraries for another processor: the bytes of the same plan here, what they need, and what is refused."""

import ctypes
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.program import Program
from app.engine.entry.optimize import optimize
from app.engine.export.image import image
from app.engine.export.library import Library, library
from app.engine.export.package import archive_name
from app.engine.export.processors import processor_of
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import ExportError, TargetError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS, Target, find, host
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.processor import compiled_for
from app.kernels.library.processor_features import required
from tests.conftest import KERNELS
from tests.engine.export.test_library import drawn, instance, model, planned, ran

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="libraries are for x86-64")
AVX2 = find("cpu-avx2")
needs_avx2 = pytest.mark.skipif(not {"avx2", "fma"} <= set(host().isa), reason="no AVX2 on this machine")
NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[1,3,12,12] x) => (float[1,10] y)
<float[8,3,3,3] w, float[1152,10] v>
{
  c = Conv <pads: ints = [1, 1, 1, 1]> (x, w)
  r = Relu (c)
  f = Flatten (r)
  g = MatMul (f, v)
  y = Softmax (g)
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cross")


@pytest.fixture(scope="module")
def program(folder: Path) -> Program:
    return planned(NET, folder, threads=2, target=AVX2)


@pytest.fixture(scope="module")
def made(program: Program, compiler: Compiler) -> Library:
    return library(program, compiler, "a net")


@pytest.fixture(scope="module")
def executor(program: Program, compiler: Compiler) -> Iterator[Executor]:
    with closing(Executor(program, compiler)) as executor:
        yield executor


@needs_avx2
@pytest.mark.parametrize("threads", [1, 2])
def test_every_byte_is_the_executors_of_the_same_plan(
    program: Program, made: Library, executor: Executor, tmp_path: Path, threads: int
) -> None:
    (tmp_path / "model.so").write_bytes(made.shared.content)
    loaded = ctypes.CDLL(str(tmp_path / "model.so"))
    with instance(loaded, threads) as handle:
        for seed in range(3):
            inputs = drawn(program, seed)
            outputs = executor.run(inputs)
            found = ran(loaded, handle, inputs, outputs)
            assert [a.tobytes() for a in found] == [np.asarray(a).tobytes() for a in outputs.values()]


def test_the_library_names_its_target_and_needs_no_more(made: Library) -> None:
    assert archive_name(made.metadata) == "a-net-cpu-avx2"
    assert made.metadata["processor"] == made.metadata["target"] == "cpu-avx2"
    assert "avx512" not in str(made.metadata["features"])
    assert "amx" not in str(made.metadata["features"])


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump on this machine")
def test_the_code_has_instructions_of_the_target_alone(made: Library, tmp_path: Path) -> None:
    (tmp_path / "model.o").write_bytes(made.code)
    command = ["objdump", "-d", "--no-show-raw-insn", "model.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert re.search(r"\tvfmadd\w+ps .*%ymm", done.stdout)
    assert not re.search(r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])|\{%k\d\}", done.stdout)


def test_a_second_export_starts_no_process(
    program: Program, made: Library, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert library(program, compiler, "a net") == made


def test_what_another_process_cannot_compile_is_told(
    program: Program, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ("app.kernels.cpu.nothing:kernel", (), None, False)
    monkeypatch.setattr(
        "app.engine.export.library.image", lambda p: replace(image(p), symbols={request: "s"})
    )
    with pytest.raises(ExportError, match=r"no kernels were compiled for 'x86-64-v3'.*cpu\.nothing"):
        library(program, compiler, "a net")


@pytest.mark.parametrize("target", [p for p in PRESETS if "avx2" in p.isa], ids=lambda t: t.name)
def test_the_processor_of_a_preset_has_what_its_kernels_use(target: Target) -> None:
    processor = processor_of(target)
    assert processor != compiled_for()
    on = {feature[1:] for feature in processor.features.split(",")}
    assert {flag.replace("avx512_", "avx512") for flag in target.isa} <= on
    assert len(required(processor.features, tile_registers=True)[0]) == len(
        on
    )  # each is looked for when an instance is created


def test_this_machine_is_compiled_for_as_it_is() -> None:
    assert processor_of(host()) == compiled_for()
    assert processor_of(replace(host(), name="described", cpu_model="")) == compiled_for()


def test_implied_instruction_sets_are_required_too() -> None:
    tiles = processor_of(replace(AVX2, isa=("avx2", "fma", "amx_int8", "avx512_vnni")))
    assert {"+amx-tile", "+avx512f"} <= set(tiles.features.split(","))


def test_targets_without_a_known_processor_are_refused() -> None:
    with pytest.raises(TargetError, match=r"'small'.*or fma, in 'isa', found \['avx2'\]") as refused:
        processor_of(replace(AVX2, name="small", isa=("avx2",)))
    assert refused.value.pointer == "/options/export"
    with pytest.raises(TargetError, match="'cuda-sm90' is no CPU"):
        processor_of(find("cuda-sm90"))


def test_a_job_for_another_machine_leaves_a_library_of_a_predicted_plan(
    made: Library, program: Program, tmp_path: Path
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model(NET).SerializeToString())
    options = Options(threads=2, export=("c",), export_name="a net")
    summary = optimize(path, AVX2, options, Bindings(), tmp_path, kernels=KERNELS)
    assert summary["exports"]["library.tar.gz"]["filename"] == "a-net-cpu-avx2.tar.gz"
    assert json.loads((tmp_path / "timings.json").read_text())["kind"] == "predicted"
    refused = replace(AVX2, name="old", isa=())
    with pytest.raises(TargetError, match="'old'"):
        optimize(path, refused, options, Bindings(), tmp_path, kernels=KERNELS)
