"""Tests of streams: groups that run on strips of rows."""
