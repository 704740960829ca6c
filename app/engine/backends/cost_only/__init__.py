"""Accelerators that are only modelled: costs by the roofline, no kernels."""
