"""`make bench-layouts`: the joint choice of layouts beside peers, beside fixed policies, and what it costs.

`sweep`: residual networks of 48 to 64 channels, whose best block and padding differ by width, beside
onnxruntime and OpenVINO. `policies`: every model planned with the joint choice, all row-major, all
blocked or all channels last where possible, and every group by its own cheapest row; the programs take
turns in one process, run by run, and a policy is compared with the joint choice by the median of the
ratios of neighbouring runs. `pipeline`: seconds of the passes over generated graphs, nothing measured on
the way.
"""

import argparse
import gc
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx_ir as ir
from rich.console import Console
from rich.table import Table

from app.engine.core import graph, pipeline, program
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.layouts.choice import Policy
from app.engine.model.load import Loaded, load
from app.engine.passes.infer_layouts import InferLayouts
from app.engine.planning import session
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import tensors
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.latency import in_own_process
from benchmarks.paired import in_turn, ratios
from benchmarks.peers import ONNXRUNTIME, OPENVINO_F32
from benchmarks.row import OURS, Request

WIDTHS = (48, 50, 56, 60, 62, 64)
SIZES = (1_500, 5_000, 12_000, 50_000)  # nodes
NOISE = 0.03  # of a ratio; where a policy seems faster by less, it is measured again
POLICIES: tuple[Policy, ...] = get_args(Policy)
PARTS = ("sweep", "policies", "pipeline")


def arguments_of(line: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.layouts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--names", nargs="*", default=models.DEFAULT, help="models of `policies`")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--sweep", type=Path, default=models.SWEEP, help="folder of small_48.onnx ...")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="nodes of `pipeline`'s graphs")
    parser.add_argument("--seconds", type=float, default=2.0, help="per model and program")
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
        for network in NETWORKS:
            pipeline_row(300, network)  # imports, caches
        figures["pipeline"] = []
        for network, nodes in itertools.product(NETWORKS, arguments.sizes):
            row = pipeline_row(nodes, network)
            figures["pipeline"].append(row)
            console.print(f"{row['network']}, {nodes:,} nodes: {row['seconds']:.2f} s", highlight=False)
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
        """Steps of a program: programs of the same steps are the same."""
        return tuple((s.group.name, s.choice.implementation.name) for s in self.program.steps)


