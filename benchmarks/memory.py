"""`make bench-memory`: offsets for recorded buffers, and the validator against planted overlaps.

Seconds are those of the calling thread, of all methods with their validation, warm.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from app.engine.memory import csv_table, portfolio
from app.engine.memory.problem import Buffer, Problem, Solution, lower_bound, validate
from benchmarks import models

DATA = models.ROOT.parent / "shared" / "data" / "memory"
COLUMNS = ("instance", "buffers", "capacity", "peak", "lower bound", "proved", "method", "nodes", "seconds")


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="CSV files; NAME.CAPACITY.csv states a capacity")
    parser.add_argument("--repeats", type=int, default=3, help="of each, the least seconds count")
    parser.add_argument("--plans", type=int, default=1_000_000, help="random plans for the validator")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    console = Console(width=150)
    files = arguments.files or sorted(DATA.glob("*.csv"), key=lambda f: f.stat().st_size)
    rows = [measure(path, arguments.repeats) for path in files]
    console.print(printed(rows))
    if arguments.plans:
        planted, missed = plant(arguments.plans)
        console.print(
            f"validator: {arguments.plans} random plans, {planted} with an overlap, {missed} missed"
        )
        assert not missed
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def measure(path: Path, repeats: int) -> dict[str, Any]:
    stated = path.name.split(".")[-2]
    capacity = int(stated) if stated.isdecimal() else None
    problem = csv_table.read(path.read_text(), capacity)
    portfolio.solve(problem)
    seconds = []
    for _ in range(repeats):
        started = time.thread_time()
        solution = portfolio.solve(problem)
        seconds.append(time.thread_time() - started)
    return {
        "instance": path.stem,
        "buffers": len(problem.buffers),
        "capacity": capacity,
        "peak": solution.peak,
        "lower bound": solution.lower_bound,
        "gap": solution.gap,
        "proved": solution.proved,
        "method": solution.method,
        "nodes": solution.nodes,
        "seconds": min(seconds),
    }


def printed(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(*COLUMNS)
    for row in rows:
        cells = [row[c] for c in COLUMNS[:-1]]
        shown.add_row(*("-" if c is None else str(c) for c in cells), f"{row['seconds']:.4f}")
    return shown


def plant(plans: int, seed: int = 0) -> tuple[int, int]:
    """Random small plans through the validator: how many have an overlap, and how many of those it misses.

    Whether two buffers overlap is told by comparing all pairs, which the validator does not do.
    A plan without overlap that is refused is counted as missed too.
    """
    random = np.random.default_rng(seed)
    planted = missed = 0
    for _ in range(plans):
        n = int(random.integers(2, 7))
        lower = random.integers(0, 6, n)
        upper = lower + random.integers(1, 4, n)
        size, offset = random.integers(1, 5, n), random.integers(0, 14, n)
        end = offset + size
        shares = (lower[:, None] < upper) & (lower < upper[:, None]) & (offset[:, None] < end)
        overlap = bool(np.triu(shares & (offset < end[:, None]), 1).any())
        ids = [str(i) for i in range(n)]
        rows = zip(ids, lower.tolist(), upper.tolist(), size.tolist(), strict=True)
        problem = Problem(tuple(Buffer(*row, alignment=1) for row in rows))
        peak, bound = int(end.max()), lower_bound(problem)
        solution = Solution(dict(zip(ids, offset.tolist(), strict=True)), peak, 0, False, "random")
        planted += overlap
        try:
            validate(problem, replace(solution, lower_bound=min(bound, peak)))
            missed += overlap
        except ValueError:
            missed += not overlap
    return planted, missed


if __name__ == "__main__":
    main()
