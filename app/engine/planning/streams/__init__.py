"""Streams as concessions: which groups of a plan run on strips of rows, and of how many rows."""
