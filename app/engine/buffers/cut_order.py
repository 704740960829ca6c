"""Orders of steps by minimum cuts: what runs before the fullest step is what leaves fewest bytes alive there.

The order is parted at its fullest step, the parts at theirs, and so on, until the fullest step has a place
already. What it then lacks room for are the steps that were placed before it, so the search begins again from
the best order with this step the first to get its place.
"""

from collections.abc import Sequence

from app.engine.buffers.step_cuts import StepCuts, set_of
from app.engine.memory.beam_order import Step

BEGINNINGS = 12
WORK = 150_000  # steps in all networks: bounds the search by work, never by the clock

Order = tuple[int, ...]


def improved(cuts: StepCuts, order: Sequence[int], bound: int) -> Order:
    """An order of the steps with a peak that is as low or lower; `bound` bytes are known to be the least."""
    best = tuple(order)
    least = peak_of(best, cuts.steps, cuts.sizes)
    urgent: list[int] = []
    started = cuts.work
    for _ in range(BEGINNINGS):
        current, placed, waiting = list(best), set[int](), list(urgent)
        while True:
            live = live_bytes(current, cuts.steps, cuts.sizes)
            if max(live, default=0) < least:
                best, least = tuple(current), max(live)
            if least <= bound or cuts.work - started > WORK:
                return best
            step = waiting.pop(0) if waiting else current[live.index(max(live))]
            if step not in placed:
                _place(cuts, current, step, placed)
            elif not waiting:
                break
        urgent = [step, *(i for i in urgent if i != step)]
    return best


def _place(cuts: StepCuts, order: list[int], step: int, placed: set[int]) -> None:
    """Move steps between the placed ones around `step` before or after it, in their order; it is placed."""
    at = order.index(step)
    begin = next((p + 1 for p in range(at - 1, -1, -1) if order[p] in placed), 0)
    end = next((p for p in range(at + 1, len(order)) if order[p] in placed), len(order))
    done = cuts.cut(step, set_of(order[:begin]), set_of(order[end:])).done
    part = order[begin:end]
    first = [i for i in part if done >> i & 1]
    order[begin:end] = [*first, step, *(i for i in part if not done >> i & 1 and i != step)]
    placed.add(step)


def peak_of(order: Sequence[int], steps: Sequence[Step], sizes: Sequence[int]) -> int:
    """The most bytes alive at a step."""
    return max(live_bytes(order, steps, sizes), default=0)


def live_bytes(order: Sequence[int], steps: Sequence[Step], sizes: Sequence[int]) -> list[int]:
    """Bytes alive at each place of an order, with results in place of what dies there."""
    first = [-1] * len(sizes)
    last = [-1] * len(sizes)
    for place, i in enumerate(order):
        for storage in steps[i].touches:
            if first[storage] < 0:
                first[storage] = place
            last[storage] = place
    change = [0] * (len(order) + 1)
    for storage, size in enumerate(sizes):
        if first[storage] >= 0:
            change[first[storage]] += size
            change[last[storage] + 1] -= size
    found, live = [], 0
    for place, i in enumerate(order):
        live += change[place]
        found.append(live - _saved(steps[i], place, first, last, sizes) + steps[i].scratch)
    return found


def _saved(step: Step, place: int, first: Sequence[int], last: Sequence[int], sizes: Sequence[int]) -> int:
    """Bytes of results in place of what dies at this place of an order."""
    saved, taken = 0, set[int]()
    for read, written in step.inplace:
        fits = sizes[read] >= sizes[written] and not taken & {read, written}
        if fits and last[read] == place and first[written] == place:
            saved += sizes[written]
            taken |= {read, written}
    return saved
