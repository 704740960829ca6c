"""`make bench-rows`: bytes of models if their groups ran in strips of rows, predicted and not executed.

Beside the arena of the plan: the best cuts with rows in rings, the same with each row placed by itself (and
the table of addresses that it needs), and with `--bound` the bytes that no order of rows without recompute
stays below. Weights, inputs and outputs count nowhere there. With `--store` further lines for each model: the
plan within the capacity whose weights, inputs, outputs and spilled values come from a larger memory, and its
predicted time beside that of the plan as it is. Every placement is replayed by the checker.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.planning.streams.banked import banked
from app.engine.planning.streams.forecast import Forecast, forecast
from app.engine.types import target as targets
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings, Options
from benchmarks import models
from benchmarks.arena import NAMES


def main(line: Sequence[str] | None = None) -> None:
    """Plan and print a line for each model."""
    parser = argparse.ArgumentParser(prog="benchmarks.rows", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--target", default="", help="a built-in target; this machine by default")
    parser.add_argument("--capacity", type=int, default=256 * 1024, help="bytes that are asked to suffice")
    parser.add_argument("--store", action="store_true", help="plans beside a larger memory too")
    parser.add_argument("--bound", action="store_true", help="the lower bound too, which takes longer")
    parser.add_argument("--barriers", action="store_true", help="groups that read all rows first, and why")
    arguments = parser.parse_args(line)
    print(
        f"{'byte, not executed':22} {'plan':>10} {'rings':>10} {'rows':>10} {'table':>7} {'bound':>10}  fits"
    )
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names:
            found = models.find(name, arguments.models, Path(scratch))
            if found.path is None:
                print(f"{name:22} {found.reason}")
                continue
            try:
                started = time.perf_counter()
                program = planned(found.path, arguments.target)
                planning = time.perf_counter() - started
                rows = forecast(program, bound=arguments.bound)
            except EngineError as error:
                print(f"{name:22} {error}")
                continue
            seconds = time.perf_counter() - started - planning
            print(
                f"{_line(found.name, rows, arguments.capacity)}  {planning:.1f} + {seconds:.1f} s", flush=True
            )
            if arguments.store:
                print(_beside_a_store(program, arguments.capacity), end="", flush=True)
            for group, reason in rows.barriers if arguments.barriers else ():
                print(f"    {group}: {reason}")


def planned(path: Path, target: str) -> Program:
    """The plan that prefers memory, by predicted times, with the shapes of the first recorded case."""
    machine = targets.find(target) if target else targets.host()
    bindings, options = Bindings(), Options(prefer="memory")
    if path.with_suffix(".io.npz").exists():
        bindings = models.bindings_of(models.recorded(path.parent, path.stem)[0][0])
    loaded = expanded(load(path), bindings)
    return session.planned(session.canonical(loaded, machine, options, bindings, load_registry()), options)


def _beside_a_store(program: Program, capacity: int) -> str:
    """The plan within the capacity, or why there is none, and the time of the plan as it is."""
    try:
        found = str(banked(program, capacity, program.compilation.target.store.bandwidth))
    except EngineError as error:
        found = f"{error}\n"
    return f"{found}{program.seconds * 1e3:12.3f} ms predicted of the plan as it is\n"


def _line(name: str, rows: Forecast, capacity: int) -> str:
    before, after = rows.whole <= capacity, rows.least <= capacity
    fits = "whole" if before else "in rows" if after else "no"
    bound = rows.lower_bound or "-"
    return (
        f"{name:22} {rows.whole:10} {rows.rings:10} {rows.rows:10} {rows.table_bytes:7} {bound:>10}  {fits}"
    )


if __name__ == "__main__":
    main()
