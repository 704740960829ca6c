"""RotaryEmbedding against NumPy in float64."""

from typing import Any

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close
from tests.kernels.single_node import run_text

Array = np.ndarray[Any, Any]
ROW = "rotary_embedding.rows"
PLACES = 11  # rows of a table of angles


def expected(x: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """x: [batch, heads, positions, width]; cos, sin: [batch, positions, half]."""
    x, half = x.astype(np.float64), cos.shape[-1]
    cos, sin = (a.astype(np.float64)[:, None] for a in (cos, sin))
    y = x.copy()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def inputs_of(shape: tuple[int, ...], half: int, dtype: Any) -> dict[str, Array]:
    rng = np.random.default_rng(half)
    angles = rng.uniform(-9, 9, (PLACES, half))
    tables = {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}
    ids = rng.integers(0, PLACES, (shape[0], shape[2]))
    return {"x": rng.standard_normal(shape).astype(dtype), **tables, "ids": ids}


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("half", [1, 3, 8, 20, 32])
@pytest.mark.parametrize("rest", [0, 5])
@pytest.mark.parametrize(("positions", "flat"), [(True, False), (False, False), (True, True), (False, True)])
def test_every_form(
    compiler: Compiler, interleaved: int, half: int, rest: int, positions: bool, flat: bool
) -> None:
    shape = 2, 3, 5, 2 * half + rest
    given = inputs_of(shape, half, np.float32)
    x, ids = given["x"], given.pop("ids")
    rows = [given[n][ids] for n in ("cos", "sin")]
    y = expected(x, *rows, interleaved=bool(interleaved))
    attributes = f"interleaved = {interleaved}"
    attributes += f", rotary_embedding_dim = {2 * half}" if rest else ""
    if flat:
        given["x"], y = (np.ascontiguousarray(a.swapaxes(1, 2)).reshape(2, 5, -1) for a in (x, y))
        attributes += ", num_heads = 3"
    if positions:
        given["ids"] = ids
    else:
        given |= dict(zip(("cos", "sin"), rows))
    body = f"RotaryEmbedding<{attributes}>({', '.join(given)})"
    for options in ({}, {"threads": 2}, {"inplace": True}):
        (found,) = run_text(compiler, ROW, body, given, opset=23, **options)  # type: ignore[arg-type]  # of the names of parameters
        assert_close(found, y.astype(np.float32), 3e-7)


def test_double_precision(compiler: Compiler) -> None:
    given = inputs_of((1, 2, 4, 26), 13, np.float64)
    body = "RotaryEmbedding(x, cos, sin, ids)"
    (found,) = run_text(compiler, ROW, body, given, opset=23)
    rows = [given[n][given["ids"]] for n in ("cos", "sin")]
    assert_close(found, expected(given["x"], *rows, interleaved=False), 1e-15)


def test_places_count_from_the_end_and_those_outside_make_nan(compiler: Compiler) -> None:
    given = inputs_of((1, 2, 4, 22), 8, np.float32)
    given["ids"] = np.array([[-1, PLACES, 2, -PLACES - 1]])
    body = "RotaryEmbedding<rotary_embedding_dim = 16>(x, cos, sin, ids)"
    (found,) = run_text(compiler, ROW, body, given, opset=23)
    rows = [given[n][[[PLACES - 1, 0, 2, 0]]] for n in ("cos", "sin")]
    y = expected(given["x"], *rows, interleaved=False)
    y[:, :, [1, 3], :16] = np.nan
    np.testing.assert_allclose(found, y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shape", [(0, 2, 4, 16), (1, 2, 0, 16)])
def test_no_rows(compiler: Compiler, shape: tuple[int, ...]) -> None:
    given = inputs_of(shape, 8, np.float32)
    (found,) = run_text(compiler, ROW, "RotaryEmbedding(x, cos, sin, ids)", given, opset=23)
    assert found.shape == shape
