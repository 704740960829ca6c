"""A job's model with each product in the precision that an error budget allows, before it is planned."""

import gc
import tempfile
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.pipeline import Progress
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import Loaded, load
from app.engine.model.spool import Spool
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.planning.heartbeat import trim
from app.engine.planning.precision import seconds, sites
from app.engine.planning.precision.candidates import offered, saturates
from app.engine.planning.precision.samples import Sample, Samples, samples
from app.engine.planning.precision.search import Budget, Found, Machine, Search
from app.engine.planning.precision.simulation import Simulation
from app.engine.planning.precision.summary import precision_json
from app.engine.report.onnx import export
from app.engine.types.errors import InputError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target
from app.kernels.cpu.runtime.compiler import Compiler

QUANTIZED = "quantized.onnx"
PHASE = "precision"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Budgeted:
    """A model under an error budget.

    Attributes:
        path: of the quantized model; None where float32 is kept.
        options: those of the job, with the nodes that stay float32 where others may be bfloat16.
        sample: inputs that no level was chosen on.
        report: the document precision.json.
    """

    path: Path | None
    options: Options
    sample: Sample
    report: Json


def budgeted(
    path: Path,
    external: Mapping[str, Path],
    target: Target,
    options: Options,
    bindings: Bindings,
    folder: Path,
    compiler: Compiler | None,
    progress: Progress,
) -> Budgeted:
    """Choose the precision of each product; the quantized model is written into `folder`.

    Errors and other arguments are those of `under_budgets`.
    """
    budgets = {folder: options.error_budget or 0.0}
    (found,) = under_budgets(path, external, target, options, bindings, budgets, compiler, progress)
    return found


def under_budgets(
    path: Path,
    external: Mapping[str, Path],
    target: Target,
    options: Options,
    bindings: Bindings,
    budgets: Mapping[Path, float],
    compiler: Compiler | None,
    progress: Progress,
) -> list[Budgeted]:
    """Choices under several budgets, by the folder that the quantized model is written into: one search.

    `compiler` is None where the program does not run here: times are then predicted, errors simulated.

    Raises:
        InputError: the samples do not fit the model, or its shapes are a region.
        GraphError: onnxruntime does not run the model.
    """
    if bindings.region is not None:
        raise InputError("an error budget needs inputs of one shape, not a region", pointer="/input_shapes")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        weights = Spool(scratch / "weights")
        loaded = load(path, external=external, spool=weights)
        model, given = _plain(loaded, target, options, bindings)
        products = sites.sites(model)
        search = None
        if products:
            bench = None
            if compiler is not None:
                bench = stack.enter_context(closing(seconds.Bench(compiler, given.held_back[0])))
            planner = Planner(target, options, bindings, weights, products, given, compiler, bench)
            simulation = Simulation(model, products, scratch, options.threads)
            machine = _machine(planner, progress)
            search = Search(model, products, given, options.error_metric, simulation, machine)
        measured = compiler is not None and options.timings != "predicted"
        results = []
        for folder, error in budgets.items():
            found = Found(products) if search is None else search.run(error)
            written = None
            if found.model is not None:
                written = folder / QUANTIZED
                export(found.model, written)
            budget = Budget(error, options.error_metric)
            report = precision_json(found, budget, given, sites.rejected(model), measured=measured)
            program = None if found.chosen is None else found.chosen.program
            planned = options if program is None else program.compilation.options
            results.append(Budgeted(written, planned, given.held_back[0], report))
    return results


def _plain(loaded: Loaded, target: Target, options: Options, bindings: Bindings) -> tuple[ir.Model, Samples]:
    """The canonical graph before rewrites of the target, and samples of its inputs; nothing else stays."""
    plain: list[ir.Model] = []
    compilation = session.canonical(
        expanded(loaded, bindings),
        target,
        options,
        bindings,
        load_registry(),
        before_rewrites=lambda model: plain.append(graph.copied(model)),
    )
    return plain[0], samples(compilation, bindings, options.seed)


