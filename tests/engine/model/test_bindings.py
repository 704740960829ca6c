"""What is known of the inputs: one set of rules for stated shapes and given tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.engine.entry import optimize
from app.engine.types import limits
from app.engine.types.errors import InputError
from app.engine.types.limits import memory_bytes
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    g (float[n, 3] x, float[n, 3] z) => (float[n, 3] y) { y = Add (x, z) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    return path


def saved(folder: Path, array: Any, name: str = "x.npy") -> str:
    np.save(folder / name, array)
    return str(folder / name)


def found(model: Path, bindings: Bindings) -> tuple[str, str, str]:
    """What stops a job: code, pointer, detail."""
    (problem,) = optimize.validate(model, host(), Options(), bindings)
    return problem["code"], problem["pointer"], problem["detail"]


def test_a_given_tensor_binds_its_shape_and_that_of_all_that_share_its_dimensions(
    model: Path, tmp_path: Path, compiler: Compiler
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    bindings = Bindings(tensors={"x": saved(tmp_path, x), "z": saved(tmp_path, x, "z.npy")})
    options = Options(autotune=False, timings="predicted")
    optimize.optimize(model, host(), options, bindings, tmp_path, kernels=compiler.cache)
    with np.load(tmp_path / "outputs.npz") as outputs:
        np.testing.assert_array_equal(outputs["y"], 2 * x)
    alone = Bindings(tensors={"x": saved(tmp_path, x)})
    assert optimize.validate(model, host(), Options(), alone) == []


@pytest.mark.parametrize("extent", [0, 1])
def test_an_empty_batch_is_a_batch_whether_stated_or_given(model: Path, tmp_path: Path, extent: int) -> None:
    stated = Bindings(shapes={"x": (extent, 3)})
    given = Bindings(tensors={"x": saved(tmp_path, np.zeros((extent, 3), np.float32))})
    assert [optimize.validate(model, host(), Options(), b) for b in (stated, given)] == [[], []]


def test_a_tensor_that_contradicts_a_stated_shape_is_told_with_both(model: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, np.zeros((2, 3), np.float32))
    code, pointer, detail = found(model, Bindings(shapes={"x": (4, 3)}, tensors={"x": path}))
    assert (code, pointer) == ("input-invalid", "/input_shapes/x")
    assert detail == "input 'x': the shape is stated as [4, 3], the tensor given has [2, 3]"


def test_a_tensor_of_another_rank_is_told_of_the_tensor(model: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, np.zeros((2, 3, 1), np.float32))
    code, pointer, detail = found(model, Bindings(tensors={"x": path}))
    assert (code, pointer) == ("input-invalid", "/inputs/x")
    assert "the model expects 2 dimensions, found 3" in detail


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"1.0, 2.0\n", r"expected a .npy file, found a file that begins with b'1.0, 2'"),
        (b"", r"expected a .npy file, found a file that begins with b''"),
        (b"PK\x03\x04" + bytes(40), r"expected a .npy file, found an archive (.npz)"),
        (b"\x93NUMPY\x01\x00\xff\xff{", "the .npy file cannot be read"),
        (b"\x93NUMPY\x09\x00", "the .npy file cannot be read"),
    ],
    ids=["text", "empty", "archive", "cut short", "other version"],
)
def test_a_file_that_is_no_npy_says_so(model: Path, tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    code, pointer, detail = found(model, Bindings(tensors={"x": str(tmp_path / "x.npy")}))
    assert (code, pointer) == ("input-invalid", "/inputs/x")
    assert told in detail


def test_pickled_objects_are_never_read(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{}], object), allow_pickle=True)
    code, _, detail = found(model, Bindings(tensors={"x": str(path)}))
    assert code == "input-invalid"
    assert "the .npy file cannot be read" in detail


@pytest.mark.parametrize("extent", [2**63 - 1, 2**40, 2**62])
def test_inputs_beyond_the_memory_are_refused_with_their_size(model: Path, extent: int) -> None:
    code, pointer, detail = found(model, Bindings(shapes={"x": (extent, 3)}))
    assert (code, pointer) == ("input-invalid", "/input_shapes/x")
    assert f"float32[{extent}, 3] takes {extent * 12} byte" in detail
    assert f"{memory_bytes()} byte of memory" in detail


def test_inputs_count_together(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _which: (2000, 2000))
    _, pointer, detail = found(model, Bindings(shapes={"x": (100, 3)}))
    assert pointer == "/input_shapes/z"
    assert "takes 1200 byte, all inputs up to it 2400 byte; the job may use 2000 byte of memory" in detail


def test_the_limit_of_a_job_counts_where_it_is_below_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _which: (1 << 20, 1 << 20))
    assert memory_bytes() == 1 << 20
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _which: (limits.resource.RLIM_INFINITY,) * 2)
    assert memory_bytes() > 1 << 20


def test_a_tensor_for_an_unknown_input_is_told_with_the_inputs_there_are(model: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, np.zeros((2, 3), np.float32))
    code, pointer, detail = found(model, Bindings(tensors={"q": path}))
    assert (code, pointer) == ("input-invalid", "/inputs/q")
    assert detail == "no input is called 'q'; the model has 'x', 'z'"


def test_stated_shapes_and_tensors_of_one_dimension_must_agree(model: Path, tmp_path: Path) -> None:
    path = saved(tmp_path, np.zeros((2, 3), np.float32))
    with pytest.raises(InputError, match=r"dimension 0 \('n'\) is 2 in 'x', found 4"):
        optimize.optimize(
            model,
            host(),
            Options(),
            Bindings(shapes={"z": (4, 3)}, tensors={"x": path}),
            tmp_path,
            kernels=tmp_path,
        )
