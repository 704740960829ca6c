"""Metrics of deployed models, in this API process."""

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from app.serving.executor_client import ExecutorClient

# Upper bounds of a duration, in seconds.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Metrics of one deployed model, without the labels that name it."""

    def __init__(self, client: ExecutorClient) -> None:
        registry = self._registry = CollectorRegistry(auto_describe=True)

        def histogram(name: str, documentation: str) -> Histogram:
            return Histogram(name, documentation, registry=registry, buckets=_BUCKETS)

        self._requests = Counter(
            "stowplan_inferences",
            "Inferences that this process answered, by model, version and status.",
            ["status"],
            registry=registry,
        )
        self._durations = (
            histogram("stowplan_inference_seconds", "Time of inferences, from the request to the answer."),
            histogram("stowplan_inference_wait_seconds", "Time of inferences in the queue of their model."),
            histogram(
                "stowplan_inference_held_seconds",
                "Time of inferences that waited for others of their batch while an instance was free.",
            ),
            histogram("stowplan_inference_run_seconds", "Time of inferences in the process of their model."),
        )
        for name, documentation, value in (
            (
                "stowplan_executor_ready",
                "State of the process of a deployed model: 1 if it answers, else 0.",
                lambda: client.state == "ready",
            ),
            (
                "stowplan_executor_restarts",
                "Times that the process of a deployed model ended while it was connected.",
                lambda: client.restarts,
            ),
            (
                "stowplan_executor_programs",
                "Input shapes that a deployed model keeps compiled.",
                lambda: client.programs,
            ),
            (
                "stowplan_inferences_waiting",
                "Inferences that have no answer yet, by model and version.",
                lambda: client.waiting,
            ),
        ):
            Gauge(name, documentation, registry=registry).set_function(value)

    def note(self, status: int, *seconds: float | None) -> None:
        """Count a request that was answered; seconds in all, of the queue, held there, and of its run."""
        self._requests.labels(str(status)).inc()
        for histogram, value in zip(self._durations, seconds, strict=True):
            if value is not None:
                histogram.observe(value)

    def collect(self) -> Iterable[Metric]:
        """Present values."""
        return self._registry.collect()


def merged(models: Iterable[tuple[Mapping[str, str], Metrics]]) -> list[Metric]:
    """Metrics of several models, each sample with the labels of its model."""
    families: dict[str, Metric] = {}
    for labels, metrics in models:
        for found in metrics.collect():
            family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            for sample in found.samples:
                family.add_sample(sample.name, {**labels, **sample.labels}, sample.value)
    return list(families.values())