def _machine(planner: "Planner", progress: Progress) -> Machine:
    return Machine(
        offered(planner.target),
        saturates(planner.target),
        planner.plan,
        planner.seconds,
        planner.outputs,
        planner.race,
        planner.rest,
        lambda done, total: progress(PHASE, done, total),
    )


def _exact(compilation: Compilation, halves: Collection[str]) -> dict[str, str]:
    """Nodes that some implementation computes in bfloat16 and that are to stay float32: why, by name."""
    rows = compilation.registry.implementations.items()
    short = {op for op, own in rows if any(row.precision != "f32" for row in own)}
    return {
        node.name: "float32 by the choice under the error budget"
        for node in compilation.model.graph.all_nodes()
        if node.name and node.op_type in short and not seconds.origin(node.name, halves)
    }


def _chosen(compilation: Compilation, sites: Collection[str]) -> dict[str, str]:
    """Nodes that may be products of integers of 16 bits: why, by name."""
    names = (node.name or "" for node in compilation.model.graph.all_nodes())
    return {name: "chosen under the error budget" for name in names if seconds.origin(name, sites)}


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans and runs models of a search; each goes through a file, as a model of a job does."""

    target: Target
    options: Options
    bindings: Bindings
    weights: Spool  # of the model
    products: tuple[sites.Site, ...]
    given: Samples
    compiler: Compiler | None
    bench: seconds.Bench | None
    mapped: deque[Spool] = field(default_factory=lambda: deque(maxlen=2))  # of the last programs

    @property
    def measures(self) -> bool:
        """True if seconds are measured."""
        return self.compiler is not None and self.options.timings != "predicted"

    def plan(self, model: ir.Model, halves: Mapping[str, str]) -> Program:
        """The program of a model whose sites `halves` may be computed in 16 bits, of these candidates."""
        if self.bench is not None:
            self.bench.keep_first()
        path = self.weights.path.with_name("planned.onnx")
        spool = Spool(path.with_suffix(".weights"))
        gc.collect()  # graphs of the program before are cycles
        export(model, path)
        for mapped in (self.weights, *self.mapped):
            mapped.release()
        self.mapped.append(spool)
        loaded = load(path, spool=spool)
        for written in (path, spool.path):  # a mapping outlives its file
            written.unlink(missing_ok=True)
        trim()
        compilation = session.canonical(loaded, self.target, self.options, self.bindings, load_registry())
        options = self.options
        bfloats, integers = ({s for s, name in halves.items() if name == kind} for kind in ("bf16", "int16"))
        if bfloats:
            options = replace(options, precision="bf16", exact=_exact(compilation, bfloats))
        if integers:
            options = replace(options, int16=_chosen(compilation, integers))
        if self.compiler is not None and self.measures:
            compilation = session.measured(compilation, options, self.compiler)
        program = session.planned(compilation, options)
        spool.release()
        return program

    def seconds(self, programs: Sequence[Program]) -> list[Mapping[str, float]]:
        """Seconds by site of programs that take turns, as measured, or predicted."""
        spent = [[step.choice.seconds for step in program.steps] for program in programs]
        if self.bench is not None and self.measures:
            spent = seconds.step_seconds(programs, self.bench.bind)
        return [seconds.by_site(p, own, self.products) for p, own in zip(programs, spent, strict=True)]

    def outputs(self, program: Program) -> Sequence[Mapping[str, object]] | None:
        """Outputs on the samples held back."""
        if self.bench is None:
            return None
        executor = self.bench.bind(program)
        return [executor.run(seconds.accepted(program, sample)) for sample in self.given.held_back]

    def rest(self) -> None:
        """Give memory of programs back."""
        if self.bench is not None:
            self.bench.close()
        gc.collect()
        trim()

    def race(self, program: Program, float32: Program) -> tuple[list[float], list[float]] | None:
        """Seconds of both in turns."""
        if self.bench is None or not self.measures:
            return None
        own, other = seconds.raced([program, float32], self.bench.bind)
        return own, other
