"""Decisions from the times of two programs that took turns."""

from collections.abc import Sequence

import numpy as np

MARGIN = 0.01  # fraction by which a mixed assignment must be faster in the median of paired rounds
WIN_SHARE = 0.75  # least share of paired rounds in which a mixed assignment is faster
TOLERATED_LOSS = 0.03  # fraction by which a plan may be slower than a library that runs the whole model
CLOSE = 0.15  # distance of a ratio from 1 - TOLERATED_LOSS below which a race takes all its rounds
FAR = 2.0  # ratio of two programs' times from which on one round decides
ROUNDS = 7  # rounds of a race
AGREEING = 2  # rounds that decide a race where each of them is further away than CLOSE

Times = Sequence[float]  # seconds of one run, by round


def median_ratio(base: Times, other: Times) -> float:
    """Median over the rounds of the other's time in times of the base's."""
    return float(np.median(np.asarray(other) / np.asarray(base)))


def win_share(base: Times, other: Times) -> float:
    """Share of the rounds in which the other is faster."""
    return float(np.mean(np.asarray(other) < np.asarray(base)))


def is_decided(base: Times, other: Times) -> bool:
    """True if further rounds would hardly change on which side of 1 - TOLERATED_LOSS the median ratio lies.

    It lies far from there, or several rounds do on the same side, or so does the median of many.
    """
    distances = np.asarray(other) / np.asarray(base) - (1.0 - TOLERATED_LOSS)
    ratio, middle = median_ratio(base, other), abs(float(np.median(distances)))
    each = len(distances) >= AGREEING and (np.all(distances > CLOSE) or np.all(distances < -CLOSE))
    return not 1.0 / FAR < ratio < FAR or bool(each) or (len(distances) >= ROUNDS and middle > CLOSE)


def beats(ratio: float, wins: float) -> bool:
    """True if a mixed assignment with this ratio and share of won rounds is taken."""
    return ratio <= 1.0 - MARGIN and wins >= WIN_SHARE
