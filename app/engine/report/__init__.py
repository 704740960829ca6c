"""What leaves the engine: graphs and reports."""
