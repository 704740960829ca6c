"""Levels of activations: what each rule promises, by formulas of the test's own."""

import numpy as np
import pytest

from app.engine.planning.precision.rounding.ranges import RULES, Levels, Observed, levels_of, outlier


def observed(*arrays):
    seen = Observed()
    for array in arrays:
        seen.add(np.asarray(array, np.float32))
    return seen


def squares(x, levels):
    """Sum of squared errors of rounding, computed in float64 over all 256 numbers."""
    numbers = (np.arange(256) - levels.zero) * np.float64(levels.scale)
    return sum(np.min(np.square(numbers - v)) for v in np.asarray(x, np.float64).reshape(-1))


NORMAL = np.random.default_rng(0).standard_normal(3000).astype(np.float32)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "x", [NORMAL, np.maximum(NORMAL, 0), NORMAL + 9, NORMAL - 9], ids=["both", "relu", "+", "-"]
)
def test_zero_is_a_level_and_scales_are_positive(rule, x):
    levels = RULES[rule](observed(x))
    assert levels.scale > 0
    assert 0 <= levels.zero <= 255
    assert levels.rounded(np.zeros(1, np.float32))[0] == 0


def test_min_max_levels_are_half_a_step_from_all_that_was_seen():
    levels = RULES["min-max"](observed(NORMAL, 3 * NORMAL))
    x = 3 * NORMAL
    assert np.abs(levels.rounded(x) - x).max() <= 0.5001 * levels.scale


def test_rounding_takes_the_nearest_of_256_numbers():
    levels = Levels(0.1, 100)
    x = np.linspace(-20, 30, 1001).astype(np.float32)
    numbers = (np.arange(256) - 100) * np.float32(0.1)
    nearest = numbers[np.abs(numbers[None] - x[:, None]).argmin(1)]
    assert np.abs(levels.rounded(x) - x).max() <= np.abs(nearest - x).max() + 1e-5
    assert np.abs(np.abs(levels.rounded(x) - x) - np.abs(nearest - x)).max() < 1e-5


@pytest.mark.parametrize("rule", ["mse", "min-max", "entropy"])
def test_no_rule_loses_less_in_squares_than_that_of_squares(rule):
    x = np.concatenate([NORMAL, [40.0]])
    assert squares(x, RULES["mse"](observed(x))) <= squares(x, RULES[rule](observed(x))) * 1.01


@pytest.mark.parametrize("rule", ["percentile-99.9", "entropy"])
def test_rules_that_saturate_leave_out_a_single_outlier(rule):
    x = np.concatenate([NORMAL, [1e6]])
    assert RULES[rule](observed(x)).scale < RULES["min-max"](observed(x)).scale / 10


def test_an_outlier_is_told_with_what_it_does():
    told = outlier(observed(np.concatenate([NORMAL, [1e6]])), 100.0)
    assert told is not None
    assert "1e+06" in told
    assert "99.9 %" in told
    assert outlier(observed(NORMAL), 100.0) is None


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_a_constant_has_levels_that_hold_it(value):
    seen = observed(np.full(10, value))
    assert seen.constant
    for rule in ("min-max", "percentile-99.9"):
        levels = RULES[rule](seen)
        assert levels.rounded(np.full(1, value, np.float32))[0] == pytest.approx(value, rel=1e-6)


def test_levels_hold_zero_where_nothing_near_it_was_seen():
    levels = levels_of(3.0, 10.0)
    assert levels.zero == 0
    assert levels.scale == pytest.approx(10 / 255)
