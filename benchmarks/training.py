"""`make bench-training`: memory of training graphs, ours beside MXNet's own plan of the same network.

Networks are symbols of MXNet 1.9.1 (`benchmarks.mxnet_networks`), bound for training there and differentiated
here. All columns count what lies between the arguments and the results of a training step: activations,
gradients of activations, and what is kept for backward. Parameters, their gradients, inputs and running
statistics have memory of their own on both sides and are not counted. Ours is the whole arena, workspaces,
padding and alignment included; MXNet's is the total of its pool in whole MiB, rounded down, without the
temporary space of operators.
`without in-place` is our plan where no result takes the bytes of an operand; `order` is how far the peak may
be above that of the best order of the steps; `gradients` are the bytes of the outputs that hold them,
row_sparse ones at their bounds. `--smallest` plans with `prefer: memory` too and tells what it costs in
predicted time; `--measure` runs both plans in turn and tells it in measured time, the least of each.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.training import training
from app.engine.gradient import marks
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report.onnx import export
from app.engine.report.report import order_json
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import samples
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from benchmarks import models

NETWORKS = ("resnet18", "mobilenet_v2", "transformer", "lstm", "dlrm", "dlrm_row_sparse", "unet")
MXNET = models.ROOT / "build" / "mxnet" / "bin" / "python"
COLUMNS = (
    "network", "nodes", "steps", "ours", "offsets", "order", "without in-place", "MXNet 1.9.1", "gradients",
    "row_sparse", "seconds", "prefer memory", "again", "predicted", "measured",
)  # fmt: skip
RUNS = 5  # of each plan, in turn
PLANNED = Options(autotune=False, choose="first")
Row = dict[str, Any]


def main(line: Sequence[str] | None = None) -> int:
    """Plan and print; the exit code is 1 where MXNet's plan is smaller than ours, or ours invalid."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NETWORKS)
    parser.add_argument("--symbols", type=Path, help="folder with what `benchmarks.mxnet_networks` wrote")
    parser.add_argument("--smallest", action="store_true", help="plan with `prefer: memory` too: minutes")
    parser.add_argument("--measure", action="store_true", help="run the plans of --smallest beside ours")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    console, rows = Console(width=170), []
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.symbols or Path(scratch)
        if arguments.symbols is None:
            command = [MXNET, "-W", "ignore", "-m", "benchmarks.mxnet_networks", folder, *arguments.names]
            subprocess.run(command, check=True, cwd=models.ROOT, stderr=subprocess.DEVNULL)
        for name in arguments.names:
            rows.append(
                measured(
                    folder, name, Path(scratch), arguments.smallest or arguments.measure, arguments.measure
                )
            )
            console.print(f"{rows[-1]}", markup=False, highlight=False)
    console.print(printed(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))
    return int(any(row["ours"] > row["mxnet"] or row["ours"] > row["without in-place"] for row in rows))


def measured(folder: Path, name: str, scratch: Path, smallest: bool, run: bool) -> Row:
    """The figures of one network; sizes in bytes, times in seconds."""
    told = json.loads((folder / f"{name}.json").read_text())
    started = time.perf_counter()
    path = training_file(folder / f"{name}-symbol.json", told, scratch)
    compilation = session.canonical(load(path), host(), PLANNED, Bindings(), load_registry())
    program = session.planned(compilation, PLANNED)
    seconds = time.perf_counter() - started
    apart = session.planned(compilation, dataclasses.replace(PLANNED, inplace=False))
    least = session.planned(compilation, dataclasses.replace(PLANNED, prefer="memory")) if smallest else None
    solution, order = program.placement.solution, order_json(program.compilation)
    gradients = [v for v in program.compilation.graph.outputs if v.name in marks.gradients(compilation.model)]
    stored = [value_bytes(v, program.compilation) for v in gradients]
    storage = program.compilation.plan.require("storage")
    return {
        "network": name,
        "nodes": len(compilation.graph),
        "steps": len(program.steps),
        "ours": program.arena_bytes,
        "lower bound": solution.lower_bound,
        "gap": solution.gap,
        "proved": solution.proved,
        "without in-place": apart.arena_bytes,
        "order bound": order["lower_bound"],
        "order gap": order["gap"],
        "order proved": order["proved"],
        "mxnet": told["planned_mib"] * 2**20,
        "gradients": sum(stored),
        "row_sparse": sum(storage[v].kind == "row_sparse" for v in gradients),
        "mxnet row_sparse": len(told["row_sparse"]),
        "seconds": seconds,
        "predicted": program.seconds,
        "prefer memory": None if least is None else recomputed(program, least),
        "measured": ran(program, least) if least is not None and run else None,
    }


