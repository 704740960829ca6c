"""The numba kernels of this machine, one file of rows per kernel family."""

from app.engine.core.registry import Backend

BACKENDS = (Backend("numba-cpu", devices=("cpu",)),)
