"""The programs of a region in one memory: one arena, one copy of the weights, one team of threads."""

from dataclasses import replace

from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall
from app.engine.core.program import Program
from app.engine.planning.regions.program import RegionProgram
from app.engine.runtime.cpu.body_runner import Surroundings
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.memory import Array, Weights, aligned
from app.engine.types.errors import RegionError
from app.engine.types.regions.region import Point
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import Team

TABLES = 1 << 16  # byte of a block of memory for tables of sizes, of which every shape has its own


class RegionRunner:
    """Binds programs of a region to memory that they share: one of them runs at a time.

    Args:
        program: of the region; its points are asked for by this runner alone.
        compiler: where machine code comes from.

    Attributes:
        arena_bytes: of the largest shape, which no other exceeds.
    """

    def __init__(self, program: RegionProgram, compiler: Compiler) -> None:
        self.program = program
        self._compiler = compiler
        self._weights = Weights()
        largest = program.at(program.region.largest)
        self.arena_bytes = largest.arena_bytes
        self._team = Team(largest.compilation.options.threads)
        self._packed: dict[int, Array] = {}
        values = (*largest.compilation.graph.inputs, *largest.compilation.graph.outputs)
        roots = {v: aligned(graph.nbytes(v)) for v in values}
        self._around = Surroundings(aligned(self.arena_bytes), roots, self._team)
        first = self._bound(largest, self._weights)
        kept = {v: a for v, a in first.surroundings().roots.items() if v not in program.varying}
        self._around = Surroundings(self._around.arena, kept, self._team)

    @property
    def constant_bytes(self) -> int:
        """Bytes of the packed weights that its programs share."""
        return sum(a.size for a in self._packed.values())

    def executor(self, point: Point) -> Executor:
        """The executor of the program at a point.

        Raises:
            RegionError: the plan does not serve the point, see `RegionProgram.at`, or needs more memory than
                at the largest shape.
        """
        found = self.program.at(point)
        for value in (*found.compilation.graph.inputs, *found.compilation.graph.outputs):
            if graph.nbytes(value) > self._around.roots[value].size:
                raise RegionError(
                    f"{value.name!r} takes more than at the largest shape: {graph.shape(value)}"
                )
        if found.arena_bytes > self.arena_bytes:
            raise RegionError(
                f"the arena takes {found.arena_bytes} byte at {dict(point)}, "
                f"{self.arena_bytes} byte at the largest shape"
            )
        return self._bound(found, Weights(block=TABLES))

    def _bound(self, program: Program, tables: Weights) -> Executor:
        for step in program.steps:
            for call in step.calls:
                for argument in call.arguments if isinstance(call, KernelCall) else ():
                    if isinstance(argument, Constant) and self.program.packed.has(argument):
                        self._pack(argument)
        around = replace(self._around, packed=self._packed)
        return Executor(program, self._compiler, around=around, weights=tables)

    def _pack(self, constant: Constant) -> None:
        if id(constant) not in self._packed:
            self._packed[id(constant)] = self._weights.keep(constant.array)

    def close(self) -> None:
        """End the threads."""
        self._team.close()
