"""Accelerators: tables BACKENDS and IMPLEMENTATIONS."""
