"""Rounding of weights that makes later ones pay for earlier ones, by what their inputs have in common.

Weights of an output channel are rounded one after the other; the error that each leaves in the products is
taken back by those that are still to come, as far as their inputs are correlated. What rounding moves an
output channel on average is added to its bias.

Source: Frantar et al., 2023, GPTQ, arXiv:2210.17323, algorithm 1; scales stay those of least squared error.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from app.engine.planning.precision.candidates import Candidate
from app.engine.planning.precision.rounding.weights import Rounded, restored
from app.engine.planning.precision.sites import Site, Taps

Array = np.ndarray[Any, Any]

ELEMENTS = 1 << 22  # of inputs that are kept of a site
ROWS = 2048  # the same, at most
LARGEST = 6144  # inputs of an output channel, beyond which the inverse takes minutes
LEAST_ROWS = 1 / 16  # rows of inputs for each of these, below which they fit the rows alone
DAMPING = 0.01  # of the mean of the diagonal, added to it
COLUMNS = 128  # rounded before the rest is updated at once


def kept_rows(site: Site) -> int:
    """Rows of inputs worth keeping of a site; 0 where their places are not known."""
    if site.taps is None:
        return 0
    return min(ROWS, max(ELEMENTS // (site.reduction * site.groups), 1))


def lying(site: Site, array: Array) -> Array:
    """Weights, or what has their shape, as [groups, channels, reduction]."""
    return np.moveaxis(array, site.axis, 0).reshape(site.groups, site.channels // site.groups, -1)


def inputs(site: Site, x: Array, rows: int, seed: int) -> Array:
    """Inputs of output channels at some places of one sample: [groups, rows, reduction]."""
    random = np.random.default_rng(seed)
    if site.op != "Conv":
        flat = x.reshape(1, -1, x.shape[-1])
        return flat[:, random.permutation(flat.shape[1])[:rows]]
    taps = site.taps or Taps()
    kernel = site.array.shape[2:]
    half = len(kernel)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(taps.pads[:half], taps.pads[half:])])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, taps.dilations)]
    out = [(n - span) // s + 1 for n, span, s in zip(padded.shape[2:], spans, taps.strides)]
    places = random.permutation(len(x) * int(np.prod(out)))[:rows]
    image, *first = np.unravel_index(places, (len(x), *out))
    columns = []
    for offsets in product(*map(range, kernel)):
        at = [f * s + o * d for f, s, o, d in zip(first, taps.strides, offsets, taps.dilations)]
        columns.append(padded[(image, slice(None), *at)])  # type: ignore[arg-type]  # places and a slice
    # [rows, channels, taps] in the order of the weights.
    found = np.stack(columns, -1).reshape(len(places), taps.groups, -1)
    return np.ascontiguousarray(found.transpose(1, 0, 2))


def tells(site: Site, rows: int) -> bool:
    """True if so many rows of inputs of a site tell, in some time, what its inputs have in common."""
    return LEAST_ROWS * site.reduction <= rows and site.reduction <= LARGEST


def updated(
    site: Site, row: Candidate, begun: Rounded, x: Array, read: Array, upper: Array | None = None
) -> Rounded:
    """Weights of the scales of `begun`, rounded one input after the other, and the shift of what that moves.

    `x` are inputs in float32, [groups, rows, reduction]; `read` the same as the product reads them, `upper`
    what `shares` makes of these.
    """
    upper = shares(read) if upper is None else upper
    weights = lying(site, site.array)
    scales = begun.scales.T if row.block and site.axis == 1 else begun.scales
    scales = np.ascontiguousarray(scales).reshape(*weights.shape[:2], -1)
    integers = _in_turn(weights, scales, upper, row.largest)
    moved = np.moveaxis(site.array, site.axis, 0).shape
    turned = np.moveaxis(integers.reshape(moved), 0, site.axis)
    return shifted(site, Rounded(np.ascontiguousarray(turned, np.int8), begun.scales), x, read)


def shifted(site: Site, found: Rounded, x: Array, read: Array) -> Rounded:
    """Rounded weights with the shift of what they, and `read` in the place of `x`, move the product by."""
    means = (a.mean(1, dtype=np.float64) for a in (x, read))
    arrays = site.array, restored(site, found)
    exact, products = (np.einsum("gk,gck->gc", m, lying(site, a)) for m, a in zip(means, arrays, strict=True))
    return replace(found, shift=(exact - products).reshape(-1).astype(np.float32))


def shares(x: Array) -> Array:
    """U of U^T U = (X^T X)^-1, damped: row k is how an error of weight k is shared among those after it."""
    h = x.transpose(0, 2, 1) @ x / np.float32(x.shape[1])
    diagonal = np.einsum("gkk->gk", h)
    mean = diagonal.mean(-1, keepdims=True)
    diagonal += np.where(mean > 0, DAMPING * mean, 1.0)
    # The Cholesky factor of H in reversed order is, reversed again, an upper V: H = V V^T, U = V^-1.
    backwards = np.linalg.cholesky(h[:, ::-1, ::-1])
    found: Array = np.linalg.inv(backwards[:, ::-1, ::-1])
    return found


def _in_turn(weights: Array, scales: Array, upper: Array, largest: int) -> Array:
    """Integers of [groups, channels, reduction] weights; scales are [groups, channels, blocks]."""
    from app.engine.planning.precision.rounding.compiled import in_turn  # imports numba

    left = np.array(weights, np.float32, order="C")
    integers = np.zeros(weights.shape, np.int8)
    for begin in range(0, weights.shape[-1], COLUMNS):
        end = min(begin + COLUMNS, weights.shape[-1])
        errors = np.zeros((*weights.shape[:2], end - begin), np.float32)
        for group in range(len(left)):
            own = left[group], scales[group], upper[group]
            in_turn(*own, begin, end, np.float32(largest), integers[group], errors[group])
        left[..., end:] -= errors @ upper[:, begin:end, end:]
    return integers
