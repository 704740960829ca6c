"""Ways to deploy a model on a machine: instances, threads of each, requests that are computed together."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Python's switch interval of an executor: what a request waits for a thread that builds programs, each time
# it needs Python.
SWITCH_SECONDS = 5e-4


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """One way to deploy a model.

    Attributes:
        instances: programs that run at once.
        threads: of each.
        sizes: numbers of requests that are computed together, ascending, 1 first.
        delay: seconds that a request waits at most for others of its batch.
    """

    instances: int
    threads: int
    sizes: tuple[int, ...] = (1,)
    delay: float = 0.0

    @property
    def largest(self) -> int:
        """Requests of the largest batch."""
        return self.sizes[-1]

    def deployment(self) -> dict[str, Any]:
        """Fields of the request that deploys a model so."""
        return {
            "instances": self.instances,
            "threads": self.threads,
            "batch_sizes": list(self.sizes[1:]),
            "batch_delay_ms": self.delay * 1e3,
        }


def configurations(
    cores: int, threads: int, sizes: Sequence[int], delays: Sequence[float]
) -> Iterator[Configuration]:
    """Configurations that use at most `cores` cores, the smallest first.

    Threads are powers of two, those of the job (`threads`) and all cores; instances are powers of two, and as
    many as the cores allow. Batches have all of `sizes` up to one of them; each of `delays` is one to wait.
    """
    for each in steps(cores, threads):
        for instances in steps(cores // each):
            yield Configuration(instances, each)
            for index in range(1, len(sizes)):
                for delay in delays:
                    yield Configuration(instances, each, tuple(sizes[: index + 1]), delay)


def steps(most: int, *others: int) -> list[int]:
    """Powers of two below `most`, `most` itself and those of `others` that do not exceed it, ascending."""
    powers = {1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most}
    return sorted(powers | {most} | {other for other in others if 0 < other <= most})


def cores_of(instances: int, threads: int) -> tuple[tuple[int, ...], ...]:
    """Disjoint cores for as many instances of some threads; none for a single one, which goes anywhere.

    Where there are fewer, instances share them.
    """
    if instances == 1:
        return ((),)
    found = sorted(os.sched_getaffinity(0), reverse=True)
    numbered = [found[i % len(found)] for i in range(instances * threads)]
    return tuple(tuple(numbered[i * threads : (i + 1) * threads]) for i in range(instances))
