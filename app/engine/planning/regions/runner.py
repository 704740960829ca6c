"""The programs of a region in one memory: one arena, one copy of the weights, one team of threads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.program import Program
from app.engine.planning.regions.bounded_outputs import BoundedOutput
from app.engine.planning.regions.memory import memory_formulas
from app.engine.planning.regions.pieces import RegionPlan
from app.engine.planning.regions.program import RegionProgram
from app.engine.runtime.cpu.body_runner import Surroundings
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.memory import Array, Weights, side_by_side, written
from app.engine.runtime.cpu.rows import compiled
from app.engine.types.errors import InputError, RegionError
from app.engine.types.regions.region import Point
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import Team

VARYING = 4096  # byte of a block of memory for constants of the graph that every shape has its own of


class RegionRunner:
    """Binds programs of a region to memory that they share: one of them runs at a time.

    Args:
        plan: of the region; points of its pieces are asked for by this runner alone.
        compiler: where machine code comes from.
        cores: cores to pin the team to; empty leaves threads where they are.
        beside: a runner of the same plan, whose weights it shares; the two may run at once.

    Attributes:
        arena_bytes: of the worst shape; workspaces make some smaller shapes take more than the largest.
        kernels: how many the region needs, as far as is known; they are compiled before the first run.
    """

    def __init__(
        self,
        plan: RegionPlan,
        compiler: Compiler,
        cores: Sequence[int] = (),
        beside: "RegionRunner | None" = None,
    ) -> None:
        self.plan = plan
        self._compiler = compiler
        self._weights: Weights = Weights() if beside is None else beside._weights
        self._packed: dict[int, Array] = {} if beside is None else beside._packed
        self.arena_bytes: int = (
            int(memory_formulas(plan)["worst_bytes"]) if beside is None else beside.arena_bytes
        )
        ends: dict[str, int] = {}  # bytes of inputs and outputs, by name
        for piece in plan.pieces:
            largest = piece.at(piece.region.largest)
            for value in _ends(largest):
                ends[value.name or ""] = max(ends.get(value.name or "", 0), graph.nbytes(value))
        self._team = Team(largest.compilation.options.threads, cores)
        self._arena = written(self.arena_bytes)
        self._ends = {name: written(nbytes) for name, nbytes in ends.items()}
        kernels = tuple(dict.fromkeys(k for piece in plan.pieces for k in piece.kernels))
        self.kernels = len(compiled(kernels, compiler, lambda _done, _total: None))
        shared = {} if beside is None else beside._around
        self._around: dict[RegionProgram, Surroundings] = {
            piece: self._surroundings(piece, shared.get(piece)) for piece in plan.pieces
        }

    def _surroundings(self, piece: RegionProgram, shared: Surroundings | None) -> Surroundings:
        """The memory of the programs of a piece: arena, inputs and outputs, and weights that stay."""
        largest = piece.at(piece.region.largest)
        roots = {value: self._ends[value.name or ""] for value in _ends(largest)}
        if shared is not None:
            return Surroundings(self._arena, {**shared.roots, **roots}, self._team)
        around = Surroundings(self._arena, roots, self._team)
        first = self._bound(piece, largest, around, self._tables(piece, largest), self._weights)
        kept = {v: a for v, a in first.surroundings().roots.items() if v not in piece.varying}
        return Surroundings(self._arena, kept, self._team)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the packed weights that its programs share."""
        return sum({a.ctypes.data: a.size for a in self._packed.values()}.values())

    def filled(self, point: Point) -> "Filled":
        """The program at a point, ready to run.

        Raises:
            RegionError: the plan does not serve the point, see `RegionProgram.at`, or needs more memory than
                the formulas of the plan say.
        """
        piece = self.plan.piece(point)
        found, around = piece.at(point), self._around[piece]
        for value in _ends(found):
            if graph.nbytes(value) > around.roots[value].size:
                shape = graph.static_shape(value)
                raise RegionError(f"{value.name!r} is larger than at the largest shape: {list(shape)}")
        if found.arena_bytes > self.arena_bytes:
            raise RegionError(
                f"the arena takes {found.arena_bytes} byte at {dict(point)}, "
                f"{self.arena_bytes} byte at the worst shape that is known"
            )
        tables, weights = self._tables(piece, found), Weights(block=VARYING)
        executor = self._bound(piece, found, around, tables, weights)
        one = next(iter(tables.values()), None)  # holds the block of all
        shared = replace(around, packed=self._packed)
        return Filled(executor, self.plan.outputs, around.arena.nbytes, (shared, one, weights))

    def _bound(
        self,
        piece: RegionProgram,
        program: Program,
        around: Surroundings,
        tables: Mapping[int, Array],
        weights: Weights,
    ) -> Executor:
        for constant in _constants(program):
            if piece.packed.has(constant) and id(constant) not in self._packed:
                self._packed[id(constant)] = self._weights.keep(constant.array)
        around = replace(around, packed={**self._packed, **tables})
        return Executor(program, self._compiler, around=around, weights=weights)

    def _tables(self, piece: RegionProgram, program: Program) -> dict[int, Array]:
        """Bytes of the constants that no other program has, tables of sizes most of them, by identity."""
        own = {id(c): c for c in _constants(program) if not piece.packed.has(c)}
        return dict(zip(own, side_by_side([c.array for c in own.values()])))

    def close(self) -> None:
        """End the threads."""
        self._team.close()


