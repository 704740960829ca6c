"""Shape and type inference."""
