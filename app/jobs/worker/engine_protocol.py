"""Interface of the engine for the service: `Settings.engine` names a module that implements it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target


class Port(Protocol):
    """An input or output of a served model: None stands for dimensions that differ, or an unknown rank."""

    @property
    def name(self) -> str:
        """Name in the model."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """As far as it is known."""


class Program(Protocol):
    """A model for one set of input shapes.

    Attributes:
        shares_memory: whether it has its arena and weights together with programs of other shapes.
    """

    shares_memory: bool

    def lend(self, inputs: Mapping[str, object]) -> None:
        """Read the inputs where they are, or copy them; they stay as they are until the step has ended."""

    def step(self) -> None:
        """Compute the outputs."""

    def peek(self) -> dict[str, object]:
        """The outputs, until the next step."""

    def close(self) -> None:
        """Give its threads back."""


class ServedModel(Protocol):
    """A model that stays in its process."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    fixed: Mapping[str, float | int | bool]  # inputs that have a value already
    first: Mapping[str, tuple[int, ...]] | None  # shapes that calls will probably have

    def programs(
        self, shapes: Mapping[str, tuple[int, ...]], cores: Sequence[Sequence[int]]
    ) -> Sequence[Program]:
        """Instances of the program for inputs of these shapes, each on cores of its own; may take long."""

    def rows_of_outputs(self, shapes: Mapping[str, tuple[int, ...]], count: int) -> frozenset[str]:
        """Names of outputs in which so many requests, stacked along axis 0, lie one by one.

        An error says why requests of these shapes cannot be computed together.
        """

    def ahead(self) -> Iterator[tuple[Mapping[str, tuple[int, ...]], Sequence[Program]]]:
        """Instances of programs that share memory with those that are there, by shapes, before calls ask."""


class Engine(Protocol):
    """A module that inspects, validates and optimizes models; called in limited processes only.

    All results are JSON; failures are `EngineError`s.

    Attributes:
        PRELOAD: modules that the process which forks the limited ones imports once for all of them.
    """

    PRELOAD: Sequence[str]

    def prepare(self, kernels: Path) -> None:
        """Compile what any model needs, where a folder of compiled kernels lacks it."""

    def inspect(self, path: Path, external: Mapping[str, Path]) -> dict[str, Any]:
        """Content of a model: inputs, outputs, operators, opsets, nodes, parameters."""

    def validate(
        self,
        path: Path,
        target: Target,
        options: Options,
        bindings: Bindings,
        external: Mapping[str, Path],
    ) -> list[dict[str, str]]:
        """Problems that would stop an optimization, each with code, detail and pointer."""

    def run_operator(
        self, request: Mapping[str, Any], options: Options, folder: Path, kernels: Path
    ) -> dict[str, Any]:
        """Run one operator on given tensors, as `app.engine.entry.run_operator` does."""

    def derive(
        self,
        path: Path,
        external: Mapping[str, Path],
        request: Mapping[str, Any],
        beside: Mapping[str, str],
        folder: Path,
    ) -> dict[str, Any]:
        """Look into models or make one of them, as `app.engine.entry.derive` does."""

    def optimize(
        self,
        path: Path,
        target: Target,
        options: Options,
        bindings: Bindings,
        folder: Path,
        *,
        kernels: Path,
        external: Mapping[str, Path],
        progress: Callable[[str, int, int], None],
    ) -> dict[str, Any]:
        """Write artifacts into `folder` and return a summary.

        `kernels` is a folder where compiled kernels are kept; `progress` takes phase, done and total.
        """

    def capacity(
        self,
        path: Path,
        options: Options,
        bindings: Bindings,
        request: Mapping[str, Any],
        folder: Path,
        *,
        kernels: Path,
        external: Mapping[str, Path],
        progress: Callable[[str, int, int], None],
    ) -> dict[str, Any]:
        """The deployment that answers most requests within bounds, see `app.engine.entry.capacity`."""

    def ServedModel(  # noqa: N802  it is a class there
        self,
        path: Path,
        options: Options,
        bindings: Bindings,
        *,
        kernels: Path,
        external: Mapping[str, Path],
        weights: Path,
        tune: bool,
    ) -> ServedModel:
        """A model as a job planned it, to be called again and again; `weights` is a folder of packed ones.

        Without `tune` nothing is measured: what was measured before and predictions choose.
        """
