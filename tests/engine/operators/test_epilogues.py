"""A quantized bias of integer sums: found from its float32 numbers, and from nothing else."""

from typing import Any

import numpy as np
import pytest

from app.engine.operators.epilogues import bias_before_scale, multiples
from app.kernels.expressions import Recipe

Array = np.ndarray[Any, Any]
CAST, MUL, ADD = ("Cast", (0,), ("float32",)), ("Mul", (3, 1), ()), ("Add", (4, 2), ())


def test_integers_are_found_of_what_was_scaled_twice() -> None:
    random = np.random.default_rng(0)
    integers = random.integers(-(2**20) + 1, 2**20, 999).astype(np.int32)
    scale = random.uniform(1e-6, 1e-2, 999).astype(np.float32)
    bias = (integers * scale.astype(np.float64)).astype(np.float32)
    assert np.array_equal(multiples(bias / np.float32(0.3), scale / np.float32(0.3), 2**31), integers)


@pytest.mark.parametrize(
    ("bias", "scale", "most"),
    [
        ([0.5, 1.3], 1.0, 2**31),
        ([3.0], 0.0, 2**31),
        ([2.0**21], 1.0, 2**31),
        ([9.0], 1.0, 9),
        ([np.inf], 1.0, 2**31),
    ],
    ids=["no multiple", "no scale", "too large to tell", "leaves 32 bits", "infinite"],
)
def test_other_numbers_are_no_integers(bias: list[float], scale: float, most: int) -> None:
    assert multiples(np.array(bias, np.float32), np.array(scale, np.float32), most) is None


def test_the_bias_is_added_first() -> None:
    first = (("Add", (0, 2), ()), ("Cast", (3,), ("float32",)), ("Mul", (4, 1), ()))
    last = ("Relu", (5,), ())
    assert bias_before_scale((CAST, MUL, ADD, last), 3) == ((*first, last), 1, 2)


@pytest.mark.parametrize(
    "recipe",
    [
        (CAST, MUL),
        (CAST, ("Mul", (3, 2), ()), ADD),
        (CAST, MUL, ADD, ("Add", (5, 4), ())),
        (CAST, MUL, ADD, ("Add", (5, 2), ())),
        (CAST, MUL, ("Add", (4, 3), ())),
    ],
    ids=["no bias", "one operand", "reads the product", "reads the bias", "adds the sums"],
)
def test_other_recipes_stay(recipe: Recipe) -> None:
    assert bias_before_scale(recipe, 3) is None
