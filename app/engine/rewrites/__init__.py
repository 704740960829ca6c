"""Rewrite rules, one file a family."""
