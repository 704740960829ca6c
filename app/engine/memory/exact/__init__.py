"""Complete search for placements."""
