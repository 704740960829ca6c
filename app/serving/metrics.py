"""Counts and durations of inferences, as Prometheus reads them."""

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from app.jobs.store.counters import text_of

# Upper bounds of a duration, in seconds; what is longer is counted in the last row.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Durations of one kind."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def note(self, seconds: float) -> None:
        """Add a duration."""
        self._counts[bisect.bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """It in Prometheus's text format."""
        total = 0
        for bound, count in zip((*(f"{b:g}" for b in _BUCKETS), "+Inf"), self._counts):
            total += count
            yield f"{name}_bucket{{{text_of({**labels, 'le': bound})}}} {total}"
        yield f"{name}_sum{{{text_of(labels)}}} {self._sum:.6g}"
        yield f"{name}_count{{{text_of(labels)}}} {total}"


class Metrics:
    """What happened to the requests of one deployed model, in this API process."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # by status
        self.durations = {
            "stowplan_inference_seconds": Histogram(),  # whole, as the API sees them
            "stowplan_inference_wait_seconds": Histogram(),  # in the queue of the executor
            "stowplan_inference_run_seconds": Histogram(),  # in the executor
        }

    def note(self, status: int, seconds: float, waited: float | None, ran: float | None) -> None:
        """Count a request that was answered."""
        self.requests[status] += 1
        for histogram, value in zip(self.durations.values(), (seconds, waited, ran)):
            if value is not None:
                histogram.note(value)


def lines(rows: Iterable[tuple[Mapping[str, str], Metrics, Mapping[str, float]]]) -> Iterator[str]:
    """All counts, by family: labels of a model, its counts, its present figures by name."""
    found = list(rows)
    yield "# TYPE stowplan_inferences_total counter"
    for labels, metrics, _ in found:
        for status, count in sorted(metrics.requests.items()):
            yield f"stowplan_inferences_total{{{text_of({**labels, 'status': str(status)})}}} {count}"
    for family in Metrics().durations:
        yield f"# TYPE {family} histogram"
        for labels, metrics, _ in found:
            yield from metrics.durations[family].lines(family, labels)
    for name in found[0][2] if found else ():
        yield f"# TYPE {name} gauge"
        for labels, _, figures in found:
            yield f"{name}{{{text_of(labels)}}} {figures[name]:g}"
