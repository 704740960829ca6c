"""Libraries beside the executor: equal bytes, what they need of a system, and what they refuse."""

import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.core import graph
from app.engine.core.calls import Jump
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.export.image import WEIGHTS_SYMBOL, assembly, image
from app.engine.export.library import Library, library
from app.engine.export.package import archive
from app.engine.export.wheel import module_name, wheel, wheel_name
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import ExportError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.processor import compiled_for
from app.kernels.library.c_library import IMPORTS
from app.kernels.library.joining import joined
from app.kernels.library.kernel_objects import kernel_objects
from app.kernels.library.linker import Weights, shared_library
from app.kernels.library.object_file import API, Emitter
from tests.engine.backends.random_bodies import Writer, random_inputs
from tests.engine.export.files import unpacked_in, written

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="libraries are for x86-64")

Array = np.ndarray[Any, Any]

NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[1,3,20,20] x, int64[1,4] ids) => (float[1,10] y, float[1,4,8] z)
<float[8,3,3,3] w, float[8] b, float[8,10] v, float[16,8] table>
{
  c = Conv <pads: ints = [1, 1, 1, 1]> (x, w, b)
  r = Relu (c)
  p = GlobalAveragePool (r)
  f = Flatten (p)
  g = MatMul (f, v)
  y = Softmax (g)
  e = Gather (table, ids)
  z = Erf (e)
}"""
LOOP = """<ir_version: 10, opset_import: ["" : 21]>
net (float[4] x, int64 n, bool go) => (float[4] y, float[m, 4] z)
{
  y, z = Loop (n, go, x) <body: graph = body (int64 i, bool c, float[4] a) => (bool d, float[4] b, float[4] e) {
    d = Identity (c)
    b = Tanh (a)
    e = Identity (b)
  }>
}"""


def model(text: str) -> onnx.ModelProto:
    """The model, with random initializers for the values that it declares and does not compute."""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    for value in proto.graph.value_info:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        kind = ir.DataType(value.type.tensor_type.elem_type).numpy()
        values = (
            random.normal(0, 0.3, shape).astype(np.float32)
            if kind == np.float32
            else whole(random, kind, shape)
        )
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, value.name))
    del proto.graph.value_info[:]
    return proto


def whole(random: np.random.Generator, kind: Any, shape: Sequence[int]) -> Array:
    """Integers of all sizes of a type."""
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max, shape, kind, endpoint=True)


def planned(text: str, folder: Path, threads: int = 1, target: Target | None = None) -> Program:
    path = folder / "net.onnx"
    path.write_bytes(model(text).SerializeToString())
    return planned_of(path, threads, target)


def planned_of(path: Path, threads: int = 1, target: Target | None = None) -> Program:
    options = Options(autotune=False, threads=threads, export=("c",))
    return session.planned(
        session.canonical(load(path), target or host(), options, Bindings(), load_registry()), options
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@pytest.fixture(scope="module")
def program(folder: Path) -> Program:
    return planned(NET, folder, threads=2)


@pytest.fixture(scope="module")
def made(program: Program, compiler: Compiler) -> Library:
    return library(program, compiler, "a net")


@pytest.fixture(scope="module")
def unpacked(made: Library, folder: Path) -> Path:
    """The folder of the archive."""
    return unpacked_in(folder, archive, made)


@pytest.fixture(scope="module")
def loaded(unpacked: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(unpacked / "model.so"))


def drawn(program: Program, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    found = {}
    for value in program.compilation.graph.inputs:
        kind, shape = graph.element_type(value), graph.static_shape(value)
        whole = random.integers(0, 16, shape) if kind.kind == "i" else random.standard_normal(shape)
        found[value.name or ""] = whole.astype(kind)
    return found


def held() -> tuple[int, int]:
    """Threads of this process, and bytes of addresses."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["Threads"]), int(status["VmSize"].split()[0]) * 1024


@contextmanager
def instance(library: ctypes.CDLL, threads: int = 0, flags: int = 0) -> Iterator[ctypes.c_void_p]:
    handle = ctypes.c_void_p()
    assert library.stowplan_create(ctypes.byref(handle), threads, flags) == 0
    yield handle
    library.stowplan_destroy(handle)


