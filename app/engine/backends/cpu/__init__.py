"""The numba kernels of this machine, one file of rows per kernel family."""

from app.engine.core.registry import Backend

BACKENDS = (Backend("numba-cpu", devices=("cpu",)),)
# Modules whose rows come before those of the others: of rows that cost the same the first is taken.
FIRST = ("nchwc_conv", "nchwc_conv_transpose", "nchwc_depthwise", "nchwc_movement")
