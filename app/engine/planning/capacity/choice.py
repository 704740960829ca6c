"""The configuration that answers most requests in time, and the rate of requests up to which it does."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.queueing import Prediction, RunTimes, predicted

MAX_LOAD = 0.8  # share of saturation: runs that take 1 % longer make the waits of a queue 5 % longer there
_SHARES = (MAX_LOAD, 0.7, 0.6, 0.45, 0.3, 0.15, 0.05)  # of saturation, at which predictions are made
_SLOWER = 1.05  # factor of run times with which a bound must hold: those of a later minute differ so much
_HALVINGS = 4  # of the interval between two of them
_COARSE = 4_000  # requests of a prediction in the search
_ALIKE = 0.97  # share of the highest rate from which on the smaller configuration is taken
PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Bound:
    """The latency that a share of the requests must not exceed, as `p99=20ms`."""

    percentile: float
    seconds: float

    def holds(self, found: Prediction) -> bool:
        """True if a prediction meets it."""
        return found.percentiles[self.percentile] <= self.seconds


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration with its prediction at the highest rate that meets the bound; None where none does.

    Attributes:
        nbytes: of memory that it takes.
        measured: whether the times of its runs were measured, none estimated from others.
        rejection: reason why it cannot be chosen; empty if it can.
    """

    configuration: Configuration
    times: RunTimes
    nbytes: int
    measured: bool
    best: Prediction | None
    rejection: str = ""

    @property
    def leaves_no_core(self) -> bool:
        """True if API and client take cores that runs need: percentiles are up to twice those predicted."""
        used = self.configuration.instances * self.configuration.threads
        return self.times.costs is not None and used >= self.times.cores

    @property
    def shares_cores(self) -> bool:
        """True if threads of one run lose their cores to API and client at times, while the others wait."""
        return self.leaves_no_core and self.configuration.threads > 1


def candidate(
    configuration: Configuration,
    times: RunTimes,
    nbytes: int,
    measured: bool,
    bound: Bound | None,
    memory: int | None,
) -> Candidate:
    """A configuration as a candidate under a bound on latency and one on bytes of memory."""
    rejection = ""
    best = highest_rate(times, configuration, bound)
    if best is None and bound is not None:
        rejection = f"p{bound.percentile:g} exceeds {bound.seconds * 1e3:g} ms at every rate"
    if memory is not None and nbytes > memory:
        rejection = f"it takes {nbytes} byte of memory, {memory} byte are allowed"
    return Candidate(configuration, times, nbytes, measured, best, rejection)


def chosen(candidates: Iterable[Candidate]) -> tuple[Candidate, Prediction] | None:
    """The candidate of the highest rate; of those that come near it the one that takes the least.

    One whose runs share cores with HTTP is chosen where no other fits.
    """
    fit = [(row, row.best) for row in candidates if row.best is not None and not row.rejection]
    fit = [found for found in fit if not found[0].shares_cores] or fit
    most = max((best.rate for _, best in fit), default=0.0)
    near = [(row, best) for row, best in fit if best.rate >= _ALIKE * most]
    return min(near, key=lambda found: (found[0].nbytes, found[0].configuration), default=None)


def highest_rate(times: RunTimes, configuration: Configuration, bound: Bound | None) -> Prediction | None:
    """The prediction at the highest rate that meets the bound, also where runs take `_SLOWER` times as long.

    None where no rate of those tried does.
    """
    saturation = times.saturation(configuration)
    slower = replace(times, samples={size: _SLOWER * found for size, found in times.samples.items()})

    def holds(share: float) -> bool:
        found = predicted(share * saturation, slower, configuration, _percentiles(bound), _COARSE)
        return bound is None or bound.holds(found)

    above, share = None, MAX_LOAD
    for share in _SHARES:
        if holds(share):
            break
        above = share
    else:
        return None
    if above is not None:
        for _ in range(_HALVINGS):
            middle = (share + above) / 2
            share, above = (middle, above) if holds(middle) else (share, middle)
    return predicted(share * saturation, times, configuration, _percentiles(bound), _COARSE)


def curve(row: Candidate, bound: Bound | None) -> Iterator[Prediction]:
    """Predictions from a light load to nearly saturation."""
    saturation = row.times.saturation(row.configuration)
    for share in (*reversed(_SHARES), 0.9, 0.95):
        rate = share * saturation
        yield predicted(rate, row.times, row.configuration, _percentiles(bound), _COARSE)


def front(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The best candidate of each number of instances and threads, batches apart."""
    groups: dict[tuple[int, int, bool], Candidate] = {}
    for row in candidates:
        key = (row.configuration.instances, row.configuration.threads, row.configuration.largest > 1)
        if row.best is not None and (key not in groups or _rate(row) > _rate(groups[key])):
            groups[key] = row
    return list(groups.values())


def _rate(row: Candidate) -> float:
    return 0.0 if row.best is None else row.best.rate


def _percentiles(bound: Bound | None) -> tuple[float, ...]:
    return tuple(sorted({*PERCENTILES, *(() if bound is None else (bound.percentile,))}))


def told(found: Prediction) -> dict[str, Any]:
    """A prediction as JSON."""
    return {
        "rate": found.rate,
        "throughput": found.throughput,
        "latency": {f"p{percentile:g}": seconds for percentile, seconds in found.percentiles.items()},
    }
