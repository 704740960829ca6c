"""What operators mean: one file per family, each with a table OPERATORS."""
