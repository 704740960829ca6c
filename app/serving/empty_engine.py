"""An engine with a model that computes nothing: what an inference of it takes is the service's own work."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None


class ServedModel:
    """A model of bytes: y has as many as x has rows, and is zero."""

    def __init__(self, *_: object, **__: object) -> None:
        self.inputs = (Port("x", np.dtype(np.uint8), (None, None)),)
        self.outputs = (Port("y", np.dtype(np.uint8), (None,)),)
        self.fixed: Mapping[str, float] = {}
        self.first = {"x": (1, 1)}

    def programs(
        self, shapes: Mapping[str, tuple[int, ...]], cores: Sequence[Sequence[int]]
    ) -> list["EmptyProgram"]:
        """Instances of the program for inputs of these shapes."""
        return [EmptyProgram(shapes["x"][0]) for _ in cores]

    def ahead(self) -> Iterator[tuple[Mapping[str, tuple[int, ...]], Sequence["EmptyProgram"]]]:
        """No programs before calls ask for them."""
        return iter(())


class EmptyProgram:
    """A program that reads no input, and always has the same output."""

    shares_memory = False

    def __init__(self, nbytes: int) -> None:
        self._outputs: dict[str, object] = {"y": np.zeros(nbytes, np.uint8)}

    def lend(self, inputs: Mapping[str, object]) -> None:
        """Take no notice of the inputs."""

    def step(self) -> None:
        """Compute nothing."""

    def peek(self) -> dict[str, object]:
        """The output."""
        return self._outputs

    def close(self) -> None:
        """Keep all: nothing was taken."""
