"""Kernels for NVIDIA GPUs, see docs/cuda.md.

Nothing here imports numba's CUDA target before a kernel is compiled (`compiler.py`).
"""
