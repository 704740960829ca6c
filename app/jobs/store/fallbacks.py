"""Steps that the reference evaluator ran for want of a kernel: a log line for each distinct one; counts."""

import logging
from collections import Counter
from typing import Any

import sqlalchemy as sa

from app.jobs.store.database import jobs

logger = logging.getLogger("stowplan.fallbacks")
MOST = 10_000  # distinct fallbacks that a worker remembers


class Told:
    """Which fallbacks this process has logged."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def note(self, summary: Any) -> None:
        """Log the fallbacks in the summary of a job that were not logged before."""
        for op, reason, count in _rows(summary):
            if (op, reason) in self._seen or len(self._seen) >= MOST:
                continue
            self._seen.add((op, reason))
            logger.warning("fallback: the reference runs %s (%d nodes): %s", op, count, reason)


def counted(connection: sa.Connection) -> Counter[tuple[str, str]]:
    """Nodes that fell back, by operator and reason, over all jobs that are kept: for metrics."""
    query = sa.select(jobs.c.summary).where(jobs.c.kind == "optimize", jobs.c.state == "succeeded")
    found: Counter[tuple[str, str]] = Counter()
    for summary in connection.scalars(query):
        for op, reason, count in _rows(summary):
            found[op, reason] += count
    return found


def _rows(summary: Any) -> list[tuple[str, str, int]]:
    rows = summary.get("fallbacks", ()) if isinstance(summary, dict) else ()
    return [(str(r["op"]), str(r["reason"]), int(r["count"])) for r in rows]
