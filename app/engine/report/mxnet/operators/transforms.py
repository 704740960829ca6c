"""Fourier transforms and integer products of ONNX in MXNet's spelling: products with matrices of floats."""

import math
from collections.abc import Mapping

import numpy as np

from app.engine.core import graph
from app.engine.model.mxnet.symbol_file import Entry
from app.engine.report.mxnet.operators.elementwise import Row, Written, half_to_even
from app.engine.report.mxnet.operators.layers import product
from app.engine.report.mxnet.spelling import Array, Spelling

_DOUBLE = np.dtype("f8")


def _waves(length: int, read: int, made: int, sign: float) -> tuple[Array, Array]:
    """Cosines and sines of every angle of a transform: float64[read, made]."""
    turns = np.outer(np.arange(read), np.arange(made)) % length
    angles = 2 * math.pi / length * turns
    return np.cos(angles), sign * np.sin(angles)


def _matrix(c: Spelling, length: int, read: int, made: int, parts: tuple[int, int], inverse: bool) -> Array:
    """The transform of `read` numbers of `parts[0]` parts, real and imaginary, to `made` of `parts[1]`."""
    c.writing.room.take(nbytes=8 * read * made * parts[0] * parts[1])
    cosine, sine = _waves(length, read, made, 1.0 if inverse else -1.0)
    whole = np.zeros((read, parts[0], made, parts[1]))
    whole[:, 0, :, 0] = cosine
    if parts[0] == 2:
        whole[:, 1, :, 0] = -sine
    if parts[1] == 2:
        whole[:, 0, :, 1] = sine
    if parts == (2, 2):
        whole[:, 1, :, 1] = cosine
    if inverse:
        whole /= length
    return whole


def _dft(c: Spelling) -> Entry:
    c.floats()
    inverse, half = bool(c.attribute("inverse", 0)), bool(c.attribute("onesided", 0))
    dims, rank = c.static(c.value(0)), c.rank()
    axis = int(c.constant(2).reshape(())) % rank if c.has(2) else int(c.attribute("axis", -2)) % rank
    made, parts = c.static(c.result())[axis], (dims[-1], c.static(c.result())[-1])
    spectrum = inverse and half  # of a real signal, its first half
    given = int(c.constant(1).reshape(())) if c.has(1) else 0
    length = given or (2 * (dims[axis] - 1) if spectrum else dims[axis])
    read = min(dims[axis], length // 2 + 1 if spectrum else length)
    matrix = _matrix(c, length, read, made, parts, inverse)
    if spectrum:  # the other half is the conjugate; the ends have none
        twice = np.arange(read)
        matrix[(twice > 0) & (2 * twice < length)] *= 2
        matrix[(twice == 0) | (2 * twice == length), 1] = 0
    x = c.input(0)
    if read < dims[axis]:
        x = c.add("slice_axis", x, axis=axis, begin=0, end=read)
    lead = [i for i in range(rank - 1) if i != axis]
    order = (*lead, axis, rank - 1)
    x = x if order == tuple(range(rank)) else c.add("transpose", x, axes=order)
    found = _times(c, x, matrix, tuple(dims[i] for i in lead))
    back = tuple(order.index(i) for i in range(rank))
    return found if back == tuple(range(rank)) else c.add("transpose", found, axes=back)


def _times(c: Spelling, x: Entry, matrix: Array, lead: tuple[int, ...]) -> Entry:
    """The last two axes of a value times a matrix, whose first two and last two axes are one each."""
    read, parts, made, results = matrix.shape
    weights = c.array(matrix.reshape(read * parts, made * results).astype(c.dtype(c.value(0))), "waves")
    rows = c.reshaped(x, (-1, read * parts))
    return c.reshaped(c.add("dot", rows, weights), (*lead, made, results))


def _stft(c: Spelling) -> Entry:
    """Frames are looked up, and transformed as one matrix with the window in it."""
    c.floats()
    dims = c.static(c.value(0))
    batch, size, parts = dims if len(dims) == 3 else (*dims, 1)
    step = int(c.constant(1).reshape(()))
    window = c.constant(2).reshape(-1) if c.has(2) else None
    length = int(c.constant(3).reshape(())) if c.has(3) else size if window is None else window.size
    _, frames, made, _ = c.static(c.result())
    matrix = _matrix(c, length, length, made, (parts, 2), inverse=False)
    if window is not None:
        matrix *= window.astype(np.float64).reshape(-1, 1, 1, 1)
    places = np.arange(frames)[:, None] * step + np.arange(length)
    c.writing.room.take(nbytes=places.nbytes)
    signal = c.reshaped(c.input(0), (batch, size, parts))
    found = c.add("take", signal, c.array(places.astype(np.int64), "frames"), axis=1, mode="clip")
    return _times(c, found, matrix, (batch, frames))


def _centered(c: Spelling, place: int, zero: int, *, by_row: bool) -> Entry:
    """An integer operand less its zero point, in float64, which holds every sum of a product."""
    found = c.add("Cast", c.input(place), dtype=str(_DOUBLE))
    if not c.has(zero):
        return found
    if graph.constant(c.value(zero)) is not None and not c.constant(zero).any():
        return found
    point, rank = c.add("Cast", c.input(zero), dtype=str(_DOUBLE)), c.rank(zero)
    if by_row and rank == 1 and c.static(c.value(zero)) != (1,):
        point = c.reshaped(point, (-1, 1))
    return c.add("broadcast_sub", found, point)


def _matmul_integer(c: Spelling) -> Entry:
    a = _centered(c, 0, 2, by_row=True)
    found = product(c, a, _centered(c, 1, 3, by_row=False))
    return c.add("Cast", found, dtype="int32")


def _dynamic_quantize(c: Spelling) -> Written:
    """uint8 from the least and largest element, 0 among them."""
    c.floats()
    x = c.input(0)
    low = c.reshaped(c.add("_minimum_scalar", c.add("min", x), scalar=0.0), (1,))
    high = c.reshaped(c.add("_maximum_scalar", c.add("max", x), scalar=0.0), (1,))
    scale = c.add("_div_scalar", c.add("elemwise_sub", high, low), scalar=255.0)
    point = c.add("negative", c.add("elemwise_div", low, scale))
    point = c.add("clip", half_to_even(c, point), a_min=0.0, a_max=255.0)
    steps = half_to_even(c, c.add("broadcast_div", x, scale))
    moved = c.add("clip", c.add("broadcast_add", steps, point), a_min=0.0, a_max=255.0)
    return [c.add("Cast", moved, dtype="uint8"), c.add("_copy", scale), c.add("Cast", point, dtype="uint8")]


ROWS: Mapping[str, Row] = {
    "DFT": _dft,
    "STFT": _stft,
    "MatMulInteger": _matmul_integer,
    "DynamicQuantizeLinear": _dynamic_quantize,
}
