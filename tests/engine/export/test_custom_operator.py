"""The operator of onnxruntime: sessions give the executor's bytes, and what goes wrong is an error in words."""

import ctypes
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from app.engine.core.program import Program
from app.engine.export.custom_operator import graph, operator_archive
from app.engine.export.library import Library, library
from app.engine.runtime.cpu.executor import Executor
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.export.files import unpacked_in, written
from tests.engine.export.test_library import NET, drawn, held, planned, pytestmark  # noqa: F401

Array = np.ndarray[Any, Any]

DTYPES = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bool": np.bool_,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def moved() -> str:
    """A model that moves tensors of every element type."""
    kinds = (*DTYPES, "bfloat16")
    inputs = ", ".join(f"{kind}[2, 3] a_{kind}" for kind in kinds)
    outputs = ", ".join(f"{kind}[3, 2] b_{kind}" for kind in kinds)
    nodes = "\n".join(f"  b_{kind} = Transpose (a_{kind})" for kind in kinds)
    return f'<ir_version: 10, opset_import: ["" : 21]>\nnet ({inputs}) => ({outputs})\n{{\n{nodes}\n}}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operator")


@pytest.fixture(scope="module")
def program(folder: Path) -> Program:
    return planned(NET, folder, threads=2)


@pytest.fixture(scope="module")
def made(program: Program, compiler: Compiler) -> Library:
    return library(program, compiler, "a/net")


@pytest.fixture(scope="module")
def unpacked(made: Library, folder: Path) -> Path:
    """The folder of the archive."""
    return unpacked_in(folder, operator_archive, made)


def session(
    native: Path, file: Path | bytes, entries: Mapping[str, str] | None = None
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    options.register_custom_ops_library(str(native))
    given = file if isinstance(file, bytes) else str(file)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def opened(folder: Path, **entries: str) -> onnxruntime.InferenceSession:
    named = {f"stowplan.{name}": value for name, value in entries.items()}
    return session(folder / "model.so", next(folder.glob("*.stowplan.onnx")), named)


@pytest.fixture(scope="module")
def expected(program: Program, compiler: Compiler) -> list[tuple[dict[str, Array], list[bytes]]]:
    """Inputs, and the bytes of the executor's outputs."""
    with closing(Executor(program, compiler)) as executor:
        return [
            (x, [np.asarray(a).tobytes() for a in executor.run(x).values()])
            for x in (drawn(program, seed) for seed in range(4))
        ]


@pytest.mark.parametrize(
    "entries",
    [{}, {"threads": "1"}, {"threads": "2", "copy_weights": "0", "affinity": "0"}],
    ids=["usual", "one thread", "mapped and free"],
)
def test_every_byte_of_a_session_is_the_executors(
    unpacked: Path, expected: list[tuple[dict[str, Array], list[bytes]]], entries: dict[str, str]
) -> None:
    opened_session = opened(unpacked, **entries)
    assert [i.name for i in opened_session.get_inputs()] == ["x", "ids"]
    assert [(o.name, o.shape, o.type) for o in opened_session.get_outputs()] == [
        ("y", [1, 10], "tensor(float)"),
        ("z", [1, 4, 8], "tensor(float)"),
    ]
    for inputs, outputs in expected:
        assert [a.tobytes() for a in opened_session.run(None, inputs)] == outputs


def test_every_element_type_goes_in_and_out(folder: Path, compiler: Compiler, tmp_path: Path) -> None:
    program = planned(moved(), tmp_path)
    assert program.kernels
    made = library(program, compiler, "types")
    native = tmp_path / "model.so"
    native.write_bytes(made.shared.content)
    random = np.random.default_rng(0)
    arrays = {
        f"a_{kind}": random.integers(0, 2, (2, 3)).astype(dtype)
        if dtype == np.bool_
        else (random.standard_normal((2, 3)) * 50).astype(dtype)
        for kind, dtype in DTYPES.items()
    }
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in arrays.items()}
    half = random.integers(0, 2**15, (2, 3)).astype(np.uint16)
    values["a_bfloat16"] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        half, onnx.TensorProto.BFLOAT16
    )
    names = [f"b_{kind}" for kind in DTYPES]
    opened_session = session(native, graph(made))
    found = opened_session.run_with_ort_values([*names, "b_bfloat16"], values)
    for kind, value in zip(DTYPES, found, strict=False):
        np.testing.assert_array_equal(value.numpy(), arrays[f"a_{kind}"].T)
    raw = (ctypes.c_uint16 * 6).from_address(found[-1].data_ptr())
    np.testing.assert_array_equal(np.frombuffer(raw, np.uint16).reshape(3, 2), half.T)


def test_sessions_and_threads_do_not_disturb_each_other(
    unpacked: Path, expected: list[tuple[dict[str, Array], list[bytes]]]
) -> None:
    both = [opened(unpacked), opened(unpacked)]
    wrong: list[bool] = []

    def work(number: int) -> None:
        inputs, outputs = expected[number]
        for _ in range(50):
            found = both[number % 2].run(None, inputs)  # two threads share each session
            wrong.append([a.tobytes() for a in found] != outputs)

    members = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    assert len(wrong) == 4 * 50
    assert not any(wrong)


