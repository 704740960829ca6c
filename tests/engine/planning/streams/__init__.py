"""Tests of streams as concessions of memory."""
