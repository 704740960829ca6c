"""Times of runs of all configurations: measured ones, and from them those of the others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.http import HttpCosts
from app.engine.planning.capacity.load import Offered
from app.engine.planning.capacity.queueing import RunTimes, Seconds, nothing

_MIN_SEEN = 20  # runs under load whose times are used
Run = tuple[int, int, int]  # instances that run at once, threads of each, requests in a run


def under_load(times: RunTimes, load: Offered) -> RunTimes:
    """Run times as they were under a load, where threads wake for each run and those that send use cores too.

    Those of numbers of requests that hardly ran take as much longer than before as the others do.
    """
    seen = {size: found for size, found in load.runs.items() if len(found) >= _MIN_SEEN}
    before = sum(len(found) * float(times.samples[size].mean()) for size, found in seen.items())
    if not before:
        return replace(times, outside=load.outside)
    factor = sum(float(found.sum()) for found in seen.values()) / before
    found = {size: seen.get(size, seconds * factor) for size, seconds in times.samples.items()}
    return replace(times, samples=found, outside=load.outside)


def runs_to_measure(cores: int, threads: Sequence[int], instances: Mapping[int, int]) -> list[Run]:
    """Runs that are measured of single requests, the most telling first.

    One instance with each number of threads, from the fewest and the most on to the middle; and as many
    instances as there may be (`instances`, by threads), and half as many.
    """
    ends = list(dict.fromkeys((threads[0], threads[-1], *threads)))
    found = [(1, each, 1) for each in ends]
    most = instances[threads[0]]
    found += [(count, threads[0], 1) for count in dict.fromkeys((most, max(most // 2, 1))) if count > 1]
    return [run for run in found if run[0] * run[1] <= cores]


@dataclass(frozen=True, slots=True)
class MeasuredRuns:
    """Seconds of runs by instances, threads and requests; of one instance and one request at least.

    `outside` has seconds of requests outside of the process of the model, by instances and threads; `costs`
    is the processor time of a request over HTTP, which shares `cores` with the runs.
    """

    samples: Mapping[Run, Seconds]
    outside: Mapping[tuple[int, int], Seconds] = field(default_factory=dict)
    costs: HttpCosts | None = None
    cores: int = 1

    def of(self, configuration: Configuration) -> RunTimes:
        """Run times of a configuration, where they were not measured by the rules of `_estimated`."""
        instances, threads = configuration.instances, configuration.threads
        found = {size: self._samples((instances, threads, size)) for size in configuration.sizes}
        near = min(
            self.outside, key=lambda key: (abs(key[0] - instances), abs(key[1] - threads), key), default=None
        )
        outside = nothing() if near is None else self.outside[near]
        return RunTimes(found, outside, self.costs, self.cores)

    def are_of(self, configuration: Configuration) -> bool:
        """True if all runs of a configuration were measured."""
        instances, threads = configuration.instances, configuration.threads
        return all((instances, threads, size) in self.samples for size in configuration.sizes)

    def _samples(self, run: Run) -> Seconds:
        return self.samples[run] if run in self.samples else self._estimated(*run)

    def _estimated(self, instances: int, threads: int, size: int) -> Seconds:
        """Samples of the nearest number of threads, times factors for threads, instances and requests."""
        known = [each for count, each, number in self.samples if (count, number) == (1, 1)]
        nearest = min(known, key=lambda each: (abs(each - threads), each))
        factor = self._threads(threads) / self._threads(nearest)
        factor *= self._contention(instances, threads) * self._batching(threads, size)
        return self.samples[1, nearest, 1] * factor

    def _threads(self, threads: int) -> float:
        """Mean seconds of a run with so many threads: a + b / threads between numbers that were measured."""
        known = sorted(each for count, each, size in self.samples if (count, size) == (1, 1))
        means = [float(self.samples[1, each, 1].mean()) for each in known]
        shares = [1.0 / each for each in known]
        return float(np.interp(1.0 / threads, shares[::-1], means[::-1]))

    def _contention(self, instances: int, threads: int) -> float:
        """Time of a run while so many instances run, over that of one alone: by the cores that they use."""
        if instances == 1:
            return 1.0
        exact = (instances, threads, 1), (1, threads, 1)
        if all(run in self.samples for run in exact):
            return self._ratio(*exact)
        pairs = {1: 1.0}
        for count, each, size in self.samples:
            if count > 1 and size == 1 and (1, each, 1) in self.samples:
                pairs[count * each] = self._ratio((count, each, 1), (1, each, 1))
        used = sorted(pairs)
        return float(np.interp(instances * threads, used, [pairs[cores] for cores in used]))

    def _batching(self, threads: int, size: int) -> float:
        """Time of a run of so many requests over that of one, linear between sizes that were measured."""
        with_batches = {each for count, each, number in self.samples if count == 1 and number > 1}
        if size == 1 or not with_batches:
            return float(size)
        each = min(with_batches, key=lambda found: (abs(found - threads), found))
        sizes = sorted(number for count, found, number in self.samples if (count, found) == (1, each))
        ratios = [self._ratio((1, each, number), (1, each, 1)) for number in sizes]
        if size > sizes[-1]:
            return ratios[-1] * size / sizes[-1]
        return float(np.interp(size, sizes, ratios))

    def _ratio(self, run: Run, base: Run) -> float:
        return float(self.samples[run].mean() / self.samples[base].mean())
