"""Regions of shapes: symbolic dimensions, their bounds, and formulas of them."""
