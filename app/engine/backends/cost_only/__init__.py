"""Accelerators without kernels: costs by the roofline, no kernels."""
