"""A model that stays, and runs on every shape that its graph allows: one plan for each, or for a region."""

import contextlib
import dataclasses
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model import operand_types
from app.engine.model.load import load
from app.engine.operators import independent_rows
from app.engine.operators.independent_rows import MixedRowsError
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.planning.heartbeat import trim
from app.engine.planning.regions.entry import region_of_model
from app.engine.planning.regions.runner import Filled, RegionRunner
from app.engine.planning.timing_cache import stored
from app.engine.runtime.cpu.body_runner import Surroundings
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.instance_memory import InstanceMemory
from app.engine.runtime.cpu.weight_store import WeightStore
from app.engine.runtime.inputs import samples
from app.engine.types import map_type
from app.engine.types.errors import EngineError, GraphError, RegionError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler

Shapes = Mapping[str, tuple[int, ...]]
NO_FILES: Mapping[str, Path] = {}
logger = logging.getLogger("stowplan.serving")


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: dimensions that differ from call to call are None, as is an unknown rank."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None


class ServedModel:
    """A model file, as a job planned it.

    Args:
        path: the ONNX file.
        options: of the job; their threads run every program.
        bindings: of the job. Scalars that were bound to a value stay so: they are no inputs here.
        kernels: folder of compiled kernels and of the timings table.
        external: files of external data by the name the model gives them.
        weights: folder of packed weights, which all processes of a machine share; None keeps them in memory
            of each program.
        tune: whether implementations are measured for the shapes of the job; else what was measured before
            and predictions choose, as they do for other shapes.

    Attributes:
        inputs: what a call must give, in the model's order.
        outputs: what it returns.
        fixed: values of the inputs that the job bound.
        first: shapes of the inputs as the job had them, of a region the largest; None where it did not know
            them all.

    Raises:
        EngineError: the model cannot be used, or has inputs or outputs that are no tensors of numbers.
    """

    def __init__(
        self,
        path: Path,
        options: Options,
        bindings: Bindings,
        *,
        kernels: Path,
        external: Mapping[str, Path] = NO_FILES,
        weights: Path | None = None,
        tune: bool = True,
    ) -> None:
        self._path = path
        self._tune = tune
        self._options = options
        self._bindings = bindings
        self._regions: list[RegionRunner] = []  # by instance
        self._instances: dict[int, InstanceMemory] = {}  # by their place in `cores` of `programs`
        self._made: set[tuple[int, ...]] = set()  # points that calls have asked for
        self._unplanned = bindings.region is None  # whether every shape has a plan of its own
        self._external = external
        self._compiler = Compiler(kernels, processes=1)
        self._weights = None if weights is None else WeightStore(weights)
        self.fixed = dict(bindings.values)
        self._storage = dict(bindings.storage)
        self._value_storage = dict(bindings.value_storage)
        found = load(path, external=external).model.graph
        self.inputs = tuple(_port(v, "input") for v in found.inputs if v.name not in self.fixed)
        self.outputs = tuple(_port(v, "output") for v in found.outputs)
        self.first = _known({p.name: bindings.shapes.get(p.name, p.shape) for p in self.inputs})

    def program(self, shapes: Shapes) -> Executor | Filled:
        """The program for inputs of these shapes, see `programs`."""
        return self.programs(shapes, ((),))[0]

    def programs(self, shapes: Shapes, cores: Sequence[Sequence[int]]) -> Sequence[Executor | Filled]:
        """Instances of one program for inputs of these shapes, which may run at once.

        Each has an arena and threads of its own, which it shares with the programs of other shapes at its
        place in `cores`: of these one may run at a time. Threads keep to the cores that the place had first;
        without any they are left where they are. The thread that calls it is one of them.

        Shapes of the region of the job have one plan, and its instances one copy of the weights. For others,
        and where no plan serves the region, implementations are chosen from what was measured on this
        machine before: the job has measured all for the shapes it had, others go by prediction where
        nothing was.

        Raises:
            EngineError: the graph refuses the shapes, or nothing can run it.
        """
        if (found := self._of_region(shapes, cores)) is not None:
            return found
        program, weights = self._planned(shapes), None
        if self._weights is not None:
            program, weights = self._weights.take(program)
            gc.collect()  # graphs are cyclic
            trim()
        return [
            Executor(program, self._compiler, weights=weights, around=self._memory(i, kept, program))
            for i, kept in enumerate(cores)
        ]

    def _memory(self, number: int, cores: Sequence[int], program: Program) -> Surroundings:
        """Memory that all programs of an instance share."""
        if number not in self._instances:
            self._instances[number] = InstanceMemory(self._options.threads, cores)
        return self._instances[number].around(program.arena_bytes)

    def ahead(self) -> Iterator[tuple[Shapes, Sequence[Filled]]]:
        """Programs of the region that no call asked for yet, by instance, the largest first; maybe none."""
        if not self._regions:
            return
        region = self._regions[0].plan.region
        fixed = {n: d for n, d in (self.first or {}).items() if n not in region.inputs}
        for point in region.points():
            if tuple(point.values()) not in self._made:
                with contextlib.suppress(RegionError):  # it is told when a call comes
                    yield fixed | region.shapes(point), [runner.filled(point) for runner in self._regions]

    def _of_region(self, shapes: Shapes, cores: Sequence[Sequence[int]]) -> Sequence[Filled] | None:
        """The programs of the region at these shapes, by instance; None where none serves them."""
        if self._unplanned:
            return None
        try:
            if not self._regions:
                self._regions.append(self._runner(cores[0]))
            first = self._regions[0]
            for kept in cores[len(self._regions) :]:
                self._regions.append(RegionRunner(first.plan, self._compiler, kept, beside=first))
            point = first.plan.region.point(shapes)
            if point is None:
                return None
            self._made.add(tuple(point.values()))
            return [runner.filled(point) for runner in self._regions[: len(cores)]]
        except EngineError as error:  # one of the model itself comes again, from the program of its own
            if not self._regions:
                self._unplanned = True
            logger.warning("shapes %s have a program of their own: %s", dict(shapes), error.message)
            return None

    def _runner(self, cores: Sequence[int]) -> RegionRunner:
        compiler, options = self._compiler, self._options
        bindings = dataclasses.replace(self._bindings, tensors={}, shapes={**(self.first or {})})
        plan = region_of_model(
            load(self._path, external=self._external),
            host(),
            options,
            bindings,
            load_registry(),
            lambda c: session.measured(c, options, compiler),
        )
        runner = RegionRunner(plan, compiler, cores)
        for piece in plan.pieces:
            told = ", ".join(map(str, piece.region.symbols.values()))
            logger.info("one plan for %s: %s", told, "; ".join(piece.notes) or "all rows")
        logger.info("%d kernels for the region", runner.kernels)
        return runner

    def rows_of_outputs(self, shapes: Shapes, count: int) -> frozenset[str]:
        """Names of outputs in which so many requests of these shapes, stacked along axis 0, lie one by one.

        Other outputs are the same for all requests.

        Raises:
            GraphError: the first axis of an input is fixed, or it cannot be shown that a request that is
                stacked with others gets what it gets alone.
        """
        for port in self.inputs:
            if not port.shape or port.shape[0] is not None:
                found = "no axis" if not port.shape else f"a fixed first axis of {port.shape[0]}"
                raise GraphError(
                    f"batching needs a first axis of every input that may have any extent, {port.name!r} has "
                    f"{found}: export the model with a symbolic batch axis",
                    pointer=f"value:{port.name}",
                )
        graphs = [self._canonical(shapes), self._canonical(stacked(shapes, count))]
        try:
            return independent_rows.rows_of_outputs(graphs[0].graph, graphs[1].graph, count)
        except MixedRowsError as reason:
            raise GraphError(f"requests cannot be computed together: {reason}") from None

    def _canonical(self, shapes: Shapes) -> ir.Model:
        bindings = self._bound(shapes)
        found: list[ir.Model] = []
        session.canonical(
            expanded(load(self._path, external=self._external), bindings),
            *(host(), self._options, bindings, load_registry()),
            before_rewrites=lambda model: found.append(model.clone()),
        )
        return found[0]

    def _bound(self, shapes: Shapes) -> Bindings:
        return Bindings(
            shapes=dict(shapes),
            values=self.fixed,
            storage=self._storage,
            value_storage=self._value_storage,
        )

    def _planned(self, shapes: Shapes) -> Program:
        options, bindings = self._options, self._bound(shapes)
        loaded = expanded(load(self._path, external=self._external), bindings)
        compilation = session.canonical(loaded, host(), options, bindings, load_registry())
        if self._tune and (shapes == self.first or options.choose == "measured"):
            compilation = session.tuned(compilation, options, self._compiler)
        else:
            compilation = session.on_this_machine(compilation, self._compiler)
            compilation = dataclasses.replace(compilation, timings=stored(self._compiler.folder))
            if self._tune:
                compilation = session.raced(compilation, options, self._compiler)
        inputs = samples(compilation.graph.inputs, self._storage)
        return session.runnable(compilation, options, self._compiler, inputs)[1]


def stacked(shapes: Shapes, count: int) -> dict[str, tuple[int, ...]]:
    """Shapes of so many requests of some shapes, along the first axis."""
    return {name: (shape[0] * count, *shape[1:]) for name, shape in shapes.items()}


def _port(value: ir.Value, role: str) -> Port:
    name = value.name or ""
    kind = graph.dtype(value)
    if kind is None or not graph.is_tensor(value):
        found = operand_types.title(value.type) or "an unknown type"
        instead = "; export the model without ZipMap" if map_type.has_map(value.type) else ""
        raise GraphError(
            f"{role} {name!r}: expected a tensor of numbers, found {found}{instead}", pointer=f"value:{name}"
        )
    if value.shape is None:
        return Port(name, kind, None)
    return Port(name, kind, tuple(d if isinstance(d, int) else None for d in value.shape))


def _known(shapes: Mapping[str, tuple[int | None, ...] | None]) -> dict[str, tuple[int, ...]] | None:
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes.items():
        if shape is None or None in shape:
            return None
        found[name] = tuple(d for d in shape if d is not None)
    return found
