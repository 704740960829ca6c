"""Stowplan: a graph-optimization service."""
