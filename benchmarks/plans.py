"""`make bench-memory`: what the planner makes of whole models, nothing executed.

`offsets`: every model of the benchmark list and of the shared data, its default plan: peak, the lower
bound (slices of a Concat live from their own write; above live bytes where no placement meets these), and
seconds of this thread for finding the offsets alone, warm, median of several. `orders`: plans under
`prefer: memory`, the bytes of their activations, and the arena that no other order of the same steps stays
below. `inplace`: the residual networks of the channel sweep with and without results in the place of
operands.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from app.engine.buffers import placement
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from benchmarks import models
from benchmarks.row import recorded_inputs

ORDERED = ("darts_v2", "ppocrv4_det", "light_shufflenet", "randwire")
PARTS = ("offsets", "orders", "inplace")
Row = dict[str, Any]


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.plans", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS, choices=PARTS)
    parser.add_argument("--names", nargs="+", help="models instead of the list of each part")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--repeats", type=int, default=9, help="of finding offsets")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    console, figures = Console(width=150), {}
    with TemporaryDirectory() as scratch:
        for part in arguments.parts:
            rows = []
            for name in arguments.names or listed(part, arguments.models):
                found = models.find(name, arguments.models, Path(scratch))
                if found.path is None:
                    console.print(f"{name}: {found.reason}", markup=False)
                    continue
                for row in MEASURES[part](found.path, arguments.repeats):
                    rows.append({"model": found.name, **row})
                    console.print(f"{part} {rows[-1]}", markup=False, highlight=False)
            console.print(printed(part, rows))
            figures[part] = rows
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))


def listed(part: str, folders: Sequence[Path]) -> tuple[str, ...]:
    """The models of a part; of one that is there twice, the first."""
    if part == "orders":
        return ORDERED
    if part == "inplace":
        return tuple(str(path) for path in sorted(models.SWEEP.glob("*.onnx")))
    shared = (path.stem for folder in folders[:1] for path in sorted(folder.glob("*.onnx")))
    return tuple(dict.fromkeys((*models.DEFAULT, *shared)))


def planned(path: Path, options: Options) -> Program:
    """The program of a model with the shapes of its first recorded case, by predicted times."""
    case = recorded_inputs(path)
    bindings = models.bindings_of(case) if case else Bindings()
    compilation = session.canonical(load(path), host(), options, bindings, load_registry())
    return session.planned(compilation, options)


def offsets(path: Path, repeats: int) -> list[Row]:
    """How long the offsets of the default plan take, and whether they are at their bound."""
    program = planned(path, Options())
    seconds = []
    # The buffers that were placed, whole values or parts of them.
    ordered = program.compilation.plan.require("buffers")
    storage, chosen = ordered.assignment, ordered.solution
    for _ in range(repeats + 1):
        started = time.thread_time()
        found = placement.offsets(storage)
        seconds.append(time.thread_time() - started)
        assert found.offsets == chosen.offsets
    count, taken = len(storage.problem.buffers), statistics.median(seconds[1:])
    return [
        {
            "buffers": count,
            "peak": found.peak,
            "lower bound": found.lower_bound,
            "proved": found.proved,
            "method": found.method,
            "ms": 1e3 * taken,
            "ms per 1,000": 1e6 * taken / max(count, 1),
        }
    ]


def orders(path: Path, _repeats: int) -> list[Row]:
    """The plan that needs least memory; `bound` is what no order of its steps stays below."""
    started = time.thread_time()
    program = planned(path, Options(prefer="memory"))
    return [
        {
            "steps": len(program.steps),
            **_bytes(program),
            "bound": program.compilation.order_bound,
            "seconds": time.thread_time() - started,
        }
    ]


def inplace(path: Path, _repeats: int) -> list[Row]:
    """The default plan with and without results in the place of operands."""
    return [{"inplace": shared, **_bytes(planned(path, Options(inplace=shared)))} for shared in (True, False)]


def _bytes(program: Program) -> Row:
    return {
        "activations": program.placement.activations,
        "arena": program.placement.solution.peak,
        "proved": program.placement.solution.proved,
    }


MEASURES = {"offsets": offsets, "orders": orders, "inplace": inplace}


def printed(part: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of a part."""
    shown = Table(title=part)
    for key in rows[0] if rows else ("model",):
        shown.add_column(key, justify="left" if key in ("model", "method") else "right")
    for row in rows:
        shown.add_row(*(_cell(value) for value in row.values()))
    return shown


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


if __name__ == "__main__":
    main()
