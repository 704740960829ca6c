"""Programs for regions of shapes: decided once, and filled in for every shape."""
