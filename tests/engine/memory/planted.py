"""Random plans, and overlaps planted in them, against the validator: bit masks of bytes are the oracle.

`python -m tests.engine.memory.planted 1000000`; the suite runs a few thousand.
"""

import random
import sys
from collections import Counter

from app.engine.memory.problem import Buffer, Part, Problem, Solution, lower_bound, validate

STEPS, UNIT = 10, 4


def problem(rng: random.Random) -> Problem:
    """Two to eight buffers, some of whose bytes live in parts."""
    buffers = []
    for i in range(rng.randint(2, 8)):
        lower = rng.randrange(STEPS - 1)
        upper = rng.randint(lower + 1, STEPS)
        alignment = UNIT * rng.choice((1, 1, 2))
        size = rng.randint(1, 10) * UNIT - rng.randrange(UNIT)
        extent = -(-size // alignment) * alignment
        parts: tuple[Part, ...] = ()
        if rng.random() < 0.3 and extent >= 2 * UNIT and upper - lower > 1:
            cut = rng.randrange(UNIT, extent, UNIT)
            late = rng.randint(lower + 1, upper - 1)
            parts = (Part(0, cut, lower, rng.randint(lower + 1, upper)), Part(cut, extent - cut, late, upper))
        buffers.append(Buffer(str(i), lower, upper, size, alignment, parts))
    return Problem(tuple(buffers))


def disjoint(given: Problem, offsets: dict[str, int]) -> bool:
    """The oracle: at every step, no byte belongs to two buffers."""
    held = [0] * STEPS
    for buffer in given.buffers:
        for part in buffer.pieces:
            mask = ((1 << part.size) - 1) << (offsets[buffer.id] + part.offset)
            for step in range(part.lower, part.upper):
                if held[step] & mask:
                    return False
                held[step] |= mask
    return True


def placed(given: Problem, rng: random.Random) -> dict[str, int]:
    """A valid placement: buffers in random order, each at the lowest offset that is free."""
    offsets: dict[str, int] = {}
    for buffer in rng.sample(given.buffers, len(given.buffers)):
        so_far = Problem(tuple(b for b in given.buffers if b.id in offsets or b is buffer))
        at = 0
        while not disjoint(so_far, {**offsets, buffer.id: at}):
            at += buffer.alignment
        offsets[buffer.id] = at
    return offsets


def accepts(given: Problem, offsets: dict[str, int]) -> bool:
    """The validator's verdict on the overlaps; its other checks are given what they want."""
    peak = max(offsets[b.id] + b.extent for b in given.buffers)
    try:
        validate(given, Solution(offsets, peak, min(lower_bound(given), peak), False, "planted"))
    except ValueError as error:
        if "overlap" in str(error) or "lower bound" in str(error):
            return False  # what lives does not fit below the peak
        raise
    return True


def run(count: int, seed: int = 0) -> Counter[str]:
    """How many plans of each verdict there were.

    Raises:
        AssertionError: the validator missed an overlap, or saw one where there is none.
    """
    rng, seen = random.Random(seed), Counter[str]()
    while sum(seen.values()) < count:
        given = problem(rng)
        offsets = placed(given, rng)
        assert accepts(given, offsets), (given, offsets)
        seen["valid"] += 1
        for _ in range(4):
            moved = rng.choice(given.buffers)
            onto = rng.choice(given.buffers)
            at = max(0, offsets[onto.id] + rng.randint(-3, 3) * moved.alignment)
            planted = {**offsets, moved.id: at - at % moved.alignment}
            verdict = disjoint(given, planted)
            assert accepts(given, planted) is verdict, (given, planted)
            seen["moved, valid" if verdict else "overlap planted"] += 1
    return seen


if __name__ == "__main__":
    print(dict(run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)), "and none was missed")
