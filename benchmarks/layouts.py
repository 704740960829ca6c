"""`make bench-layouts`: the joint choice of layouts beside peers, beside fixed policies, and what it costs.

`sweep`: residual networks of 48 to 64 channels, whose best block and padding differ by width, beside
onnxruntime and OpenVINO. `policies`: every model planned with the joint choice, all row-major, all
blocked where possible, and every group by its own cheapest row; the programs take turns in one
process. `pipeline`: seconds of the passes over generated graphs, nothing measured on the way.
"""

import argparse
import gc
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from app.engine import graph, pipeline, program, session
from app.engine.benchmark import measure_in_turn, pinned
from app.engine.errors import EngineError
from app.engine.execute import Executor
from app.engine.inputs import tensors
from app.engine.layouts.choice import Policy
from app.engine.load import Loaded, load
from app.engine.options import Bindings, Options
from app.engine.passes.infer_layouts import InferLayouts
from app.engine.plan import Compilation
from app.engine.program import Program
from app.engine.registry import load as load_registry
from app.engine.target import host
from app.kernels.cpu.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.latency import in_own_process
from benchmarks.peers import ONNXRUNTIME, OPENVINO_F32
from benchmarks.row import OURS, Request

WIDTHS = (48, 50, 56, 60, 62, 64)
SWEEP = models.ROOT.parent / "shared" / "data" / "channel_sweep"
SIZES = (1_500, 3_000, 6_000, 12_000, 25_000, 50_000)  # nodes
POLICIES: tuple[Policy, ...] = get_args(Policy)
PARTS = ("sweep", "policies", "pipeline")