def _constants(program: Program) -> Iterator[Constant]:
    """Constants among the arguments of a program's kernels."""
    for step in program.steps:
        for call in step.calls:
            for argument in call.arguments if isinstance(call, KernelCall) else ():
                if isinstance(argument, Constant):
                    yield argument


def _ends(program: Program) -> tuple[ir.Value, ...]:
    model = program.compilation.graph
    return (*model.inputs, *model.outputs)


class Filled:
    """A program at one point: rows of the compiled driver, and where inputs and outputs lie.

    It runs in the memory of its runner, so another program's run ends its outputs.

    Args:
        executor: of the program.
        bounded: outputs whose size a run finds out, by name.
        arena_bytes: of the arena, which the programs of the region share.
        memory: what its rows have addresses in, which keep nothing alive.
    """

    shares_memory = True

    def __init__(
        self,
        executor: Executor,
        bounded: Mapping[str, BoundedOutput],
        arena_bytes: int,
        memory: tuple[object, ...],
    ) -> None:
        model = executor.program.compilation.graph
        self._inputs = {v.name or "": executor.array(v) for v in model.inputs}
        self._outputs = {v.name or "": executor.array(v) for v in model.outputs}
        self._bounded = bounded
        # No more of the executor is kept: there may be thousands of programs.
        self._work = [segment.work for segment in executor.segments]
        self.arena_bytes = arena_bytes
        self._memory = memory
        self._woken = executor.woken

    @property
    def own_bytes(self) -> int:
        """Bytes of the arena, which the programs of the region share, and of its inputs and outputs."""
        places = [*self._inputs.values(), *self._outputs.values()]
        return self.arena_bytes + sum(place.nbytes for place in places)

    def feed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs to where the program reads them.

        Raises:
            InputError: an input is absent, or has another shape or type than the program.
        """
        if self._woken is not None:
            self._woken.wake()
        for name, place in self._inputs.items():
            array = inputs.get(name)
            if not isinstance(array, np.ndarray) or (array.shape, array.dtype) != (place.shape, place.dtype):
                found = f"{array.dtype}{list(array.shape)}" if isinstance(array, np.ndarray) else type(array)
                raise InputError(f"input {name!r}: expected {place.dtype}{list(place.shape)}, found {found}")
            place[...] = array

    def lend(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs, as `feed`: the memory of a region is the same at all points."""
        self.feed(inputs)

    def step(self) -> None:
        """Run all steps on the inputs."""
        for work in self._work:
            work()

    def peek(self) -> dict[str, object]:
        """The outputs where the program has them: the next run of any point overwrites them."""
        if not self._bounded:
            return dict(self._outputs)
        counts = {b.count for b in self._bounded.values()}
        return {
            name: self._bounded[name].taken(place, self._outputs[self._bounded[name].count])
            if name in self._bounded
            else place
            for name, place in self._outputs.items()
            if name not in counts
        }

    def run(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Copies of the outputs for these inputs."""
        self.feed(inputs)
        self.step()
        return {name: np.copy(found) for name, found in self.peek().items()}  # type: ignore[call-overload]

    def close(self) -> None:
        """Nothing of it is its own."""
