"""Rounding by second order: its products err less than those of weights rounded one by one."""

import itertools
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.planning.precision.candidates import BY_NAME, Candidate
from app.engine.planning.precision.rounding import second_order
from app.engine.planning.precision.rounding.ranges import levels_of
from app.engine.planning.precision.rounding.weights import Rounded, restored, rounded
from app.engine.planning.precision.sites import Site, Taps, sites
from app.engine.runtime.oracle import runtime
from tests.engine.canonical import Array, saved
from tests.engine.planning.precision import models

RANDOM = np.random.default_rng(5)


def correlated(rows: int, k: int) -> Array:
    """Inputs that have much in common, as activations do."""
    mixed = RANDOM.standard_normal((k // 4 + 1, k))
    return (
        RANDOM.standard_normal((rows, k // 4 + 1)) @ mixed + 0.3 * RANDOM.standard_normal((rows, k))
    ).astype(np.float32)


def lost(site: Site, found: Rounded, x: Array) -> float:
    """Squared error of the products with inputs [rows, reduction]."""
    wide = x.astype(np.float64)
    moved = np.moveaxis(restored(site, found).astype(np.float64) - site.array, site.axis, 0)
    return float(np.square(wide @ moved.reshape(site.channels, -1).T).sum())


@pytest.mark.parametrize("row", ["int8", "w4-block32", "w8-block32"])
@pytest.mark.parametrize(("shape", "axis", "op"), [((256, 12), 1, "MatMul"), ((12, 256), 0, "Gemm")])
def test_products_err_less(row: str, shape: tuple[int, int], axis: int, op: str) -> None:
    array = RANDOM.standard_normal(shape).astype(np.float32)
    site = Site("n", op, "x", "w", array, axis, False, Taps())
    x, one = correlated(500, 256), BY_NAME[row]
    begun = rounded(site, one)
    found = second_order.updated(site, one, begun, x[None], x[None])
    assert np.array_equal(found.scales, begun.scales)
    assert np.abs(found.integers).max() <= one.largest
    assert lost(site, found, x) < 0.5 * lost(site, begun, x)


def test_small_products_are_near_the_best_integers() -> None:
    row = Candidate("3 bits", 3, 0, "float32", True, ("MatMul",))
    losses = []
    for _ in range(20):
        site = Site(
            "n", "MatMul", "x", "w", RANDOM.standard_normal((4, 1)).astype(np.float32), 1, False, Taps()
        )
        x = correlated(40, 4)
        begun = rounded(site, row)
        found = second_order.updated(site, row, begun, x[None], x[None])
        every = itertools.product(range(-3, 4), repeat=4)
        best = min(lost(site, Rounded(np.array(q, np.int8).reshape(4, 1), begun.scales), x) for q in every)
        losses.append((best, lost(site, found, x), lost(site, begun, x)))
    best, own, plain = np.sum(losses, axis=0)
    assert best <= own < plain
    assert plain - own > 0.2 * (plain - best)


def test_the_shift_takes_back_what_rounding_moves_on_average() -> None:
    row = BY_NAME["int8"]
    array = RANDOM.standard_normal((64, 5)).astype(np.float32)
    site = Site("n", "MatMul", "x", "w", array, 1, False, Taps())
    x = np.abs(correlated(400, 64))
    read = levels_of(0.0, float(x.max()) / 2).rounded(x)  # saturates
    found = second_order.updated(site, row, rounded(site, row), x[None], read[None])
    assert found.shift is not None
    moved = read.astype(np.float64) @ restored(site, found) - x.astype(np.float64) @ array
    assert np.abs(moved.mean(0)).max() > 0.05
    np.testing.assert_allclose((moved + found.shift).mean(0), 0, atol=1e-5)


CONVOLUTIONS = {
    "3x3": ((1, 6, 9, 8), (10, 6, 3, 3), "pads = [1, 0, 1, 2]", 1),
    "strides and dilations": ((2, 4, 11, 12), (6, 4, 3, 2), "strides = [2, 1], dilations = [1, 3]", 1),
    "groups": ((1, 8, 7, 7), (12, 4, 3, 3), "group = 2, pads = [1, 1, 1, 1]", 2),
    "depthwise": ((1, 8, 7, 7), (8, 1, 3, 3), "group = 8, strides = [2, 2]", 8),
    "one axis": ((1, 4, 20), (5, 4, 3), "pads = [1, 1]", 1),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_inputs_of_a_convolution_are_those_that_it_multiplies(case: str, tmp_path: Path) -> None:
    xs, ws, attributes, groups = CONVOLUTIONS[case]
    weights = {"w": RANDOM.standard_normal(ws).astype(np.float32)}
    shape, rank = ",".join(map(str, xs)), ",".join("ABCDE"[: len(xs)])
    text = f"g (float[{shape}] x) => (float[{rank}] y) {{ y = Conv<{attributes}>(x, w) }}"
    path = saved(f"{models.HEAD} {text}", tmp_path, weights)
    (site,) = sites(ir.load(path))
    assert site.taps is not None
    assert site.taps.groups == groups
    x = RANDOM.standard_normal(xs).astype(np.float32)
    (y,) = runtime(path, threads=1, optimized=False)({"x": x}).values()
    expected = np.moveaxis(np.asarray(y), 1, -1).reshape(-1, ws[0])
    every = second_order.inputs(site, x, 10**6, 0)
    assert every.shape == (groups, len(expected), site.reduction)
    own = np.einsum("grk,gck->rgc", every, weights["w"].reshape(groups, ws[0] // groups, -1))
    found = own.reshape(len(expected), ws[0])
    # Places come in a random order: rows are compared as sets.
    order = np.lexsort(np.round(expected, 3).T), np.lexsort(np.round(found, 3).T)
    np.testing.assert_allclose(found[order[1]], expected[order[0]], atol=1e-4)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_weights_of_a_convolution_keep_their_places(case: str, tmp_path: Path) -> None:
    _, ws, _, groups = CONVOLUTIONS[case]
    site = Site(
        "n", "Conv", "x", "w", RANDOM.standard_normal(ws).astype(np.float32), 0, False, Taps(groups=groups)
    )
    begun, row = rounded(site, BY_NAME["int8"]), BY_NAME["int8"]
    x = RANDOM.standard_normal((groups, 400, site.reduction)).astype(np.float32)
    found = second_order.updated(site, row, begun, x, x)
    # Inputs without anything in common: each weight is rounded to one of its neighbours, mostly the nearest.
    assert np.abs(found.integers.astype(int) - begun.integers).max() <= 1
    assert np.mean(found.integers == begun.integers) > 0.7


def test_inputs_that_are_always_zero_do_no_harm() -> None:
    site = Site("n", "MatMul", "x", "w", RANDOM.standard_normal((64, 3)).astype(np.float32), 1, False, Taps())
    x = np.zeros((1, 50, 64), np.float32)
    begun, row = rounded(site, BY_NAME["int8"]), BY_NAME["int8"]
    assert np.array_equal(second_order.updated(site, row, begun, x, x).integers, begun.integers)


def test_no_inputs_are_kept_where_places_follow_from_shapes(tmp_path: Path) -> None:
    text = 'g (float[1,2,5,5] x) => (float[1,3,5,5] y) { y = Conv<auto_pad = "SAME_UPPER">(x, w) }'
    weights = {"w": np.ones((3, 2, 3, 3), np.float32)}
    model = ir.load(saved(f"{models.HEAD} {text}", tmp_path, weights))
    assert [second_order.kept_rows(s) for s in sites(model)] == [0]
