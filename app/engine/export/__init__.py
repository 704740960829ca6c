"""Programs as files that run without this package: C libraries and wheels."""
