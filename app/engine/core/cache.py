"""Results that are computed once for their owner: a group, a compilation."""

from collections.abc import Callable, Hashable
from typing import TypeVar

T = TypeVar("T")


class Cache:
    """Results by key, for as long as their owner lives; keys stay alive as long."""

    __slots__ = ("_results",)

    def __init__(self) -> None:
        self._results: dict[Hashable, object] = {}

    def result(self, key: Hashable, make: Callable[[], T]) -> T:
        """Result of `make`, which is called the first time only."""
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]  # type: ignore[return-value]  # what `make` returned for this key

    def clear(self) -> None:
        """Forget all results."""
        self._results.clear()
