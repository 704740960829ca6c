"""Factors of measured over predicted seconds, learned from tables of timings.

The costs of rows count bytes, and arithmetic with the waste of tiles. What they leave, the logarithm of
measured over predicted seconds, is taken to be linear in a few features of a group. Each row has coefficients
of its own, drawn to those of all rows, which are drawn to none. They are data, by kind of processor;
`python -m benchmarks.calibrate` fits them.

Source: Hoerl and Kennard, 1970, "Ridge regression: biased estimation for nonorthogonal problems".
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.types.target import Peak, Target, peak

if TYPE_CHECKING:
    from app.engine.core.registry import PlanningContext

Features: TypeAlias = tuple[float, ...]

FILE = Path(__file__).with_name("calibration.json")
KINDS = {16: "avx512", 8: "avx2"}  # of processors, by lanes of their vectors; peaks are what `host` takes
COUNT = 11  # of features
LIMIT = 1.5  # of the logarithm of a factor: groups unlike those that were measured
COMMON_PENALTY, ROW_PENALTY = 1.0, 3.0  # samples that the coefficients of all rows, and of one, weigh against


@dataclass(frozen=True, slots=True)
class Sample:
    """A measurement: the logarithm of measured over predicted seconds of a row on a group."""

    model: str
    row: str
    features: Features
    log_ratio: float
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Coefficients of the features; `error` is the rms of what they left on models that were held out."""

    weights: Features
    error: float

    def log_factor(self, features: Features) -> float:
        """Logarithm of the factor of a group with these features."""
        found = sum(w * x for w, x in zip(self.weights, features, strict=True))
        return min(max(found, -LIMIT), LIMIT)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Coefficients of rows by name, and those of all together for any other row.

    Attributes:
        threads: numbers of threads that were measured.
        peak: of one thread of the machine that was measured.
    """

    common: Coefficients
    rows: Mapping[str, Coefficients] = field(default_factory=dict)
    threads: tuple[int, ...] = (1,)
    peak: Peak | None = None

    def of(self, row: str) -> Coefficients:
        """Coefficients of a row; of one that was not measured those of the row that its name continues."""
        while row not in self.rows and "_" in row:
            row = row.rpartition("_")[0]
        return self.rows.get(row, self.common)

    def to_json(self) -> dict[str, Any]:
        """As `FILE` has it."""
        every = {"": self.common, **self.rows}
        rows = {name: [round(c.error, 4), *(round(w, 4) for w in c.weights)] for name, c in every.items()}
        machine = {"peak": self.peak.to_json()} if self.peak else {}
        return {"threads": list(self.threads), "rows": rows, **machine}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Calibration":
        """Inverse of `to_json`."""
        rows = {
            name: Coefficients(tuple(weights), error) for name, (error, *weights) in document["rows"].items()
        }
        peak = Peak.from_json(document["peak"]) if "peak" in document else None
        return cls(rows.pop(""), rows, tuple(document["threads"]), peak)


def features(group: Group, context: "PlanningContext", predicted: float) -> Features:
    """Features of a group that a row is predicted to compute in so many seconds, each of order one.

    A constant; the work; seconds beside those of moving all bytes once; bytes beside the second cache and
    beyond the last; the share of constants; lanes that are idle in the last block of channels, and of the
    innermost axis; pixels; threads, and what little work loses to them.
    """
    values = [v for v in (*group.inputs, *group.outputs) if graph.dtype(v) is not None]
    if any(map(graph.is_dynamic, (*values, *group.outputs[:1]))) or not values:
        return (1.0,) + (0.0,) * (COUNT - 1)
    target, shape = context.target, graph.static_shape(group.outputs[0]) or (1,)
    moved = max(moved_bytes(group), 1)
    constant = sum(graph.nbytes(v) for v in values if graph.is_constant(v))
    second, last = target.caches[1] if len(target.caches) > 1 else 2**20, max(target.caches, default=2**25)
    channels = shape[1] if len(shape) > 2 else shape[-1]
    work, threads = _doublings(predicted / 1e-5), _doublings(context.threads)
    return (
        1.0,
        work / 4,
        _doublings(predicted * target.memories[0].bandwidth / moved) / 4,
        _doublings(moved / second) / 4,
        max(_doublings(moved / last), 0.0),
        constant / moved,
        _idle(channels, target.vector_lanes),
        _idle(shape[-1], target.vector_lanes),
        _doublings(max(graph.elements(group.outputs[0]) / max(channels, 1), 1)) / 8,
        threads,
        threads * work / 4,
    )


def moved_bytes(group: Group) -> int:
    """Bytes of the operands and results of a group; what is dynamic counts for none."""
    values = (v for v in (*group.inputs, *group.outputs) if graph.dtype(v) is not None)
    return sum(graph.nbytes(v) for v in values if not graph.is_dynamic(v))


def _doublings(ratio: float) -> float:
    return math.log2(max(ratio, 1e-9))


def _idle(extent: int, lanes: int) -> float:
    """Share of lanes without an element, of the blocks that hold an axis."""
    return 1.0 - extent / (-(-extent // lanes) * lanes) if extent else 0.0


def fit(samples: Sequence[Sample]) -> Calibration:
    """The calibration of least squares and penalties; errors are of models held out, one at a time."""
    models = sorted({s.model for s in samples})
    left: dict[str, list[float]] = {}
    for model in models:
        rest = _fitted([s for s in samples if s.model != model])
        for s in (s for s in samples if s.model == model):
            left.setdefault(s.row, []).append(s.log_ratio - rest.of(s.row).log_factor(s.features))
    common = _rms([r for found in left.values() for r in found])
    whole = _fitted(samples)
    rows = {name: Coefficients(c.weights, _row_error(left[name], common)) for name, c in whole.rows.items()}
    threads = tuple(sorted({s.threads for s in samples}))
    return Calibration(Coefficients(whole.common.weights, common), rows, threads)


def _row_error(left: Sequence[float], common: float) -> float:
    """Rms of what is left of a row; that of all rows counts as much as some samples."""
    squares = sum(r * r for r in left) + ROW_PENALTY * common**2
    return math.sqrt(squares / (len(left) + ROW_PENALTY))


def _fitted(samples: Sequence[Sample]) -> Calibration:
    """The same without errors."""
    if not samples:
        return Calibration(Coefficients((0.0,) * COUNT, 0.0))
    common = _ridge(samples, np.zeros(len(samples[0].features)), COMMON_PENALTY)
    rows = {
        name: Coefficients(
            tuple(_ridge([s for s in samples if s.row == name], common, ROW_PENALTY).tolist()), 0.0
        )
        for name in sorted({s.row for s in samples})
    }
    return Calibration(Coefficients(tuple(common.tolist()), 0.0), rows)


def _ridge(
    samples: Sequence[Sample], around: "np.ndarray[Any, Any]", penalty: float
) -> "np.ndarray[Any, Any]":
    """Coefficients of least squares, their distance to those `around` penalized."""
    x = np.array([s.features for s in samples])
    left = np.array([s.log_ratio for s in samples]) - x @ around
    return around + np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ left)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(v * v for v in values) / len(values)) if values else 0.0


def calibration(target: Target) -> Calibration | None:
    """The calibration of the target's kind of processor; None where there is none."""
    known = target.device == "cpu" and target.flops == peak(target.vector_lanes)
    return _shipped().get(KINDS.get(target.vector_lanes, "")) if known else None


@lru_cache(maxsize=1)
def _shipped() -> Mapping[str, Calibration]:
    if not FILE.exists():
        return {}
    return {kind: Calibration.from_json(rows) for kind, rows in json.loads(FILE.read_text()).items()}
