"""Acceleration libraries that run whole sub-graphs."""
