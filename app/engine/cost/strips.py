"""Predicted seconds of an operator that runs on strips of rows, from those of all rows at once."""

import math

from app.engine.core import graph
from app.engine.core.streams.stream_group import StreamPart
from app.engine.types.target import Target

ENDS = 4.0  # pixels that take as long as the ends of the tiles of a strip
CALL = 50e-9  # s to start a kernel


def predicted(part: StreamPart, calls: int, target: Target) -> float:
    """Seconds of a group in so many strips.

    A strip reads the weights again, and its last tiles have fewer pixels. What it gains, rows that are still
    in a cache, is not predicted.
    """
    pixels = math.prod(graph.static_shape(part.group.outputs[0])[2:])
    weights = sum(graph.nbytes(v) for v in part.group.inputs if graph.is_constant(v))
    again = (calls - 1) * weights / target.memories[0].bandwidth
    return part.choice.seconds * (1 + ENDS * calls / max(pixels, 1)) + again + calls * CALL
