"""Tests of the reader of symbols."""
