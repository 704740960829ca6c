"""Calibration: levels of 8-bit activations from what they were on samples, by several rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

LEVELS = 255  # steps between the lowest and the highest level of uint8
KEPT = 1 << 14  # elements of a tensor that are kept of a sample, drawn from a seed
OUTLYING = 10.0  # times what most elements stay below; larger ones count as so large in histograms
BINS = 2048  # of the histogram that entropies are computed of
TRIED = 40  # ranges, by the rules that search: from all that was seen to half of what most elements span
MOST = 99.0  # percent of the elements, by magnitude
PERCENTILES = {"percentile-99.99": 99.99, "percentile-99.9": 99.9}


@dataclass(frozen=True, slots=True)
class Levels:
    """The numbers (q - zero) * scale, q of 0 to 255."""

    scale: float
    zero: int

    def rounded(self, x: Array) -> Array:
        """The nearest of the numbers, ties to even steps, in float32 as ONNX computes them."""
        q = np.clip(np.rint(x / np.float32(self.scale)) + np.float32(self.zero), 0, LEVELS)
        found: Array = (q - np.float32(self.zero)) * np.float32(self.scale)
        return found


@dataclass(eq=False)
class Observed:
    """Extremes of a tensor on all samples, and some of its elements, so many of each sample at most."""

    kept: int = KEPT
    low: float = np.inf
    high: float = -np.inf
    parts: list[Array] = field(default_factory=list)
    peaks: list[float] = field(default_factory=list)  # largest magnitude of each sample

    def add(self, x: Array) -> None:
        """Note one sample's array."""
        flat = x.reshape(-1)
        self.low, self.high = min(self.low, float(flat.min())), max(self.high, float(flat.max()))
        self.peaks.append(float(np.abs(flat).max()))
        if flat.size > self.kept:
            flat = flat[np.random.default_rng(len(self.parts)).integers(0, flat.size, self.kept)]
        self.parts.append(np.array(flat, np.float32))

    @property
    def constant(self) -> bool:
        """True if every element was the same."""
        return self.low == self.high

    def elements(self) -> Array:
        """The kept elements and the extremes."""
        return np.concatenate([*self.parts, np.array([self.low, self.high], np.float32)])


def outlier(seen: Observed, times: float) -> str | None:
    """A remark on elements so large that levels over all of them are few for the others; None without any."""
    peak = max(abs(seen.low), abs(seen.high))
    usual = float(np.percentile(np.abs(np.concatenate(seen.parts)), 99.9))
    if peak <= times * usual:
        return None
    steps = LEVELS * usual / (seen.high - seen.low)
    return (
        f"its largest magnitude is {peak:g}, 99.9 % of its elements stay below {usual:g}: levels over all "
        f"would leave these {max(steps, 0.0):.2g} steps, rules that saturate lose the others"
    )


def levels_of(low: float, high: float) -> Levels:
    """Levels from `low` to `high`, with one at zero: padding and zeros stay exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / LEVELS, float(np.finfo(np.float32).tiny))
    return Levels(float(np.float32(scale)), int(np.clip(np.rint(-low / scale), 0, LEVELS)))


def min_max(seen: Observed) -> Levels:
    """All that was seen lies between the levels."""
    return levels_of(seen.low, seen.high)


def percentile(seen: Observed, share: float) -> Levels:
    """What is beyond these shares of the elements, on either side, saturates; in percent."""
    low, high = np.percentile(seen.elements(), [100.0 - share, share])
    return levels_of(float(low), float(high))


def mean_squared_error(seen: Observed) -> Levels:
    """The range that loses least in squares."""
    x = seen.elements()

    def lost(levels: Levels) -> float:
        return float(np.square(levels.rounded(x) - x, dtype=np.float64).sum())

    return min(_tried(seen), key=lost)


def entropy(seen: Observed) -> Levels:
    """The range whose saturated histogram its levels represent with the least relative entropy.

    Source: Migacz, 8-bit inference with TensorRT, GPU Technology Conference 2017.
    """
    x = seen.elements()
    widest = OUTLYING * float(np.percentile(np.abs(x), MOST)) or np.inf
    low, high = max(min(seen.low, 0.0), -widest), min(max(seen.high, 0.0), widest)
    counts, edges = np.histogram(np.clip(x, low, high), BINS, (low, high))
    centers = (edges[1:] + edges[:-1]) / 2

    def divergence(levels: Levels) -> float:
        least, most = -levels.zero * levels.scale, (LEVELS - levels.zero) * levels.scale
        within = (centers >= least) & (centers <= most)
        if not within.any():
            return float("inf")
        first, last = int(within.argmax()), BINS - 1 - int(within[::-1].argmax())
        p = counts[first : last + 1].astype(np.float64)
        merged = np.clip(np.rint(centers[first : last + 1] / levels.scale) + levels.zero, 0, LEVELS).astype(
            int
        )
        sums = np.bincount(merged, p, LEVELS + 1)
        filled = np.bincount(merged, p > 0, LEVELS + 1)
        q = np.where(p > 0, sums[merged] / np.maximum(filled[merged], 1), 0.0)
        p[0] += counts[:first].sum()  # what lies outside saturates
        p[-1] += counts[last + 1 :].sum()
        q = np.maximum(q / max(q.sum(), 1.0), 1e-12)
        p = p / p.sum()
        held = p > 0
        return float((p[held] * np.log(p[held] / q[held])).sum())

    return min(_tried(seen), key=divergence)


def _tried(seen: Observed) -> list[Levels]:
    """Levels of shrinking ranges, the whole first."""
    peak = max(abs(seen.low), abs(seen.high))
    usual = float(np.percentile(np.abs(seen.elements()), MOST))
    least = usual / peak / 2 if usual else 1.0
    shares = np.geomspace(1.0, min(least, 1.0), TRIED).tolist()
    return [levels_of(seen.low * share, seen.high * share) for share in shares]


RULES: Mapping[str, Callable[[Observed], Levels]] = {
    "min-max": min_max,
    **{name: partial(percentile, share=share) for name, share in PERCENTILES.items()},
    "mse": mean_squared_error,
    "entropy": entropy,
}