def planned(tuned: Compilation, policy: Policy) -> Planned:
    """The program of a canonical graph with a policy of layouts."""
    started = replace(tuned, model=tuned.model.clone())
    passes = [
        InferLayouts(policy) if isinstance(p, InferLayouts) else p
        for p in session.backend_passes(tuned.options)
    ]
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
        samples = in_turn(works, seconds)
        joint = list(executors).index(programs["joint"].steps)
        if np.min(ratios(samples, joint)) < 1.0:  # a policy seems faster: look again
            samples = np.concatenate([samples, in_turn(works, 2 * seconds)])
    times = dict(zip(executors, np.median(samples, axis=0) * 1e3, strict=True))
    against = dict(zip(executors, ratios(samples, joint), strict=True))
    return {
        "milliseconds": {policy: float(times[found.steps]) for policy, found in programs.items()},
        "ratios": {policy: float(against[found.steps]) for policy, found in programs.items()},
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
    """A line per model: times, conversions, and the fastest policy over the joint choice."""
    table = Table(title="layout policies, 1 thread, median ms (conversions)")
    table.add_column("model")
    for heading in (*POLICIES, "best fixed / joint", "gap of the choice"):
        table.add_column(heading, justify="right")
    for row in rows:
        if "milliseconds" not in row:
            continue
        times, conversions = row["milliseconds"], row["conversions"]
        best = min(row["ratios"][p] for p in POLICIES if p != "joint")
        gaps = [note.split("conversions, ")[1].split(" by ")[0] for note in row["notes"]]
        table.add_row(
            row["model"],
            *(f"{times[p]:.3f} ({conversions[p]})" for p in POLICIES),
            f"{best:.3f}x" + (" (noise)" if 1.0 > best >= 1.0 - NOISE else " SLOWER" if best < 1.0 else ""),
            *(gaps or ["-"]),
        )
    return table


# The passes themselves.


def residual_network(nodes: int) -> ir.Model:
    """A graph of `nodes` nodes: convolution, normalization, residual Add, Relu, again and again."""
    made = _Graph("residual_network", [1, 8, 16, 16])
    last = skipped = made.input
    for i in range(nodes):
        match i % 6:
            case 0 | 3:
                skipped = last if i % 6 == 0 else skipped
                last = made.node("Conv", last, made.weight(8, 8, 1, 1))
            case 1:
                last = made.node("BatchNormalization", last, *(made.weight(8) for _ in range(4)))
            case 4:
                last = made.node("Add", last, skipped)
            case _:
                last = made.node("Relu", last)
    return made.model(last)


def transformer(nodes: int) -> ir.Model:
    """A graph of about `nodes` nodes: attention and a feed-forward part of 13 nodes, again and again."""
    made = _Graph("transformer", [1, 8, 32])
    x = made.input
    shape, wide = made.integers(1, 8, 4, 8), made.integers(1, 8, 32)
    scale = made.weight(1)
    while len(made.nodes) < nodes:
        heads = []
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
            split = made.node("Reshape", made.node("MatMul", x, made.weight(32, 32)), shape)
            heads.append(made.node("Transpose", split, perm=perm))
        query, key, value = heads
        scores = made.node("Softmax", made.node("Mul", made.node("MatMul", query, key), scale), axis=-1)
        mixed = made.node("Transpose", made.node("MatMul", scores, value), perm=(0, 2, 1, 3))
        x = made.node("Add", x, made.node("MatMul", made.node("Reshape", mixed, wide), made.weight(32, 32)))
        x = made.node("LayerNormalization", x, made.weight(32), made.weight(32))
        hidden = made.node("Gelu", made.node("MatMul", x, made.weight(32, 64)))
        x = made.node("Add", x, made.node("MatMul", hidden, made.weight(64, 32)))
        x = made.node("LayerNormalization", x, made.weight(32), made.weight(32))
    return made.model(x)


def random_network(nodes: int) -> ir.Model:
    """A graph of `nodes` nodes of many kinds, each of which reads some of the last twenty images."""
    random = np.random.default_rng(1)
    made = _Graph("random_network", [1, 8, 8, 8])
    images = [made.input]
    while len(made.nodes) < nodes - 1:
        x, other = (images[-int(random.integers(1, min(len(images), 20) + 1))] for _ in range(2))
        match int(random.integers(0, 8)):
            case 0 | 1:
                image = made.node("Conv", x, made.weight(8, 8, 1, 1))
            case 2:
                image = made.node("Conv", x, made.weight(8, 1, 3, 3), group=8, pads=(1, 1, 1, 1))
            case 3:
                image = made.node("Add", x, other)
            case 4:
                image = made.node("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
            case 5:
                image = made.node("Mul", x, other)
            case 6:
                image = made.node("Sigmoid", x)
            case _:
                image = made.node("Softmax", x, axis=-1)
        images.append(image)
    last = made.node("Sum", *images[-20:])
    return made.model(last)


class _Graph:
    """A graph under construction."""

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        self.name = name
        self.kind = ir.TensorType(ir.DataType.FLOAT)
        self.input = ir.Value(name="x", type=self.kind, shape=ir.Shape(shape))
        self.nodes: list[ir.Node] = []
        self._random = np.random.default_rng(0)
        self._constants: list[ir.Value] = []

    def weight(self, *shape: int) -> ir.Value:
        """Random numbers."""
        return self._constant(self._random.uniform(0.5, 1.0, shape).astype(np.float32))

    def integers(self, *numbers: int) -> ir.Value:
        """A vector."""
        return self._constant(np.array(numbers, np.int64))

    def _constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        name = f"w{len(self._constants)}"
        tensor = ir.tensor(array, name=name)
        self._constants.append(
            ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
            )
        )
        return self._constants[-1]

    def node(self, op: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """The output of a new node."""
        self.nodes.append(ir.node(op, inputs, attributes, name=f"n{len(self.nodes)}"))
        self.nodes[-1].outputs[0].name = f"v{len(self.nodes)}"
        return self.nodes[-1].outputs[0]

    def model(self, last: ir.Value) -> ir.Model:
        """The model whose output has the shape of its input."""
        last.type, last.shape = self.kind, self.input.shape
        main = ir.Graph(
            [self.input], [last], nodes=self.nodes, initializers=self._constants,
            opset_imports={"": 21}, name=self.name,
        )  # fmt: skip
        return ir.Model(main, ir_version=10)


NETWORKS: tuple[Callable[[int], ir.Model], ...] = (residual_network, transformer, random_network)


def pipeline_row(nodes: int, network: Callable[[int], ir.Model] = residual_network) -> dict[str, Any]:
    """Seconds of every pass over a generated graph, by the processor's clock of this process."""
    options = Options(autotune=False)
    model = network(nodes)
    loaded = Loaded(model, (), len(model.graph))
    compilation = Compilation(loaded.model, host(), load_registry(), options)
    gc.collect()
    seconds: dict[str, float] = {}
    started = time.process_time()
    for step in (*session.FRONTEND_PASSES, *session.backend_passes(options)):
        before = time.process_time()
        compilation = pipeline.run(compilation, [step])
        seconds[step.name] = time.process_time() - before
    return {
        "network": network.__name__,
        "nodes": nodes,
        "seconds": time.process_time() - started,
        "passes": seconds,
    }


def pipeline_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line per graph: seconds in all and of each pass, and nodes a second."""
    table = Table(title="passes over generated graphs, seconds, nothing measured on the way")
    for heading in ("network", "nodes", "seconds", "nodes/s", *rows[0]["passes"]):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["network"],
            f"{row['nodes']:,}",
            f"{row['seconds']:.2f}",
            f"{row['nodes'] / row['seconds']:,.0f}",
            *(f"{seconds:.2f}" for seconds in row["passes"].values()),
        )
    return table


if __name__ == "__main__":
    main()