def arguments_of(line: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.layouts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--names", nargs="*", default=models.DEFAULT, help="models of `policies`")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--sweep", type=Path, default=SWEEP, help="folder of small_48.onnx ...")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="nodes of `pipeline`'s graphs")
    parser.add_argument("--seconds", type=float, default=4.0, help="per model and program")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    found = parser.parse_args(line)
    unknown = set(found.parts) - set(PARTS)
    if unknown:
        parser.error(f"expected parts of {', '.join(PARTS)}, found {', '.join(sorted(unknown))}")
    return found


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments, console = arguments_of(line), Console(width=150)
    kernels = Settings.from_environment().data.absolute() / "kernels"
    figures: dict[str, Any] = {"machine": host().cpu_model}
    if "sweep" in arguments.parts:
        figures["sweep"] = [sweep_row(arguments.sweep, c, arguments.seconds, kernels) for c in WIDTHS]
        console.print(sweep_table(figures["sweep"]))
    if "policies" in arguments.parts:
        figures["policies"] = []
        with tempfile.TemporaryDirectory() as scratch:
            for name in arguments.names:
                found = models.find(name, arguments.models, Path(scratch))
                row = found.reason if found.path is None else apart(found.path, arguments.seconds, kernels)
                figures["policies"].append(
                    {"model": name, **(row if isinstance(row, dict) else {"refused": row})}
                )
                console.print(f"{name}: {told(figures['policies'][-1])}", markup=False, highlight=False)
        console.print(policy_table(figures["policies"]))
    if "pipeline" in arguments.parts:
        pipeline_row(300)  # imports, caches
        figures["pipeline"] = []
        for nodes in arguments.sizes:
            figures["pipeline"].append(pipeline_row(nodes))
            console.print(f"{nodes:,} nodes: {figures['pipeline'][-1]['seconds']:.2f} s", highlight=False)
        console.print(pipeline_table(figures["pipeline"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


# Widths.


def sweep_row(folder: Path, channels: int, seconds: float, kernels: Path) -> dict[str, Any]:
    """Times of all runtimes at one width, and how our images lie."""
    path = folder / f"small_{channels}.onnx"
    found = in_own_process(Request(path, 1, seconds, kernels))
    if isinstance(found, str):
        return {"channels": channels, "refused": found}
    return {"channels": channels, "layouts": images(path, kernels, channels), **found}


def images(path: Path, kernels: Path, channels: int) -> list[str]:
    """Layouts of the values that have this many channels, with what their blocks are padded to."""
    options = Options()
    started = session.canonical(load(path), host(), options, Bindings(), load_registry())
    found = session.planned(session.tuned(started, options, Compiler(kernels)), options)
    layouts = found.compilation.plan.layout
    assert layouts is not None
    shown: dict[str, None] = {}
    for value, layout in layouts.items():
        shape = graph.shape(value)
        if shape is None or len(shape) != 4 or shape[1] != channels or graph.is_constant(value):
            continue
        padded = layout.padded_shape(shape)[1]
        shown[f"{layout}" + (f", {padded - channels} lanes padded" if padded > channels else "")] = None
    return list(shown)


def sweep_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line per width."""
    table = Table(title="channel sweep, 1 thread, median ms; ratio: fastest of the others over ours")
    for heading in ("channels", OURS, ONNXRUNTIME, OPENVINO_F32, "ratio", "layouts of images"):
        table.add_column(heading, justify="left" if heading.startswith("layouts") else "right")
    for row in rows:
        if "refused" in row and "milliseconds" not in row:
            table.add_row(str(row["channels"]), row["refused"])
            continue
        times = [row["milliseconds"].get(name) for name in (OURS, ONNXRUNTIME, OPENVINO_F32)]
        cells = ["-" if t is None else f"{t:.2f}" for t in times]
        table.add_row(str(row["channels"]), *cells, f"{row['ratio']:.2f}x", "; ".join(row["layouts"]))
    return table


# Policies.


@dataclass(frozen=True, slots=True)
class Planned:
    """A program and the seconds that its layouts were chosen for."""

    program: Program
    seconds: float

    @property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """What is run: programs of the same steps are the same."""
        return tuple((s.group.name, s.choice.implementation.name) for s in self.program.steps)


def planned(tuned: Compilation, policy: Policy) -> Planned:
    """The program of a canonical graph with a policy of layouts."""
    started = replace(tuned, model=tuned.model.clone())
    passes = [InferLayouts(policy) if isinstance(p, InferLayouts) else p for p in session.back(tuned.options)]
    done = pipeline.run(started, passes)
    implementation = done.plan.implementation
    assert implementation is not None
    return Planned(program.build(done), sum(choice.seconds for choice in implementation.values()))


def apart(path: Path, seconds: float, kernels: Path) -> dict[str, Any] | str:
    """`policy_row` in a process of its own, or why there is none."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(policy_row, path, seconds, kernels).result()


def policy_row(path: Path, seconds: float, kernels: Path) -> dict[str, Any] | str:
    """Median milliseconds of one model with each policy, interleaved; equal programs are measured once."""
    options = Options()
    case = models.recorded(path.parent, path.stem)[0][0] if path.with_suffix(".io.npz").exists() else None
    bindings = models.bindings_of(case) if case else Bindings()
    compiler = Compiler(kernels)
    try:
        started = session.canonical(load(path), host(), options, bindings, load_registry())
        tuned = session.tuned(started, options, compiler)
        programs = {policy: planned(tuned, policy) for policy in POLICIES}
    except EngineError as cause:
        return f"{type(cause).__name__}: {cause}"
    inputs = case or {k: np.asarray(v) for k, v in tensors(tuned, bindings, seed=0).items()}
    fed = {v.name or "": inputs[v.name or ""] for v in tuned.graph.inputs}
    different = {found.steps: found for found in programs.values()}
    with pinned(1) as cores:
        executors = {s: Executor(found.program, compiler, cores=cores) for s, found in different.items()}
        works = [lambda e=e: e.run(fed) for e in executors.values()]
        medians = [s.p50 * 1e3 for s in measure_in_turn(works, seconds, rounds=9)]
    times = dict(zip(executors, medians, strict=True))
    return {
        "milliseconds": {policy: times[found.steps] for policy, found in programs.items()},
        "chosen_for": {policy: found.seconds * 1e3 for policy, found in programs.items()},
        "conversions": {
            policy: sum(s.group.op == "ChangeLayout" for s in found.program.steps)
            for policy, found in programs.items()
        },
        "notes": [n for n in programs["joint"].program.compilation.notes if n.startswith("layouts:")],
    }


def told(row: dict[str, Any]) -> str:
    """One line."""
    if "milliseconds" not in row:
        return str(row["refused"])
    return ", ".join(f"{policy} {t:.3f} ms" for policy, t in row["milliseconds"].items())


def policy_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line per model: times, conversions, and the best fixed policy over the joint choice."""
    table = Table(title="layout policies, 1 thread, median ms (conversions)")
    table.add_column("model")
    for heading in (*POLICIES, "best fixed / joint", "gap of the choice"):
        table.add_column(heading, justify="right")
    for row in rows:
        if "milliseconds" not in row:
            continue
        times, conversions = row["milliseconds"], row["conversions"]
        best = min(times[p] for p in POLICIES if p != "joint")
        gaps = [note.split("at most ")[1].split()[0] for note in row["notes"]]
        table.add_row(
            row["model"],
            *(f"{times[p]:.3f} ({conversions[p]})" for p in POLICIES),
            f"{best / times['joint']:.3f}x",
            *(gaps or ["-"]),
        )
    return table


# The passes themselves.


def residual_network(nodes: int) -> ir.Model:
    """A graph of `nodes` nodes: convolution, normalization, residual Add, Relu, again and again."""
    random = np.random.default_rng(0)
    channels, kind = 8, ir.TensorType(ir.DataType.FLOAT)
    weights: list[ir.Value] = []

    def weight(*shape: int) -> ir.Value:
        array = random.uniform(0.5, 1.0, shape).astype(np.float32)
        name = f"w{len(weights)}"
        weights.append(
            ir.Value(name=name, type=kind, shape=ir.Shape(shape), const_value=ir.tensor(array, name=name))
        )
        return weights[-1]

    x = ir.Value(name="x", type=kind, shape=ir.Shape([1, channels, 16, 16]))
    made: list[ir.Node] = []

    def node(op: str, *inputs: ir.Value) -> ir.Value:
        made.append(ir.Node("", op, inputs, name=f"n{len(made)}"))
        made[-1].outputs[0].name = f"v{len(made)}"
        return made[-1].outputs[0]

    last = skipped = x
    for i in range(nodes):
        match i % 6:
            case 0 | 3:
                skipped = last if i % 6 == 0 else skipped
                last = node("Conv", last, weight(channels, channels, 1, 1))
            case 1:
                last = node("BatchNormalization", last, *(weight(channels) for _ in range(4)))
            case 4:
                last = node("Add", last, skipped)
            case _:
                last = node("Relu", last)
    last.type, last.shape = kind, x.shape
    main = ir.Graph(
        [x], [last], nodes=made, initializers=weights, opset_imports={"": 21}, name="residual_network"
    )
    return ir.Model(main, ir_version=10)


def pipeline_row(nodes: int) -> dict[str, Any]:
    """Seconds of every pass over a generated graph, by the processor's clock of this process."""
    options = Options(autotune=False)
    registry, machine = load_registry(), host()
    loaded = Loaded(residual_network(nodes), (), nodes)
    gc.collect()
    started = time.process_time()
    compilation = session.canonical(loaded, machine, options, Bindings(), registry)
    done = pipeline.run(replace(compilation, model=compilation.model.clone()), session.back(options))
    return {
        "nodes": nodes,
        "seconds": time.process_time() - started,
        "passes": {record.name: record.seconds for record in done.records},
    }


def pipeline_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line per size: seconds in all and of each pass, and microseconds a node."""
    table = Table(title="passes over residual networks, seconds, nothing measured on the way")
    for heading in ("nodes", "seconds", "us a node", *rows[0]["passes"]):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row['nodes']:,}",
            f"{row['seconds']:.2f}",
            f"{row['seconds'] / row['nodes'] * 1e6:.0f}",
            *(f"{seconds:.2f}" for seconds in row["passes"].values()),
        )
    return table


if __name__ == "__main__":
    main()
