"""Tensors to verify and measure on: given, drawn or refused by name."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.plan import Compilation
from app.engine.runtime.inputs import tensors
from app.engine.types.errors import InputError
from app.engine.types.options import Bindings
from tests.engine.canonical import canonical, saved

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2,3] x, int64 rate, int32[4] ids, bool[5] mask, float16[2] h, string[2] s) => (float[2,3] y) {
        y = Relu(x)
    }"""


@pytest.fixture
def compilation(tmp_path: Path) -> Compilation:
    return canonical(saved(TEXT, tmp_path), values={"rate": 16000})


@pytest.fixture
def complete(tmp_path: Path) -> Bindings:
    np.save(tmp_path / "s.npy", np.array(["a", "bc"]))
    return Bindings(tensors={"s": str(tmp_path / "s.npy")}, ranges={"ids": (10, 20)})


def drawn(compilation: Compilation, bindings: Bindings, seed: int = 0) -> dict[str, Any]:
    return tensors(compilation, bindings, seed)


def test_every_input_of_the_model_gets_a_tensor_in_order(
    compilation: Compilation, complete: Bindings
) -> None:
    found = drawn(compilation, complete)
    assert [(k, v.dtype.name, v.shape) for k, v in found.items()] == [
        ("x", "float32", (2, 3)),
        ("rate", "int64", ()),
        ("ids", "int32", (4,)),
        ("mask", "bool", (5,)),
        ("h", "float16", (2,)),
        ("s", "object", (2,)),
    ]
    assert found["rate"] == 16000
    assert list(found["s"]) == ["a", "bc"]
    assert ((found["ids"] >= 10) & (found["ids"] < 20)).all()


def test_the_seed_decides_and_other_inputs_do_not(
    compilation: Compilation, complete: Bindings, tmp_path: Path
) -> None:
    first, again, other = (drawn(compilation, complete, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first["x"], again["x"])
    assert not np.array_equal(first["x"], other["x"])
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    given = dataclasses.replace(complete, tensors={**complete.tensors, "x": str(tmp_path / "x.npy")})
    np.testing.assert_array_equal(drawn(compilation, given, 1)["ids"], first["ids"])


def test_integers_and_strings_are_not_invented(compilation: Compilation, complete: Bindings) -> None:
    with pytest.raises(InputError, match="'ids' is int32") as caught:
        drawn(compilation, dataclasses.replace(complete, ranges={}))
    assert caught.value.pointer == "/input_ranges/ids"
    with pytest.raises(InputError, match="no elements are drawn of it"):
        drawn(compilation, dataclasses.replace(complete, tensors={}))


def test_an_input_that_a_job_cannot_draw_names_the_way_out(tmp_path: Path) -> None:
    head = '<ir_version: 10, opset_import: ["": 21]>'
    text = f"{head} g (string[2] s) => (string[2] y) {{ y = Identity(s) }}"
    with pytest.raises(InputError, match=r"tensor\(string\).*--tensor s=FILE.npy"):
        drawn(canonical(saved(text, tmp_path)), Bindings())
    text = f"{head} g (seq(float[2]) s) => (float[n] y) {{ y = ConcatFromSequence<axis = 0>(s) }}"
    with pytest.raises(InputError, match=r"seq\(tensor\(float\)\); .* extract the part"):
        drawn(canonical(saved(text, tmp_path)), Bindings())


@pytest.mark.parametrize("interval", [(3, 3), (5, 2), (0, 2**31 + 1), (-(2**40), 0)])
def test_a_range_must_hold_something_and_fit(
    interval: tuple[int, int], compilation: Compilation, complete: Bindings
) -> None:
    with pytest.raises(InputError, match="range"):
        drawn(compilation, dataclasses.replace(complete, ranges={"ids": interval}))


def test_the_widest_range_can_be_drawn(compilation: Compilation, complete: Bindings) -> None:
    found = drawn(compilation, dataclasses.replace(complete, ranges={"ids": (-(2**31), 2**31)}))
    assert found["ids"].dtype == np.int32


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 2), np.float32), r"expected shape \[2, 3\], found \[3, 2\]"),
        (np.ones((2, 3)), "expected float32, found float64"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(
    array: np.ndarray, message: str, compilation: Compilation, complete: Bindings, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(InputError, match=message) as caught:
        drawn(compilation, dataclasses.replace(complete, tensors={"x": str(tmp_path / "x.npy")}))
    assert caught.value.pointer == "/inputs/x"


def test_files_that_are_no_arrays_are_refused(
    compilation: Compilation, complete: Bindings, tmp_path: Path
) -> None:
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "many.npz", a=np.ones(2))
    # An object array can run code when it is read.
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    for name in ("text.npy", "empty.npy", "many.npz", "objects.npy", "absent.npy"):
        with pytest.raises(InputError, match="'x'"):
            drawn(compilation, dataclasses.replace(complete, tensors={"x": str(tmp_path / name)}))


def test_names_that_are_no_inputs_are_refused(compilation: Compilation, complete: Bindings) -> None:
    with pytest.raises(InputError, match="no input is called 'q'"):
        drawn(compilation, dataclasses.replace(complete, ranges={**complete.ranges, "q": (0, 1)}))
