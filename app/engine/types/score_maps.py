"""A sequence of maps from labels to scores, as ZipMap makes: an array until somebody reads a map."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

Label = int | str


class ScoreMaps(Sequence[dict[Label, float]]):
    """Maps of the samples of a matrix of scores, made when they are read; each reading makes a new one.

    Attributes:
        labels: keys of every map, in order.
        scores: float32[samples, labels].
    """

    __slots__ = ("labels", "scores")

    def __init__(self, labels: tuple[Label, ...], scores: np.ndarray[Any, Any]) -> None:
        self.labels = labels
        self.scores = scores

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> dict[Label, float]: ...

    @overload
    def __getitem__(self, index: slice) -> "ScoreMaps": ...

    def __getitem__(self, index: int | slice) -> "dict[Label, float] | ScoreMaps":
        """Map of a sample, or the maps of several."""
        if isinstance(index, slice):
            return ScoreMaps(self.labels, self.scores[index])
        return dict(zip(self.labels, self.scores[index].tolist(), strict=True))

    def __eq__(self, other: object) -> bool:
        """True if the other one is a sequence of equal maps."""
        return isinstance(other, ScoreMaps | list) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as that of lists

    def __repr__(self) -> str:
        """As the list of maps."""
        return repr(list(self))
