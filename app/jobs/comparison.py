"""The jobs of a group beside each other: what each achieved, whether it is allowed, which is best.

Pure: rows of jobs in, a table out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Objective = Literal["latency", "memory"]
TERMINAL = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Constraints:
    """Constraints on the best job; None where there is none.

    Attributes:
        seconds: of one call, at most.
        peak_bytes: of activations, at most.
        difference: from the original, as a fraction of an output's maximum, at most.
    """

    seconds: float | None = None
    peak_bytes: int | None = None
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One job of a group.

    Attributes:
        job: its id.
        options: those in which the jobs of the group differ.
        seconds: median of one call of the optimized model; None until it is known.
        timings: `measured` or `predicted`.
        peak_bytes: of activations.
        beside: the job's leading sentence, such as its speed beside onnxruntime's; None until it is known.
        difference: the largest from the original, as a fraction of an output's maximum.
        fallbacks: steps that the reference evaluator runs.
        unmet: why it cannot be the best: its failure, or the constraints that it breaks.
        rank: 1 for the best; None for one that is not over or cannot be.
    """

    job: str
    target: str
    options: Mapping[str, Any]
    state: str
    code: str | None
    detail: str | None
    seconds: float | None
    timings: str | None
    peak_bytes: int | None
    beside: str | None
    difference: float | None
    fallbacks: int | None
    unmet: tuple[str, ...] = ()
    rank: int | None = None


def compare(rows: Sequence[Mapping[str, Any]], objective: Objective, constraints: Constraints) -> list[Entry]:
    """The table of a group, in the order of its jobs.

    Those that keep the constraints are ranked by the objective, then by the other of latency and
    memory, then by their order.
    """
    entries = [_entry(row, options) for row, options in zip(rows, varied(rows))]
    entries = [replace(entry, unmet=tuple(_unmet(entry, constraints))) for entry in entries]
    allowed = [i for i, entry in enumerate(entries) if entry.state == "succeeded" and not entry.unmet]
    allowed.sort(key=lambda i: _merit(entries[i], objective))
    for rank, i in enumerate(allowed, 1):
        entries[i] = replace(entries[i], rank=rank)
    return entries


def best_by_target(entries: Sequence[Entry]) -> dict[str, str]:
    """The best job of each target that has one."""
    ranked = sorted((e for e in entries if e.rank is not None), key=lambda e: e.rank or 0)
    found: dict[str, str] = {}
    for entry in ranked:
        found.setdefault(entry.target, entry.job)
    return found


def varied(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Options of each job that are not the same in all."""
    options = [row["request"].get("options", {}) for row in rows]
    names = [
        name
        for name in (options[0] if options else {})
        if any(each.get(name) != options[0][name] for each in options)
    ]
    return [{name: each.get(name) for name in names} for each in options]


def _entry(row: Mapping[str, Any], options: Mapping[str, Any]) -> Entry:
    summary = row["summary"] or {}
    verification = summary.get("verification") or {}
    differences = [
        output["max_rel"] for output in verification.get("outputs", ()) if output.get("max_rel") is not None
    ]
    return Entry(
        job=row["id"],
        target=row["target"],
        options=options,
        state=row["state"],
        code=row["code"],
        detail=row["detail"],
        seconds=(summary.get("latency") or {}).get("after"),
        timings=summary.get("timings"),
        peak_bytes=(summary.get("peak_bytes") or {}).get("after"),
        beside=(summary.get("comparison") or {}).get("sentence"),
        difference=max(differences, default=None),
        fallbacks=(summary.get("steps") or {}).get("fallback"),
    )


def _unmet(entry: Entry, constraints: Constraints) -> list[str]:
    if entry.state not in TERMINAL:
        return []
    if entry.state != "succeeded":
        return [f"{entry.state}: {entry.detail or entry.code or ''}".rstrip(": ")]
    rows = (
        ("latency", entry.seconds, constraints.seconds, "s"),
        ("peak memory", entry.peak_bytes, constraints.peak_bytes, "byte"),
        ("difference", entry.difference, constraints.difference, "of an output's maximum"),
    )
    broken = []
    for name, found, most, unit in rows:
        if most is None:
            continue
        if found is None:
            broken.append(f"{name} is not known, at most {most:g} {unit} are allowed")
        elif found > most:
            broken.append(f"{name} is {found:g} {unit}, at most {most:g} {unit} are allowed")
    return broken


def _merit(entry: Entry, objective: Objective) -> tuple[float, float]:
    """Smaller is better; what is not known comes last."""
    seconds = float("inf") if entry.seconds is None else entry.seconds
    nbytes = float("inf") if entry.peak_bytes is None else float(entry.peak_bytes)
    return (seconds, nbytes) if objective == "latency" else (nbytes, seconds)
