"""Graphs written as symbols of MXNet 1.9.1, in its plain operators."""