def ran(
    library: ctypes.CDLL, handle: ctypes.c_void_p, inputs: Mapping[str, Array], like: Mapping[str, object]
) -> list[Array]:
    """Outputs of `stowplan_run_buffers`."""
    outputs = [np.full_like(np.asarray(a), 77) for a in like.values()]
    given = (ctypes.c_void_p * len(inputs))(*(a.ctypes.data for a in inputs.values()))
    taken = (ctypes.c_void_p * len(outputs))(*(a.ctypes.data for a in outputs))
    assert library.stowplan_run_buffers(handle, given, taken) == 0
    return outputs


@pytest.fixture(scope="module")
def expected(program: Program, compiler: Compiler) -> list[tuple[dict[str, Array], dict[str, object]]]:
    """Inputs, and the executor's outputs."""
    with closing(Executor(program, compiler)) as executor:
        return [(x, executor.run(x)) for x in (drawn(program, seed) for seed in range(8))]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("flags", [0, 1, 2, 3], ids=["mapped", "copied", "mapped, free", "copied, free"])
def test_every_byte_of_a_library_is_the_executors(
    loaded: ctypes.CDLL, expected: list[tuple[dict[str, Array], dict[str, object]]], threads: int, flags: int
) -> None:
    with instance(loaded, threads, flags) as handle:
        for inputs, outputs in expected:
            found = ran(loaded, handle, inputs, outputs)
            assert [a.tobytes() for a in found] == [np.asarray(a).tobytes() for a in outputs.values()]


def test_instances_share_weights_and_run_at_the_same_time(
    loaded: ctypes.CDLL, expected: list[tuple[dict[str, Array], dict[str, object]]]
) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        inputs, outputs = expected[number]
        with instance(loaded, 2, number % 2) as handle:
            for _ in range(50):
                found = ran(loaded, handle, inputs, outputs)
                wrong.extend(a.tobytes() != np.asarray(b).tobytes() for a, b in zip(found, outputs.values()))

    members = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert len(wrong) == 4 * 50 * 2
    assert not any(wrong)


def test_instances_leave_no_threads_and_no_memory(loaded: ctypes.CDLL) -> None:
    def work(times: int) -> None:
        for n in range(times):
            with instance(loaded, 2, n % 2) as handle:
                assert loaded.stowplan_run(handle) == 0

    work(20)
    threads, nbytes = held()
    work(1000)
    assert held()[0] == threads
    assert held()[1] <= nbytes + 64 * 2**20  # an instance takes 4 MiB of addresses at least


def test_a_child_of_fork_is_told_that_the_threads_stayed(loaded: ctypes.CDLL) -> None:
    handle = ctypes.c_void_p()
    assert loaded.stowplan_create(ctypes.byref(handle), 2, 0) == 0
    child = os.fork()
    if child == 0:
        status = loaded.stowplan_run(handle)
        loaded.stowplan_destroy(handle)  # which does not wait for threads that are not there
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert loaded.stowplan_run(handle) == 0
    loaded.stowplan_destroy(handle)


def test_wrong_arguments_have_a_status_and_a_message(loaded: ctypes.CDLL) -> None:
    loaded.stowplan_message.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()
    assert loaded.stowplan_create(None, 1, 0) == 6
    assert loaded.stowplan_create(ctypes.byref(handle), -1, 0) == 6
    assert loaded.stowplan_create(ctypes.byref(handle), 1, 64) == 6
    assert not handle
    with instance(loaded) as handle:
        assert loaded.stowplan_run_buffers(handle, None, None) == 6
    messages = {loaded.stowplan_message(n) for n in range(9)}
    assert len(messages) == 9


def test_a_processor_without_the_instructions_is_refused(
    program: Program, made: Library, compiler: Compiler, tmp_path: Path
) -> None:
    found, own = image(program), compiled_for()
    assert "+xop" not in own.features
    tables = Emitter(own).of_assembly(assembly(found, f"{own.features},+xop", made.metadata))
    obj = joined([tables, *kernel_objects(found.symbols, compiler, own)], API)
    path = tmp_path / "other.so"
    path.write_bytes(
        shared_library(obj, API, "other.so", Weights(WEIGHTS_SYMBOL, found.weights.parts, b"")).content
    )
    other, handle = ctypes.CDLL(str(path)), ctypes.c_void_p()
    assert other.stowplan_create(ctypes.byref(handle), 1, 0) == 3
    assert not handle


