"""Rewrites of what stands beside convolutions."""
