"""Graphs and reports that leave the engine."""
