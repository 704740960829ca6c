"""The kernels for NVIDIA GPUs, one file of rows per kernel family."""

from app.engine.core.registry import Backend

BACKENDS = (Backend("cuda", devices=("cuda",)),)
