"""Noise of one product on kept inputs, by its definition."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.planning.precision.candidates import BY_NAME
from app.engine.planning.precision.rounding import products
from app.engine.planning.precision.rounding.products import Keeper, batches
from app.engine.planning.precision.rounding.ranges import levels_of
from app.engine.planning.precision.rounding.weights import Rounded, restored, rounded
from app.engine.planning.precision.sites import Site, Taps, sites
from app.engine.runtime.oracle import runtime
from tests.engine.canonical import Array, saved
from tests.engine.planning.precision import models

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_noise_is_the_power_that_the_product_is_moved_by(groups: int, tmp_path: Path) -> None:
    attributes = f"group = {groups}, pads = [1, 1, 1, 1], strides = [2, 1]"
    w = RANDOM.standard_normal((16, 8 // groups, 3, 3)).astype(np.float32)
    text = f"g (float[1,8,9,7] x) => (float[1,16,5,7] y) {{ y = Conv<{attributes}>(x, w) }}"
    path = saved(f"{models.HEAD} {text}", tmp_path, {"w": w})
    (site,) = sites(ir.load(path))
    xs = [RANDOM.standard_normal((1, 8, 9, 7)).astype(np.float32) for _ in range(3)]
    keeper = Keeper({"x": [site]}, 3)
    for x in xs:
        keeper.add("x", x)
    (product,) = keeper.products().values()
    assert (product.fitted.shape[1], product.measured.shape[1]) == (70, 35)
    levels, row = levels_of(-2.0, 2.5), BY_NAME["int8"]
    begun = rounded(site, row)
    weights = Rounded(begun.integers, begun.scales, RANDOM.standard_normal(16).astype(np.float32))

    def computed(x: Array, array: Array) -> Array:
        other = saved(f"{models.HEAD} {text}", tmp_path, {"w": array})
        (y,) = runtime(other, threads=1, optimized=False)({"x": x}).values()
        return np.asarray(y, np.float64)

    exact = computed(xs[-1], w)
    moved = computed(levels.rounded(xs[-1]), restored(site, weights))
    moved += weights.shift.reshape(-1, 1, 1)  # type: ignore[union-attr]  # just given
    expected = np.square(moved - exact).sum() / np.square(exact).sum()
    assert product.noise(levels, weights) == pytest.approx(expected, rel=1e-4)
    assert product.noise(None, None) == 0.0


def test_activations_are_kept_in_turns_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def site(name: str, x: str) -> Site:
        return Site(name, "MatMul", x, "w", np.zeros((64, 4), np.float32), 0, False, Taps())

    readers = {"a": [site("m", "a"), site("n", "a")], "b": [site("o", "b")], "c": [site("p", "c")]}
    one = 2048 * 4
    monkeypatch.setattr(products, "TOGETHER", 3 * one)
    assert [list(batch) for batch in batches(readers)] == [["a", "b"], ["c"]]
    monkeypatch.setattr(products, "TOGETHER", one)
    assert [list(batch) for batch in batches(readers)] == [["a"], ["b"], ["c"]]
