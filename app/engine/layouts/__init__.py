"""Layouts of a whole graph: the choice of layouts, and the conversions that follow from it."""
