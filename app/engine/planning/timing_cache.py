"""The timings table: measured seconds by key, beside the compiled kernels that they belong to.

An entry is never measured again, so plans are reproducible once the table is filled.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Mapping
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
