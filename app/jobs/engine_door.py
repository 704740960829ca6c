"""What the service asks of the engine, as a contract: `Settings.engine` names a module that keeps it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from app.engine.options import Bindings, Options
from app.engine.target import Target


class Engine(Protocol):
    """A module that inspects, validates and optimizes models; called in limited processes only.

    All results are JSON; failures are `EngineError`s.
    """

    def inspect(self, path: Path, external: Mapping[str, Path]) -> dict[str, Any]:
        """What is in a model: inputs, outputs, operators, opsets, nodes, parameters."""

    def validate(
        self,
        path: Path,
        target: Target,
        options: Options,
        bindings: Bindings,
        external: Mapping[str, Path],
    ) -> list[dict[str, str]]:
        """What would stop an optimization: each problem with code, detail and pointer."""

    def run_operator(
        self, request: Mapping[str, Any], options: Options, folder: Path, kernels: Path
    ) -> dict[str, Any]:
        """Run one operator on given tensors; `request` and the answer as `app.engine.operator` has them."""

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
