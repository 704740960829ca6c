"""Checks of inputs that every executor makes."""

from collections.abc import Collection
from typing import Any

import numpy as np

from app.engine.types.errors import InputError

Array = np.ndarray[Any, Any]


def check_known(given: Collection[str], expected: Collection[str]) -> None:
    """Raises InputError for a name that is no input."""
    unknown = next((name for name in given if name not in expected), None)
    if unknown is not None:
        raise InputError(
            f"input {unknown!r} is unknown; the model has {list(expected)}", pointer=f"/inputs/{unknown}"
        )


def check_complete(given: Collection[str], expected: Collection[str]) -> None:
    """Raises InputError for an input that is not given."""
    missing = next((name for name in expected if name not in given), None)
    if missing is not None:
        raise InputError(f"input {missing!r} is missing", pointer=f"/inputs/{missing}")


def as_planned(name: str, value: object, shape: tuple[int, ...], kind: np.dtype[Any] | None) -> Array:
    """The array of an input; raises InputError where shape or dtype are not those of the plan."""
    given = np.asarray(value)
    if given.shape != shape or given.dtype != kind:
        raise InputError(
            f"input {name!r}: expected {kind}{list(shape)}, found {given.dtype}{list(given.shape)}",
            pointer=f"/inputs/{name}",
        )
    return given
