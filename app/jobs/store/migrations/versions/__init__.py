"""History of the service's tables."""