def test_sessions_leave_no_threads_and_no_memory(
    unpacked: Path, expected: list[tuple[dict[str, Array], list[bytes]]]
) -> None:
    def work(times: int) -> None:
        for _ in range(times):
            opened(unpacked, threads="2").run(None, expected[0][0])

    work(5)
    threads, nbytes = held()
    work(60)
    assert held()[0] == threads
    assert held()[1] <= nbytes + 100 * 2**20  # an instance takes 4 MiB of addresses at least


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"threads": "many"}, "stowplan.threads: expected a number from 0 to 256, found 'many'"),
        ({"threads": "300"}, "stowplan.threads: expected a number from 0 to 256, found '300'"),
        ({"affinity": "2"}, "stowplan.affinity: expected a number from 0 to 1, found '2'"),
        ({"copy_weights": ""}, "stowplan.copy_weights: expected a number from 0 to 1, found ''"),
    ],
)
def test_options_that_cannot_be_understood_are_refused(
    unpacked: Path, entries: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=re.escape(message)):
        opened(unpacked, **entries)


def test_the_graph_of_another_program_is_refused(made: Library, unpacked: Path) -> None:
    other = replace(made, metadata={**made.metadata, "domain": "stowplan.0123456789abcdef"})
    with pytest.raises(Exception, match=r"stowplan\.0123456789abcdef"):
        session(unpacked / "model.so", graph(other))


def test_a_shape_that_the_model_was_not_compiled_for_is_refused(made: Library, unpacked: Path) -> None:
    loose = onnx.load_from_string(graph(made))
    loose.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "h"
    opened_session = session(unpacked / "model.so", loose.SerializeToString())
    inputs = {"x": np.zeros((1, 3, 7, 20), np.float32), "ids": np.zeros((1, 4), np.int64)}
    with pytest.raises(Exception, match=r"input 'x'.*shape \[1,3,20,20\], found 1 and \[1,3,7,20\]"):
        opened_session.run(None, inputs)


def test_two_libraries_are_operators_of_one_session(
    made: Library, unpacked: Path, compiler: Compiler, tmp_path: Path
) -> None:
    """Their operators have domains of their own, so that a graph may join them."""
    text = '<ir_version: 10, opset_import: ["" : 21]>\nnet (float[1,10] y) => (float[1,10] last) { last = Exp (y) }'
    second = library(planned(text, tmp_path), compiler, "second")
    (tmp_path / "second.so").write_bytes(second.shared.content)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(unpacked / "model.so"))
    options.register_custom_ops_library(str(tmp_path / "second.so"))
    parts = [onnx.load_from_string(graph(each)) for each in (made, second)]
    merged = onnx.compose.merge_models(*parts, io_map=[("y", "y")])
    joined = onnxruntime.InferenceSession(merged.SerializeToString(), options)
    inputs = {"x": np.ones((1, 3, 20, 20), np.float32), "ids": np.zeros((1, 4), np.int64)}
    first = opened(unpacked).run(["y"], inputs)[0]
    np.testing.assert_allclose(joined.run(["last"], inputs)[0], np.exp(first), rtol=1e-6)


class _Table(ctypes.Structure):
    """`OrtApiBase`, and the first function of `OrtApi`."""

    _fields_ = (("first", ctypes.c_void_p), ("second", ctypes.c_void_p))


def test_an_older_onnxruntime_is_refused_with_both_versions(unpacked: Path) -> None:
    told: list[tuple[int, bytes]] = []
    asked: list[int] = []
    status = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(
        lambda code, message: told.append((code, message)) or 77  # type: ignore[func-returns-value]
    )
    api = _Table(ctypes.cast(status, ctypes.c_void_p), None)

    def get(version: int) -> int | None:
        asked.append(version)
        return ctypes.addressof(api) if version < 16 else None

    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(get)
    text = ctypes.c_char_p(b"1.15.1")
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(text, ctypes.c_void_p).value)
    base = _Table(ctypes.cast(get_api, ctypes.c_void_p), ctypes.cast(get_version, ctypes.c_void_p))
    register: Callable[..., int] = ctypes.CDLL(str(unpacked / "model.so")).RegisterCustomOps
    assert register(None, ctypes.byref(base)) == 77
    assert asked == [16, 1]
    assert told == [(1, b"the model needs onnxruntime 1.16 or newer, found 1.15.1")]


def test_a_processor_without_the_instructions_is_an_error_of_the_session(
    made: Library, unpacked: Path, tmp_path: Path
) -> None:
    """The table of needed features in the file is given one that no processor has: a leaf of CPUID beyond all."""
    other = tmp_path / "model.so"
    other.write_bytes(_with_an_unknown_feature((unpacked / "model.so").read_bytes()))
    with pytest.raises(Exception, match="this processor lacks instructions that the model was compiled for"):
        session(other, graph(made))


def _with_an_unknown_feature(content: bytes) -> bytes:
    """AVX2 of leaf 7 becomes a bit of a leaf that no processor has."""
    avx2 = np.array([7, 0, 1, 1 << 5], np.uint32).tobytes()
    assert content.count(avx2) == 1
    return content.replace(avx2, np.array([0x7FFFFFFF, 0, 1, 1 << 5], np.uint32).tobytes())


def test_equal_programs_have_equal_archives(made: Library, program: Program, compiler: Compiler) -> None:
    again = written(operator_archive, library(program, compiler, "a/net"))
    assert again.getvalue() == written(operator_archive, made).getvalue()