@pytest.mark.parametrize("seed", [0, 3, 4, 5])
def test_control_flow_of_kernels_needs_no_python(tmp_path: Path, compiler: Compiler, seed: int) -> None:
    """If, Loop and Scan in one another: jumps among the rows."""
    program = planned(Writer(seed).model(), tmp_path)
    assert any(isinstance(call, Jump) for step in program.steps for call in step.calls)
    path = tmp_path / "control.so"
    path.write_bytes(library(program, compiler, "control").shared.content)
    made = ctypes.CDLL(str(path))
    names = [v.name or "" for v in program.compilation.graph.inputs]
    with closing(Executor(program, compiler)) as executor, instance(made) as handle:
        for drawn_inputs in random_inputs(seed):
            inputs = {name: drawn_inputs[name] for name in names}
            expected = executor.run(inputs)
            found = ran(made, handle, inputs, expected)
            assert [a.tobytes() for a in found] == [np.asarray(a).tobytes() for a in expected.values()]


def test_what_needs_python_is_refused_by_name(tmp_path: Path, compiler: Compiler) -> None:
    program = planned(LOOP, tmp_path)
    assert any(step.is_host for step in program.steps)
    with pytest.raises(ExportError, match=r"Loop.*runs in Python, for a run alone tells the sizes"):
        library(program, compiler, "loop")


def test_the_same_program_gives_the_same_bytes(program: Program, made: Library, compiler: Compiler) -> None:
    again = library(program, compiler, "a net")
    assert written(archive, again).getvalue() == written(archive, made).getvalue()
    assert written(wheel, again, "plan").getvalue() == written(wheel, made, "plan").getvalue()


def test_large_files_are_stored_as_they_are(
    made: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [written(archive, made), written(wheel, made, "plan")]
    monkeypatch.setattr("app.engine.export.package.COMPRESSED", 0)
    monkeypatch.setattr("app.engine.export.wheel.COMPRESSED", 0)
    found = unpacked_in(tmp_path, archive, made)
    assert (found / "model.so").read_bytes() == made.shared.content
    large = written(wheel, made, "plan")
    with zipfile.ZipFile(large) as file, zipfile.ZipFile(small[1]) as usual:
        assert {n: file.read(n) for n in file.namelist()} == {n: usual.read(n) for n in usual.namelist()}
    assert len(written(archive, made).getvalue()) > len(small[0].getvalue())
    assert len(large.getvalue()) > len(small[1].getvalue())


def test_the_archive_has_a_digest_of_each_file(unpacked: Path) -> None:
    told = json.loads((unpacked / "manifest.json").read_text())
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in unpacked.iterdir()}
    del files["manifest.json"]
    assert told == files


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
@pytest.mark.parametrize(
    "link",
    [["-L.", "-l:model.so", "-Wl,-rpath,$ORIGIN"], ["model.o", "weights.s", "-lm", "-lpthread"]],
    ids=["shared", "static"],
)
def test_the_example_computes_the_executors_bytes(
    unpacked: Path,
    expected: list[tuple[dict[str, Array], dict[str, object]]],
    link: list[str],
) -> None:
    command = ["cc", "-Wall", "-Wextra", "-Werror", "example.c", *link, "-o", "example"]
    subprocess.run(command, cwd=unpacked, check=True)
    inputs, outputs = expected[3]
    for n, array in enumerate(inputs.values()):
        array.tofile(unpacked / f"input-{n}.bin")
    subprocess.run(["./example", *(f"input-{n}.bin" for n in range(len(inputs)))], cwd=unpacked, check=True)
    for n, array in enumerate(outputs.values()):
        assert (unpacked / f"output-{n}.bin").read_bytes() == np.asarray(array).tobytes()


