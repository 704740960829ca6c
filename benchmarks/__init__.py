"""Side-by-side runs against peers. No test depends on a time."""
