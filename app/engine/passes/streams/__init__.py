"""Streams of a plan: groups that run on strips of rows."""
