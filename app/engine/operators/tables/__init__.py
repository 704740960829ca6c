"""Meaning of operators: one file per family, each with a table OPERATORS."""
