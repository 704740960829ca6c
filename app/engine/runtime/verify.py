"""Compares the outputs of an optimized program with those of the original model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from app.engine.types.errors import NumericsError
from app.engine.types.map_type import ScoreMaps

SPREADS = 2.0  # of a quantized model's own spread, that an output may differ by
_SEQUENCES = (list, ScoreMaps)


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of one output from the oracle's.

    `max_rel` is max_abs as a fraction of the largest finite magnitude expected.
    """

    name: str
    max_abs: float
    max_rel: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """True if it is within the tolerance."""
        return self.max_rel <= self.tolerance

    def to_json(self) -> dict[str, object]:
        """For the report."""
        return {
            "name": self.name,
            "max_abs": self.max_abs,
            "max_rel": self.max_rel,
            "tolerance": self.tolerance,
            "ok": self.ok,
        }


def compare(
    expected: Mapping[str, object], found: Mapping[str, object], tolerance: float
) -> tuple[Difference, ...]:
    """A row per output.

    Raises:
        NumericsError: an output is absent, has another shape or dtype, or differs where no
            number can tell by how much (strings, sequences, NaN in other places).
    """
    return tuple(_difference(name, value, found, tolerance) for name, value in expected.items())


def check(differences: tuple[Difference, ...]) -> None:
    """Accept the outputs or refuse them.

    Raises:
        NumericsError: an output is beyond its tolerance.
    """
    for row in differences:
        if not row.ok:
            raise NumericsError(
                f"output {row.name!r} differs from the original by {row.max_abs:.3g} "
                f"({row.max_rel:.3g} of its maximum), allowed is {row.tolerance:.3g} of its maximum",
                pointer=f"value:{row.name}",
            )


def allowing(differences: tuple[Difference, ...], spread: Mapping[str, float]) -> tuple[Difference, ...]:
    """The rows with what the model makes of rounding allowed: SPREADS times, and no less than before."""
    return tuple(
        replace(d, tolerance=max(d.tolerance, SPREADS * spread.get(d.name, 0.0))) for d in differences
    )


def _difference(name: str, expected: object, found: Mapping[str, object], tolerance: float) -> Difference:
    if name not in found:
        raise NumericsError(f"output {name!r} is absent", pointer=f"value:{name}")
    return Difference(name, *_distance(name, expected, found[name]), tolerance)


def _distance(name: str, expected: object, found: object) -> tuple[float, float]:
    if isinstance(expected, _SEQUENCES):
        if not isinstance(found, _SEQUENCES) or len(found) != len(expected):
            raise NumericsError(f"output {name!r}: the sequences differ in length", pointer=f"value:{name}")
        pairs = [_distance(name, a, b) for a, b in zip(expected, found, strict=True)]
        return max((p[0] for p in pairs), default=0.0), max((p[1] for p in pairs), default=0.0)
    if isinstance(expected, dict):
        if not isinstance(found, dict) or list(found) != list(expected):
            raise NumericsError(f"output {name!r}: the maps differ in keys", pointer=f"value:{name}")
        return _distance(name, list(expected.values()), list(found.values()))
    if expected is None or found is None:
        if expected is not found:
            raise NumericsError(
                f"output {name!r}: an optional is empty on one side only", pointer=f"value:{name}"
            )
        return 0.0, 0.0
    a, b = np.asarray(expected), np.asarray(found)
    if a.shape != b.shape or (a.dtype != b.dtype and a.dtype.kind not in "OUS"):
        raise NumericsError(
            f"output {name!r}: expected {a.dtype}{list(a.shape)}, found {b.dtype}{list(b.shape)}",
            pointer=f"value:{name}",
        )
    if a.dtype.kind in "OUSb":
        if not np.array_equal(a, b):
            raise NumericsError(f"output {name!r}: elements differ", pointer=f"value:{name}")
        return 0.0, 0.0
    wide_a, wide_b = (np.asarray(x, np.complex128 if a.dtype.kind == "c" else np.float64) for x in (a, b))
    finite = np.isfinite(wide_a)
    if not np.array_equal(finite, np.isfinite(wide_b)) or not np.array_equal(
        wide_a[~finite], wide_b[~finite], equal_nan=True
    ):
        raise NumericsError(f"output {name!r}: NaN or infinity in other places", pointer=f"value:{name}")
    distance = float(np.max(np.abs(wide_a[finite] - wide_b[finite]), initial=0.0))
    scale = float(np.max(np.abs(wide_a[finite]), initial=0.0))
    return distance, distance / scale if scale > 0 else distance
