"""Which backends there are, without importing any of them."""

import importlib.metadata
from collections.abc import Iterable, Sequence

from app.engine.types.errors import UnknownBackendError

# The rows `BACKENDS` of the modules in `app.engine.backends`; the registry refuses to load with others.
BUILT_IN = (
    "accelerator",
    "cuda",
    "numba-cpu",
    "onnxruntime",
    "openvino",
    "reference",
    "unexecuted",
)
UNEXECUTED = "unexecuted"  # of nodes that are planned and that nothing runs
ENTRY_POINTS = "stowplan.backends"  # group under which installed packages offer modules like ours


def names() -> tuple[str, ...]:
    """Every backend: ours, and those that installed packages offer, with `-` for `_` in their names."""
    offered = [e.name.replace("_", "-") for e in importlib.metadata.entry_points(group=ENTRY_POINTS)]
    return tuple(sorted({*BUILT_IN, *offered}))


def check(asked: Sequence[str], known: Iterable[str], pointer: str = "/options/backends") -> None:
    """Nothing, where all backends that are asked for are known.

    Raises:
        UnknownBackendError: one is not; the message lists those there are.
    """
    there = sorted(known)
    for i, name in enumerate(asked):
        if name not in there:
            raise UnknownBackendError(
                f"unknown backend {name!r}; there are {', '.join(there)}", pointer=f"{pointer}/{i}"
            )
