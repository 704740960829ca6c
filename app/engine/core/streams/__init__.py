"""Streams: groups whose kernels run in turn on strips of rows, as one step of a plan."""
