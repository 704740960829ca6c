"""The timings table: measured seconds by key, beside the compiled kernels that they belong to.

The peak of the machine is there too, see `app.engine.planning.utilization.kept`.
An entry is never measured again, so plans are reproducible once the table is filled.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path


def stored(folder: Path) -> dict[str, float]:
    """The timings table of a folder; empty when there is none."""
    path = folder / "timings.json"
    return json.loads(path.read_text()) if path.exists() else {}


def store(folder: Path, timings: Mapping[str, float]) -> None:
    """Add to the timings table of a folder; entries that another process added meanwhile are kept."""
    with (folder / "timings.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        merged = {**stored(folder), **timings}
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
            json.dump(merged, file, indent=0, sort_keys=True)
        os.replace(file.name, folder / "timings.json")  # noqa: PTH105  # atomic: readers take no lock


class RecordedTimings(Mapping[str, float]):
    """A timings table that records what is looked up: a plan made with it depends on no more of it."""

    def __init__(self, table: Mapping[str, float]) -> None:
        self._table = table
        self._found: dict[str, float | None] = {}

    def __getitem__(self, key: str) -> float:
        """Seconds by key, as the table has them."""
        found = self._found[key] = self._table.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        """All keys of the table, which are not recorded."""
        return iter(self._table)

    def __len__(self) -> int:
        """Number of keys of the table."""
        return len(self._table)

    def agrees(self, table: Mapping[str, float]) -> bool:
        """True if another table has the same of all that was looked up, and is empty only if this one is."""
        same = all(table.get(key) == found for key, found in self._found.items())
        return same and bool(table) == bool(self._table)


class TimingCache:
    """The timings table of a folder in memory; `save` writes what was added.

    Attributes:
        table: seconds, or ratios of seconds, by key.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.table = stored(folder)

    def save(self) -> None:
        """Write what was added since the last time."""
        store(self._folder, self.table)
