"""Data movement by element size: the bytes travel, their meaning does not matter."""


def copy(x, y, begin, end):
    """y[i] = x[i]. x, y: T[n]; units are elements."""
    for i in range(begin, end):
        y[i] = x[i]
