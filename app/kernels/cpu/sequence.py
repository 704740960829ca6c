"""Elements ruled by positions: reversed sequences, triangles, one-hot rows, identity matrices, ramps."""

from app.kernels.cpu.extrema import like
from app.kernels.cpu.strided import copy


def reverse_sequence(x, lengths, y, outer, middle, inner, time_first, begin, end):
    """The first lengths[b] steps of sequence b reversed. x, y: T[outer, middle, inner].

    The time axis is the first or the second, the batch axis the other. A length outside
    0..time counts as the nearest valid one. Units are rows o · middle + m.
    """
    time = outer if time_first else middle
    for unit in range(begin, end):
        o = unit // middle
        m = unit - o * middle
        step = o if time_first else m
        length = min(max(lengths[m if time_first else o], 0), time)
        source = length - 1 - step if step < length else step
        row = source * middle + m if time_first else o * middle + source
        copy(y, unit * inner, x, row * inner, inner)


def reverse_rows(x, lengths, y, time, begin, end):
    """The first lengths[b] elements of row b reversed. x, y: T[batch, time]. Units are rows."""
    for row in range(begin, end):
        length = min(max(lengths[row], 0), time)
        last = row * time + length - 1
        for i in range(length):
            y[row * time + i] = x[last - i]
        copy(y, last + 1, x, last + 1, time - length)


def triangle(x, zero, diagonal, y, height, width, upper, begin, end):
    """Elements on or above (`upper`), or on or below, a diagonal of each matrix; zero elsewhere.

    x, y: T[batch, height, width]; zero: T[1]; diagonal: int64[1]. Units are rows of matrices.
    """
    value = zero[0]
    # Beyond the matrix one diagonal is like another, and the sum with a row cannot overflow.
    shift = min(max(diagonal[0], -height), width)
    for unit in range(begin, end):
        row = unit % height
        first = min(max(row + shift, 0), width) if upper else 0
        last = width if upper else min(max(row + shift + 1, 0), width)
        base = unit * width
        for j in range(first):
            y[base + j] = value
        copy(y, base + first, x, base + first, max(last - first, 0))
        for j in range(last, width):
            y[base + j] = value


def identity_matrix(zero_one, y, width, shift, begin, end):
    """One on diagonal `shift`, zero elsewhere. zero_one: T[2]; y: T[rows, width]; units are rows."""
    for row in range(begin, end):
        for j in range(width):
            y[row * width + j] = zero_one[0]
        if 0 <= row + shift < width:
            y[row * width + row + shift] = zero_one[1]


def one_hot(indices, off_on, y, depth, inner, begin, end):
    """y[o, d, i] = on where d is indices[o, i], else off. off_on: T[2]; units are outer indices o.

    Negative indices count from the end; outside of the depth all is off.
    """
    for o in range(begin, end):
        base = o * depth * inner
        for i in range(depth * inner):
            y[base + i] = off_on[0]
        for i in range(inner):
            index = int(indices[o * inner + i])
            if index < 0:
                index += depth
            if 0 <= index < depth:
                y[base + index * inner + i] = off_on[1]


def ramp(start, delta, y, begin, end):
    """y[i] = start + i · delta; float32 is computed in float64. start, delta: T[1]. Units are elements."""
    for i in range(begin, end):
        y[i] = like(y[i], start[0] + i * delta[0])
