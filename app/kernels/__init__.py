"""Kernels, by device. Nothing here imports the rest of the application."""
