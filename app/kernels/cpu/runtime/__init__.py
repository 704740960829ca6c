"""Compilation and dispatch of kernels on the processor."""
