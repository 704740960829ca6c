"""A discrete simulator of a queue with batches, written from its rules alone: events in the order of time.

It shares nothing with `app.engine.planning.capacity`: it knows instances that are free, requests that wait,
and moments at which something happens.
"""

import heapq
from collections.abc import Sequence

ARRIVAL, TIMER, FREE = range(3)


def simulated(
    moments: Sequence[float],
    seconds: dict[int, float],
    instances: int,
    sizes: Sequence[int],
    delay: float,
) -> list[float]:
    """Latency of each request; a run of `n` requests takes `seconds[n]`."""
    events: list[tuple[float, int, int]] = [(moment, ARRIVAL, i) for i, moment in enumerate(moments)]
    heapq.heapify(events)
    waiting: list[int] = []
    latency = [0.0] * len(moments)
    free = instances
    while events:
        now = events[0][0]
        while events and events[0][0] == now:  # everything of a moment happens before any decision
            _, kind, number = heapq.heappop(events)
            if kind == ARRIVAL:
                waiting.append(number)
                if delay:
                    heapq.heappush(events, (now + delay, TIMER, number))
            elif kind == FREE:
                free += 1
        while free and waiting:
            is_full = len(waiting) >= max(sizes)
            has_waited = now >= moments[waiting[0]] + delay
            if not (is_full or has_waited):
                break
            count = max(size for size in sizes if size <= len(waiting))
            taken, waiting = waiting[:count], waiting[count:]
            free -= 1
            for number in taken:
                latency[number] = now + seconds[count] - moments[number]
            heapq.heappush(events, (now + seconds[count], FREE, -1))
    return latency
