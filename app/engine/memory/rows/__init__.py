"""Streaming below the tensor: segments of operators run row by row over rings of their live rows."""
