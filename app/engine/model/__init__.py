"""From the bytes of a model file to a checked graph with types."""