def check_needs(path: Path) -> None:
    """Fails where a library needs more than known functions of glibc 2.17."""
    command = ["readelf", "-W", "--dyn-syms", "--dynamic", str(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    undefined = re.findall(r" UND (\w+)(?:@GLIBC_([0-9.]+))?", told)
    assert {name for name, _ in undefined} <= set(IMPORTS)
    assert max(tuple(map(int, version.split("."))) for _, version in undefined) <= (2, 17)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", told))
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0"}


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf on this machine")
def test_the_file_is_what_loaders_and_tools_expect(unpacked: Path) -> None:
    def told(*flags: str) -> str:
        command = ["readelf", "-W", *flags, "model.so"]
        done = subprocess.run(command, cwd=unpacked, capture_output=True, text=True, check=True)
        assert "Warning" not in done.stderr
        return done.stdout

    segments = told("--segments")
    loads = re.findall(r"^ +LOAD.* (R[W ]?[ E]?E?) +0x1000$", segments, re.M)
    assert [flags.replace(" ", "") for flags in loads] == ["R", "RE", "RW", "R"]
    assert re.search(r"GNU_STACK.* RW ", segments)
    assert "GNU_RELRO" in segments
    dynamic = told("--dynamic")
    assert "Library soname: [model.so]" in dynamic
    assert re.search(r"FLAGS_1\).*NOW.*NODELETE", dynamic)
    assert "Build ID" in told("--notes")
    check_needs(unpacked / "model.so")
    defined = re.findall(r" GLOBAL DEFAULT +\d+ (\w+)$", told("--dyn-syms"), re.M)
    assert set(defined) == set(API)
    frames = told("--debug-dump=frames")
    assert frames.count(" FDE ") > len(API)


def test_the_wheel_runs_with_numpy_alone(
    made: Library, tmp_path: Path, expected: list[tuple[dict[str, Array], dict[str, object]]]
) -> None:
    assert wheel_name(made) == "a_net-1-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(written(wheel, made, "the plan")) as file:
        assert file.testzip() is None
        file.extractall(tmp_path)
        rows = file.read("a_net-1.dist-info/RECORD").decode().splitlines()
        assert {row.split(",")[0] for row in rows} == set(file.namelist())
    inputs, outputs = expected[5]
    np.savez(tmp_path / "given.npz", **inputs)
    program = f"""
import sys
import numpy as np
import {module_name(made)} as model
given = dict(np.load("given.npz"))
session = model.InferenceSession(threads=1)
assert [i.name for i in session.get_inputs()] == ["x", "ids"]
assert session.get_inputs()[0] == ("x", [1, 3, 20, 20], "tensor(float)")
found = session.run(None, given)
again = model.run(given["x"], ids=given["ids"])
assert all(np.array_equal(a, b) for a, b in zip(found, again))
assert np.array_equal(session.run(["z"], given)[0], found[1])
for wrong in ({{"x": given["x"]}}, {{**given, "q": 1}}, {{**given, "x": given["x"][..., 1:]}}):
    try:
        session.run(None, wrong)
    except ValueError as error:
        assert "'" in str(error)
    else:
        raise AssertionError(wrong)
assert model.explain() == "the plan"
session.close()
assert not {{name.split(".")[0] for name in sys.modules}} & {{"app", "numba", "onnx"}}
np.savez("found.npz", *found)
"""
    command = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    for n, array in enumerate(outputs.values()):
        assert found[f"arr_{n}"].tobytes() == np.asarray(array).tobytes()


def test_a_name_adds_no_field_to_the_wheel(made: Library) -> None:
    named = replace(made, metadata={**made.metadata, "name": "a\nRequires-Dist: other"})
    with zipfile.ZipFile(written(wheel, named, "")) as file:
        told = file.read(next(n for n in file.namelist() if n.endswith("METADATA"))).decode()
    assert [line for line in told.splitlines() if line.startswith("Requires-Dist")] == [
        "Requires-Dist: numpy"
    ]


def test_names_become_identifiers(made: Library) -> None:
    for name, wanted in (("resnet-50 v1", "resnet_50_v1"), ("3d", "model_3d"), ("class", "model_class")):
        assert module_name(replace(made, metadata={**made.metadata, "name": name})) == wanted


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
def test_the_program_of_the_guide_runs_as_it_stands(unpacked: Path, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "library.md").read_text(encoding="utf-8")
    program, _ = re.findall(r"^```c\n(.*?)^```", guide, re.M | re.S)
    (commands,) = re.findall(r"^```\n(cc main.*?)^```", guide, re.M | re.S)
    for file in unpacked.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "main.c").write_text(program)
    for command in commands.splitlines():
        subprocess.run(command.partition("#")[0], cwd=tmp_path, shell=True, check=True)
        done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert re.fullmatch(r"y\[0\] = [0-9.e-]+\n", done.stdout)
