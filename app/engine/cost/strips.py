"""Predicted seconds of an operator that runs on strips of rows, from those of all rows at once."""

from app.engine.core import graph
from app.engine.core.streams.stream_group import StreamPart
from app.engine.core.streams.strips import HEADS
from app.engine.types.target import NEAR, Target

ENDS = 1.0  # pixels that take as long as the ends of the tiles of a strip
CALL = 50e-9  # s to start a kernel
SHARED = 0.8e-6  # s until threads that share a call have begun and ended it, measured with two
HELD = 0.5  # of the second cache that weights may take to stay there from strip to strip


def predicted(part: StreamPart, calls: int, target: Target, threads: int) -> float:
    """Seconds of a group in so many strips, each of which threads share.

    A strip reads weights again that do not stay near, and its last tiles have fewer pixels. What it gains,
    rows that are still in a cache, is not predicted.
    """
    begun = calls * (CALL if threads == 1 else SHARED)
    if part.strips.axis == HEADS:  # each reads weights of its own
        return part.choice.seconds + begun
    rows, columns = part.strips.lines(part.group)
    pixels = rows * columns
    each, first = part.strips.pace
    pace = each + first * calls / max(rows, 1)
    weights = part.strips.expansion * sum(graph.nbytes(v) for v in part.group.inputs if graph.is_constant(v))
    again = (calls - 1) * _seconds_to_read(weights, target)
    return part.choice.seconds * (pace + ENDS * threads * calls / max(pixels, 1)) + again + begun


def _seconds_to_read(weights: float, target: Target) -> float:
    """Seconds to read weights that were read one strip before."""
    if len(target.caches) > 1 and weights <= HELD * target.caches[1]:
        return 0.0
    near = NEAR if target.caches and weights <= target.caches[-1] else 1.0
    return weights / (near * target.memories[0].bandwidth)
