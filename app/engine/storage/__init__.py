"""Storage types of a whole graph: their inference and the casts between them."""
