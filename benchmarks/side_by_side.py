"""Latency of this tree beside that of another checkout, such as the commit before a change, in one run.

    python -m benchmarks.side_by_side ../old resnet50 mnist_8

Each checkout runs the model in a process of its own on the same cores. The two take short turns, in
alternating order; the ratio is taken turn by turn, so that the machine's speed, which drifts, cancels.
The other checkout needs `benchmarks/row.py`; each keeps its compiled kernels in its own `data/kernels`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import models

TURN = 30e-3  # seconds; long enough that a turn is not the wake-up of its process
MIN_ROUNDS = 15
# Runs in the other checkout, whatever its version: it uses only names that `benchmarks.row` has.
WORKER = """
import sys, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from benchmarks import models, row
path, threads, kernels = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
options = replace(row.Options(), threads=threads)
case = row.recorded_inputs(path)
bindings = models.bindings_of(case) if case else row.Bindings()
compilation = row.session.canonical(row.load(path), row.host(), options, bindings, row.load_registry())
inputs = case or {k: np.asarray(v) for k, v in row.tensors(compilation, bindings, seed=0).items()}
free = {v.name for v in compilation.graph.inputs}
fed = {k: v for k, v in inputs.items() if k in free}
compiler = row.Compiler(kernels)
with row.pinned(threads) as cores:
    compilation = row.session.tuned(compilation, options, compiler)
    executor = row.Executor(row.session.planned(compilation, options), compiler, cores=cores)
    for _ in range(3):
        executor.run(fed)
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        started = time.perf_counter()
        for _ in range(count):
            executor.run(fed)
        print((time.perf_counter() - started) / count, flush=True)
"""


class Side:
    """One checkout with one model, waiting for its turns."""

    def __init__(self, root: Path, path: Path, threads: int) -> None:
        command = [sys.executable, "-c", WORKER, str(path), str(threads), str(root / "data" / "kernels")]
        # `-c` puts the folder it runs in before all other places of modules.
        self._process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._output.readline() != "ready\n":
            raise SystemExit(f"{root}: {path.name} does not run there, see above")

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def turn(self, count: int) -> float:
        """Seconds of one of `count` runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        return float(self._output.readline())

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def compared(other: Path, path: Path, threads: int, seconds: float) -> np.ndarray:
    """float64[rounds, 2]: seconds of one run, of the other checkout and of this."""
    sides = [Side(other.resolve(), path, threads), Side(Path.cwd(), path, threads)]
    try:
        count = max(int(TURN / max(side.turn(3) for side in sides)), 1)
        rounds = max(int(seconds / (2 * count * sides[0].turn(count))), MIN_ROUNDS)
        taken = np.zeros((rounds, 2))
        for i in range(rounds):
            for side in (0, 1)[:: -1 if i % 2 else 1]:
                sides[side].turn(1)  # its caches are warm again
                taken[i, side] = sides[side].turn(count)
        return taken
    finally:
        for side in sides:
            side.close()


def main() -> None:
    """Measure and print the table; with --json write it."""
    parser = argparse.ArgumentParser(prog="benchmarks.side_by_side", description=__doc__)
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("names", nargs="*", default=models.DEFAULT)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="per model, both together")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    columns = "model", "other ms", "this ms", "speed", "quartiles"
    table = Table(*columns, title=f"this beside {arguments.other}")
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names:
            found = models.find(name, models.FOLDERS, Path(scratch))
            if found.path is None:
                print(f"{name}: not found", file=sys.stderr)
                continue
            taken = compared(arguments.other, found.path, arguments.threads, arguments.seconds)
            ratio = np.quantile(taken[:, 0] / taken[:, 1], (0.25, 0.5, 0.75))
            other, this = np.median(taken, axis=0) * 1e3
            rows[name] = {"other": other, "this": this, "speed": ratio[1], "rounds": len(taken)}
            cells = f"{other:.4g}", f"{this:.4g}", f"{ratio[1]:.3f}x", f"{ratio[0]:.3f} to {ratio[2]:.3f}"
            print(name, *cells, flush=True)
            table.add_row(name, *cells)
    Console().print(table)
    if rows:
        mean = np.exp(np.mean([np.log(row["speed"]) for row in rows.values()]))
        print(f"geometric mean of the speed beside the other: {mean:.3f}x, {len(rows)} models")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
