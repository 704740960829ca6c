"""Cost model of steps."""
