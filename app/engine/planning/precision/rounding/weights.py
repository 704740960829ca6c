"""Rounding of constant weights to integers with a scale for each output channel or block."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.engine.planning.precision.candidates import Candidate
from app.engine.planning.precision.sites import Site

Array = np.ndarray[Any, Any]

# Shares of the largest magnitude of a channel that are tried as the largest that its integers hold.
SHARES = np.linspace(1.0, 0.6, 17)


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """Weights as integers times scales.

    Attributes:
        integers: int8, in the shape of the weights.
        scales: float32; [channels], or one for each block of the reduction in the place of the block.
        shift: float32[channels] that is added to the product, against what its rounding moves it on average.
    """

    integers: Array
    scales: Array
    shift: Array | None = None


def rounded(site: Site, row: Candidate) -> Rounded:
    """Weights whose scales lose least: squared error of each channel or block, over SHARES of its maximum.

    Zeros stay zero. A channel of zeros has scale 1.
    """
    from app.engine.planning.precision.rounding.compiled import best_scales  # imports numba

    lying, limit = _lines(site, row), np.float32(row.largest)
    scales = np.ones(lying.shape[:-1], np.float32)
    # A subnormal scale would lose the digits of its quotients.
    tiny = limit * np.finfo(np.float32).tiny
    lines, integers = lying.reshape(-1, lying.shape[-1]), np.empty(lying.shape, np.int8)
    shares = (SHARES / row.largest).astype(np.float32)
    best_scales(lines, shares, limit, tiny, scales.reshape(-1), integers.reshape(lines.shape))
    return Rounded(_standing(integers, site), _scales(scales, site, row))


def restored(site: Site, found: Rounded) -> Array:
    """The float32 weights that the integers stand for."""
    scales, axis = found.scales, site.axis
    if scales.ndim == 1:
        shape = [1] * found.integers.ndim
        shape[axis] = -1
        scales = scales.reshape(shape)
    else:
        along = 1 - axis
        scales = np.repeat(scales, found.integers.shape[along] // scales.shape[along], axis=along)
    return (found.integers * scales).astype(np.float32)


def _lines(site: Site, row: Candidate) -> Array:
    """What shares a scale along the last axis: [channels, elements], or [channels, blocks, block]."""
    lying = np.moveaxis(site.array, site.axis, 0)
    shape = (site.channels, -1, row.block) if row.block else (site.channels, -1)
    return np.ascontiguousarray(lying).reshape(shape)


def _standing(lying: Array, site: Site) -> Array:
    """The inverse of `_lines`."""
    moved = tuple(np.moveaxis(site.array, site.axis, 0).shape)
    return np.ascontiguousarray(np.moveaxis(lying.reshape(moved), 0, site.axis))


def _scales(scales: Array, site: Site, row: Candidate) -> Array:
    if row.block and site.axis == 1:
        scales = scales.T
    return np.ascontiguousarray(scales, np.float32)
