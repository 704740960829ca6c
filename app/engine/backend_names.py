"""Which backends there are, without importing any of them."""

import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Iterable, Sequence

from app.engine.errors import UnknownBackendError

ENTRY_POINTS = "stowplan.backends"  # group under which installed packages offer modules like ours


def names() -> tuple[str, ...]:
    """Every backend, by the files of `app.engine.backends` and the entry points of installed packages.

    A backend is called as its file or entry point, with `-` for `_`.
    """
    package = importlib.util.find_spec("app.engine.backends")
    assert package is not None
    files = [m.name for m in pkgutil.iter_modules(package.submodule_search_locations)]
    offered = [e.name for e in importlib.metadata.entry_points(group=ENTRY_POINTS)]
    return tuple(sorted({name.replace("_", "-") for name in (*files, *offered)}))


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
