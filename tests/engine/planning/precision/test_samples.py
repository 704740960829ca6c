"""Samples: what is refused, and what is warned of, with the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.precision.samples import DRAWN, MOST, samples
from app.engine.types.errors import InputError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from tests.engine.planning.precision import models

Array = np.ndarray[Any, Any]
SHAPE = (4, 64)


@pytest.fixture
def compilation(tmp_path: Path) -> Compilation:
    path = models.file("mlp", tmp_path)
    return session.canonical(load(path), host(), Options(), Bindings(), load_registry())


def given(folder: Path, **arrays: Array) -> Bindings:
    path = folder / "samples.npz"
    np.savez(path, **arrays)  # type: ignore[arg-type]  # arrays by name
    return Bindings(samples=str(path))


def normal(count: int) -> Array:
    return np.random.default_rng(1).standard_normal((count, *SHAPE)).astype(np.float32)


def test_every_second_sample_is_held_back(compilation: Compilation, tmp_path: Path) -> None:
    x = normal(5)
    found = samples(compilation, given(tmp_path, x=x), 0)
    assert found.source == "given"
    assert not found.warnings
    for part, expected in ((found.calibration, x[0::2]), (found.held_back, x[1::2])):
        assert all(np.array_equal(sample["x"], array) for sample, array in zip(part, expected, strict=True))


def test_random_samples_are_drawn_from_the_seed_and_that_is_told(compilation: Compilation) -> None:
    first, again, other = (samples(compilation, Bindings(), seed) for seed in (3, 3, 4))
    assert first.source == "drawn"
    assert "no samples were given" in first.warnings[0]
    arrays = [np.asarray(s["x"]) for s in (*first.calibration, *first.held_back)]
    assert len(arrays) == DRAWN == len({a.tobytes() for a in arrays})
    assert np.array_equal(again.calibration[0]["x"], first.calibration[0]["x"])  # type: ignore[arg-type]  # arrays
    assert not np.array_equal(other.calibration[0]["x"], first.calibration[0]["x"])  # type: ignore[arg-type]  # arrays


def test_one_sample_is_used_for_both_and_that_is_told(compilation: Compilation, tmp_path: Path) -> None:
    found = samples(compilation, given(tmp_path, x=normal(1)[0]), 0)
    assert found.calibration == found.held_back
    assert "there is one sample only" in found.warnings[0]


def test_more_samples_than_are_used_are_told(compilation: Compilation, tmp_path: Path) -> None:
    found = samples(compilation, given(tmp_path, x=normal(MOST + 3)), 0)
    assert len(found.calibration) + len(found.held_back) == MOST
    assert f"the first {MOST} of {MOST + 3} samples" in found.warnings[0]


def test_samples_that_never_change_are_told(compilation: Compilation, tmp_path: Path) -> None:
    constant = samples(compilation, given(tmp_path, x=np.full((3, *SHAPE), 2.0, np.float32)), 0)
    assert "are 2: levels that follow" in constant.warnings[0]
    equal = samples(compilation, given(tmp_path, x=np.repeat(normal(1), 3, axis=0)), 0)
    assert "are equal" in equal.warnings[0]


BAD = {
    "NaN": (
        np.where(np.arange(64) == 5, np.nan, normal(2)).astype(np.float32),
        "sample 0 of input 'x' has 4",
    ),
    "infinity": (np.where(normal(2) > 3, np.inf, normal(2)).astype(np.float32), "NaN or infinite"),
    "shape": (normal(2)[..., :63], r"expected shape \[samples, 4, 64\] for input 'x', found \[2, 4, 63\]"),
    "rank": (normal(2)[0, 0], r"found \[64\]"),
    "scalar": (np.float32(1), r"found \[\]"),
    "type": (normal(2).astype(np.float64), "expected float32 for input 'x', found float64"),
    "none": (normal(2)[:0], "the file holds none"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_samples_are_refused(case: str, compilation: Compilation, tmp_path: Path) -> None:
    array, told = BAD[case]
    with pytest.raises(InputError, match=told) as caught:
        samples(compilation, given(tmp_path, x=np.asarray(array)), 0)
    assert caught.value.pointer == "/samples"


def test_arrays_of_other_names_and_none_are_refused(compilation: Compilation, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no input is called 'z'; the model has 'x'"):
        samples(compilation, given(tmp_path, z=normal(2)), 0)
    with pytest.raises(InputError, match="there is no array for input 'x'"):
        samples(compilation, given(tmp_path), 0)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short"])
def test_other_files_are_refused(content: bytes, compilation: Compilation, tmp_path: Path) -> None:
    path = tmp_path / "samples.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match="expected an npz file"):
        samples(compilation, Bindings(samples=str(path)), 0)


def test_a_single_array_and_objects_are_refused(compilation: Compilation, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", normal(2))
    with pytest.raises(InputError, match="expected an npz file of numbers"):
        samples(compilation, Bindings(samples=str(tmp_path / "x.npy")), 0)
    with pytest.raises(InputError, match="holds Python objects"):
        samples(compilation, given(tmp_path, x=np.array([{}], object)), 0)
