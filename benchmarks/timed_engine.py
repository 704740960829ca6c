"""The engine, which also tells how long it took: what a queue adds to a job is the rest."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.engine.entry import optimize as entry
from app.engine.entry.optimize import inspect, validate
from app.engine.entry.preload import prepare
from app.engine.entry.run_operator import run_operator
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target

__all__ = ["inspect", "optimize", "prepare", "run_operator", "validate"]


def optimize(
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
    """Optimize as the engine does; the summary has `engine_seconds` and `engine_cpu_seconds` besides."""
    began, burnt = time.perf_counter(), time.process_time()
    summary = entry.optimize(
        path, target, options, bindings, folder, kernels=kernels, external=external, progress=progress
    )
    seconds, cpu = time.perf_counter() - began, time.process_time() - burnt
    return summary | {"engine_seconds": seconds, "engine_cpu_seconds": cpu}
