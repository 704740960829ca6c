"""Weights that programs of several shapes and processes map from files."""

import gc
import json
import multiprocessing
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_array_equal

from app.engine.core import graph
from app.engine.entry.served_model import ServedModel
from app.engine.runtime.cpu import weight_store
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import KernelError
from app.engine.types.options import Bindings, Options
from app.kernels.cpu.runtime.compiler import Compiler

WIDTH = 768
OPTIONS = Options(autotune=False, timings="predicted", choose="first")
# A product packs its weights, a Gather reads them as they are, and the norm of BatchNormalization is folded.
TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
model (float[N, {WIDTH}] x, int64[N, 2] i) => (float[N, {WIDTH}] y, float[N, 2, {WIDTH}] z) {{
h = MatMul (x, a)
y = Relu (h)
z = Gather (b, i)
}}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(TEXT)
    for name in "ab":
        array = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    found = tmp_path_factory.mktemp("stored") / "m.onnx"
    onnx.save(model, found)
    return found


def served(path: Path, folder: Path | None, compiler: Compiler) -> ServedModel:
    model = ServedModel(path, OPTIONS, Bindings(), kernels=compiler.cache, weights=folder)
    model._compiler = compiler
    return model


def shapes(n: int) -> dict[str, tuple[int, ...]]:
    return {"x": (n, WIDTH), "i": (n, 2)}


def outputs(program: Executor, n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, WIDTH)).astype(np.float32)
    return program.run({"x": x, "i": rng.integers(0, WIDTH, (n, 2))})


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{weight_store.SUFFIX}"))


def private_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(kb) << 10 for kb in re.findall(r"Anonymous: +(\d+) kB", text))


def test_programs_of_all_shapes_compute_from_one_file(path: Path, tmp_path: Path, compiler: Compiler) -> None:
    """Shapes whose products pack weights alike: from three rows on AVX2 has another implementation."""
    plain, stored = served(path, None, compiler), served(path, tmp_path, compiler)
    programs = [stored.program(shapes(n)) for n in (1, 2)]
    rows = [[step.choice.implementation.name for step in p.program.steps] for p in programs]
    assert rows[0] == rows[1]
    (segment,) = segments(tmp_path)
    assert segment.stat().st_size < 2.1 * WIDTH * WIDTH * 4
    for n, program in enumerate(programs, 1):
        expected = plain.program(shapes(n))
        for name, found in outputs(program, n).items():
            assert_array_equal(found, outputs(expected, n)[name])


def test_instances_run_at_once_from_one_copy(path: Path, tmp_path: Path, compiler: Compiler) -> None:
    programs = served(path, tmp_path, compiler).programs(shapes(1), ((0,), (0,), (0,)))
    expected = outputs(programs[0], 1)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda p: [outputs(p, 1) for _ in range(50)], programs):
            for row in found:
                assert_array_equal(row["y"], expected["y"])
                assert_array_equal(row["z"], expected["z"])
    (segment,) = segments(tmp_path)
    assert segment.stat().st_size < 2.1 * WIDTH * WIDTH * 4


def test_another_shape_adds_no_weights_to_the_memory_of_the_process(
    path: Path, tmp_path: Path, compiler: Compiler
) -> None:
    model = served(path, tmp_path, compiler)
    programs = [model.program(shapes(n)) for n in (1, 2)]
    before = private_bytes()
    programs += [model.program(shapes(n)) for n in (1, 2, 1, 2, 1, 2)]
    assert private_bytes() - before < WIDTH * WIDTH * 4  # of 6 programs with twice as much each


def test_another_process_maps_the_same_file(path: Path, tmp_path: Path, compiler: Compiler) -> None:
    program = served(path, tmp_path, compiler).program(shapes(1))
    before = segments(tmp_path)
    context = multiprocessing.get_context("spawn")
    given, answer = context.Pipe()
    other = context.Process(target=_elsewhere, args=(path, tmp_path, compiler.cache, answer))
    other.start()
    told = given.recv() if given.poll(300) else {}
    other.join(30)
    assert segments(tmp_path) == before
    assert told["mapped"] == [str(p) for p in before]
    assert_array_equal(np.array(told["y"], np.float32), outputs(program, 1)["y"])


def _elsewhere(path: Path, folder: Path, kernels: Path, answer: Any) -> None:
    model = ServedModel(path, OPTIONS, Bindings(), kernels=kernels, weights=folder)
    found = outputs(model.program(shapes(1)), 1)
    lines = Path("/proc/self/maps").read_text().splitlines()
    mapped = sorted({line.split()[-1] for line in lines if line.endswith(weight_store.SUFFIX)})
    answer.send({"y": found["y"].tolist(), "mapped": mapped})


def test_bytes_that_another_process_changed_are_not_computed_with(
    path: Path, tmp_path: Path, compiler: Compiler
) -> None:
    expected = outputs(served(path, tmp_path, compiler).program(shapes(1)), 1)
    (segment,) = segments(tmp_path)
    with segment.open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xff" * 4096)
    found = outputs(served(path, tmp_path, compiler).program(shapes(1)), 1)
    assert len(segments(tmp_path)) == 2
    assert_array_equal(found["y"], expected["y"])
    assert_array_equal(found["z"], expected["z"])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        bytes(8),
        b"{]" + (2).to_bytes(8, "little"),
        (table := json.dumps({"00": [0, 1 << 40]}).encode()) + len(table).to_bytes(8, "little"),
    ],
    ids=["empty", "long", "no table", "no JSON", "beyond"],
)
def test_a_file_that_is_no_segment_is_left_alone(
    content: bytes, path: Path, tmp_path: Path, compiler: Compiler
) -> None:
    (tmp_path / f"0{weight_store.SUFFIX}").write_bytes(content)
    outputs(served(path, tmp_path, compiler).program(shapes(1)), 1)
    assert len(segments(tmp_path)) == 2


def test_only_what_nobody_has_mapped_for_long_is_removed(
    path: Path, tmp_path: Path, compiler: Compiler
) -> None:
    model = served(path, tmp_path, compiler)
    program = model.program(shapes(1))
    (segment,) = segments(tmp_path)
    (tmp_path / "1.part").touch()
    os.utime(segment, (0, 0))
    weight_store.remove_unused(tmp_path)
    assert segments(tmp_path) == [segment]
    assert not (tmp_path / "1.part").exists()
    program.close()
    del program
    gc.collect()
    weight_store.remove_unused(tmp_path, unused_seconds=1e12)
    assert segments(tmp_path) == [segment]
    weight_store.remove_unused(tmp_path)
    assert segments(tmp_path) == []
    outputs(model.program(shapes(1)), 1)
    assert len(segments(tmp_path)) == 1


def test_weights_that_no_call_reads_are_given_back(path: Path, tmp_path: Path, compiler: Compiler) -> None:
    program = served(path, tmp_path, compiler).program(shapes(1)).program
    weights = program.compilation.graph.initializers
    with pytest.raises(KernelError, match="'a' were given back"):
        graph.constant(weights["a"])
    assert graph.array(weights["b"]).shape == (WIDTH, WIDTH)


def test_a_folder_without_room_is_an_error_that_names_it(
    path: Path, tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model = served(path, tmp_path, compiler)
    monkeypatch.setattr(weight_store._SegmentWriter, "write", full)
    with pytest.raises(KernelError, match=rf"cannot be written to {tmp_path}: No space"):
        model.program(shapes(1))
