"""The document of the core operators, as the rows of the engine and of installed backends tell it.

A process of its own makes it, once: the service imports no backend.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

_SECONDS = 120.0  # it takes about 5 on an idle core


@dataclass(slots=True)
class CoreOperators:
    """The document, made when it is first asked for; of several that ask at once, one makes it."""

    _found: dict[str, Any] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def document(self) -> Mapping[str, Any]:
        """See `app.engine.entry.core_operators`."""
        with self._lock:
            if not self._found:
                command = [sys.executable, "-m", "app.engine.entry.core_operators"]
                made = subprocess.run(command, stdout=subprocess.PIPE, timeout=_SECONDS, check=True)
                self._found = json.loads(made.stdout)
            return self._found
