"""Predicted latencies of a queue in front of several instances, from measured times of runs.

Requests come at random moments (a Poisson process) and are taken in their order, as
`app.engine.planning.capacity.batching` says. Each run takes a time that was measured, drawn at random. The
moments are followed one after the other: for batches and measured times no formula gives percentiles.

Source of the recursion over the moments at which instances become free: Kiefer and Wolfowitz, "On the theory
of queues with many servers", 1955.
"""

import heapq
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.engine.planning.capacity.batching import count_to_take
from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.http import HttpCosts

Seconds = np.ndarray[Any, np.dtype[np.float64]]
REQUESTS = 12_000  # of a prediction: 120 of them are slower than the 99th percentile
_WARM = 0.1  # share of the requests that come before the queue has its usual length
_SEED = 20260801


def nothing() -> Seconds:
    """No time, as a sample of times."""
    return np.zeros(1)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Seconds of runs of one configuration.

    Attributes:
        samples: by number of requests in a run, under a load; what HTTP takes in the process of the model is
            part of them.
        outside: of requests, before they are in the process of the model and after they have run.
        costs: processor time of a request over HTTP; None where there is none.
        cores: that runs share with what HTTP takes.
    """

    samples: Mapping[int, Seconds]
    outside: Seconds = field(default_factory=nothing)
    costs: HttpCosts | None = None
    cores: int = 1

    def saturation(self, configuration: Configuration) -> float:
        """Requests per second of instances that always run, each with as many requests as it can take.

        Over HTTP at most as many as the cores have time for.
        """
        seconds = min(float(self.samples[size].mean()) / size for size in configuration.sizes)
        most = configuration.instances / seconds
        if self.costs is None:
            return most
        return min(most, self.costs.saturation(self.cores, configuration.threads * seconds))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Throughput and latencies in seconds at one rate of requests.

    Attributes:
        rate: requests that come each second.
        percentiles: seconds by percentile.
    """

    rate: float
    throughput: float
    percentiles: Mapping[float, float]


def arrivals(rate: float, count: int) -> Seconds:
    """Moments of a Poisson process, in seconds; for two rates the same but for their scale."""
    return np.cumsum(np.random.default_rng(_SEED).exponential(1.0, count)) / rate


def latencies(
    moments: Seconds, times: RunTimes, configuration: Configuration, seed: int = _SEED
) -> tuple[Seconds, float]:
    """Seconds from the arrival of each request to its answer, and the moment of the last answer."""
    came: list[float] = moments.tolist()
    random = np.random.default_rng([seed, 1])
    draws = random.random(len(came))
    drawn = {
        size: times.samples[size][(draws * len(times.samples[size])).astype(np.intp)].tolist()
        for size in configuration.sizes
    }
    largest, delay = configuration.largest, configuration.delay
    free = [0.0] * configuration.instances  # moments at which instances become free; a heap
    answered = np.empty(len(came))
    first, last = 0, 0.0
    while first < len(came):
        now = max(free[0], came[first])
        size = count_to_take(
            bisect_right(came, now, first) - first, came[first] + delay - now, configuration.sizes
        )
        if not size:
            full = came[first + largest - 1] if first + largest <= len(came) else np.inf
            now = min(full, came[first] + delay)
            size = count_to_take(bisect_right(came, now, first) - first, 0.0, configuration.sizes)
        seconds = drawn[size][first]
        heapq.heapreplace(free, now + seconds)
        answered[first : first + size] = now + seconds
        last = max(last, now + seconds)
        first += size
    return answered - moments + random.choice(times.outside, len(came)), last


def predicted(
    rate: float,
    times: RunTimes,
    configuration: Configuration,
    percentiles: tuple[float, ...],
    count: int = REQUESTS,
) -> Prediction:
    """Prediction for requests that come at a rate."""
    moments = arrivals(rate, count)
    found, last = latencies(moments, times, configuration)
    kept = found[int(_WARM * count) :]
    values = np.percentile(kept, percentiles).tolist()
    return Prediction(rate, count / last, dict(zip(percentiles, values, strict=True)))
