"""Layouts of a whole graph: which are chosen (`choice`) and the conversions that follow (`realize`)."""