def recomputed(program: Program, least: Program) -> Row:
    """The smallest plan beside the fastest: bytes, nodes computed again, predicted time."""
    again = least.compilation.concessions.recompute
    return {
        "peak": least.arena_bytes,
        "again": sum(len(a.nodes) for a in again),
        "predicted": least.seconds,
        "ratio": least.seconds / program.seconds,
    }


def ran(program: Program, least: Program) -> Row:
    """The least measured time of both plans, run in turn on the same inputs in this process."""
    compiler = Compiler(models.ROOT / "build" / "kernels")
    inputs = samples(program.compilation.graph.inputs)
    times: list[list[float]] = [[], []]
    executors = [Executor(p, compiler) for p in (program, least)]
    for executor in executors:
        executor.feed(inputs)
        executor.step()
    for _ in range(RUNS):
        for executor, found in zip(executors, times):
            started = time.perf_counter()
            executor.step()
            found.append(time.perf_counter() - started)
    for executor in executors:
        executor.close()
    ours, smaller = map(min, times)
    return {"ours": ours, "prefer memory": smaller, "ratio": smaller / ours}


def training_file(symbol: Path, told: Row, scratch: Path) -> Path:
    """The training graph of a symbol by its parameters; statistics are those of the batch, as in MXNet.

    Parameters are inputs: they change from step to step, so that no kernel may keep them packed.
    """
    loaded = load(symbol, external={"parameters": symbol.with_name(f"{symbol.stem[:-7]}-0000.params")})
    main = loaded.model.graph
    for node in main:
        if node.op_type == "BatchNormalization" and not node.domain:
            node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
            node.resize_outputs(3)
            for index, output in enumerate(node.outputs[1:]):
                output.name = f"{node.name}.statistics{index}"
                output.type = ir.TensorType(graph.operand(node, 0).dtype or ir.DataType.FLOAT)
    path = scratch / "forward.onnx"
    export(loaded.model, path)
    (loss,) = (v.name or "" for v in main.outputs)
    given = {v.name for v in main.inputs}
    shapes = {n: tuple(s) for n, s in told["shapes"].items() if n in given}
    made = training(path, loss, told["parameters"], Bindings(shapes=shapes))
    for name in told["parameters"]:
        value = made.model.graph.initializers.pop(name)
        value.const_value = None
        made.model.graph.inputs.append(value)
    target = scratch / f"{symbol.stem}.onnx"
    export(made.model, target)
    return target


def printed(rows: Sequence[Row]) -> Table:
    """All rows as a table, sizes in MiB."""
    table = Table(title="peak of a training step, MiB")
    for column in COLUMNS:
        first = column == "network"
        table.add_column(column, justify="left" if first else "right", no_wrap=first)
    for row in rows:
        table.add_row(
            row["network"],
            str(row["nodes"]),
            str(row["steps"]),
            _mib(row["ours"]),
            "proved" if row["proved"] else f"{row['gap']:.2%}",
            "proved" if row["order proved"] else f"{row['order gap']:.2%}",
            _mib(row["without in-place"]),
            f"{row['mxnet'] / 2**20:.0f}",
            _mib(row["gradients"]),
            str(row["row_sparse"] or "-"),
            f"{row['seconds']:.1f}",
            *_smallest(row),
        )
    return table


def _smallest(row: Row) -> tuple[str, ...]:
    """Cells of the plan with the smallest peak: MiB, nodes computed again, its times as shares of ours."""
    least, taken = row["prefer memory"], row["measured"]
    if least is None:
        return ("-",) * 4
    cost = "-" if taken is None else f"{taken['ratio']:.3f}x"
    return _mib(least["peak"]), str(least["again"]), f"{least['ratio']:.3f}x", cost


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.2f}"


if __name__ == "__main__":
    sys.exit(main())
