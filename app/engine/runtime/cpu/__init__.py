"""Programs on this machine's processor."""
