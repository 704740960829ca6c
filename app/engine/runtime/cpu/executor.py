"""A program bound to the memory of a CPU: sequences of compiled kernels, host calls between them."""

import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import (
    Body,
    BodyCall,
    BodyValue,
    Constant,
    Excess,
    HostCall,
    Jump,
    KernelCall,
    Workspace,
)
from app.engine.core.program import Program, Step
from app.engine.runtime import input_checks
from app.engine.runtime.cpu.body_runner import BodyRunner, Surroundings
from app.engine.runtime.cpu.excess import ExcessNumbers
from app.engine.runtime.cpu.lending import LARGE, lent_inputs
from app.engine.runtime.cpu.library_step import LibraryStep
from app.engine.runtime.cpu.memory import SMALL_BLOCK, Pool, Weights, aligned
from app.engine.runtime.cpu.rows import Segment, StepRows, compiled, flattened, walk
from app.engine.runtime.executor import (
    POISON,
    Array,
    ProgramExecutor,
    owned_by_step,
    sparse_format,
    stretches,
    unowned,
)
from app.engine.types.errors import KernelError
from app.engine.types.layout import to_physical
from app.engine.types.sparse_array import SparseArray
from app.kernels.cpu.runtime.compiler import Compiler, resolve
from app.kernels.cpu.runtime.driver import Team, compile_dispatch_loop
from app.kernels.cpu.runtime.kernel_sequence import JumpRow, KernelRow, KernelSequence

# Predicted time of a step on all threads below which one thread runs it: to meet costs about a microsecond.
MIN_SHARED_SECONDS = 1e-6
MIN_WAKING_BYTES = 2**16  # byte of inputs, from which on helpers are woken before these are copied
GUARD = 4096  # byte behind an arena in poisoned memory, which is watched too


class Executor(ProgramExecutor):
    """A program in memory of its own: one arena, the weights, and staging for inputs and outputs.

    Args:
        program: what to run.
        compiler: where machine code comes from.
        poison: fill with NaN every byte of the arena that no live buffer owns, before and after
            each step, so that a wrong plan shows in the outputs; after a step also the padded lanes
            that it leaves undefined. Slow; for tests.
        cores: cores to pin the team to; empty leaves threads where they are.
        around: memory and threads of the program that runs it as a body, or of that of another shape; else it
            has its own.
        progress: called with (done, total) while kernels compile.
        weights: where it keeps its constants, of several programs; else it has memory of its own.
        drawn: inputs are drawn to take times; values that then store more than is declared are no error.
    """

    shares_memory = False  # with programs of other shapes

    def __init__(
        self,
        program: Program,
        compiler: Compiler,
        *,
        poison: bool = False,
        cores: Sequence[int] = (),
        around: Surroundings | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        weights: Weights | None = None,
        drawn: bool = False,
    ) -> None:
        super().__init__(program)
        self._poison = poison
        if around is None:
            self._arena = aligned(program.arena_bytes + GUARD * poison)
        else:
            self._arena = around.arena[: program.arena_bytes]
        self._pool = Pool(SMALL_BLOCK)  # of inputs and outputs
        self._weights = Weights() if weights is None else weights
        self._roots = {} if around is None else dict(around.roots)  # memory of inputs, outputs and weights
        self._packed = {} if around is None else dict(around.packed)  # Constant arguments, by identity
        self._excess = ExcessNumbers(self._pool, drawn=drawn)
        self._bodies: dict[str, BodyRunner] = {}  # by path
        self._driven: dict[Body, BodyRunner] = {}  # those that the compiled driver runs
        self._alone: Callable[[Mapping[str, object]], dict[str, object]] | None = None
        self._compiler = compiler
        self._owns_team = around is None
        self._team = Team(program.compilation.options.threads, cores) if around is None else around.team
        self._kernels = compiled(program.kernels, compiler, progress)
        self._dispatch_loop = compile_dispatch_loop()
        self._segments = self._bind()
        self._work = [s.work for s in self._segments]
        roots = (*self._model.inputs, *self._model.outputs)
        self._sparse = {v: form for v in roots if (form := sparse_format(program, v))}
        self._inputs = {
            v.name or "": (v, None if v in self._sparse else self.place_of(v)) for v in self._model.inputs
        }
        # Those that are arrays of a known form, and nothing else: place, shape and dtype.
        self._forms = {
            name: (place, place.shape, place.dtype)
            for name, (_, place) in self._inputs.items()
            if place is not None and name not in self._declared
        }
        plain = [self._inputs[name] for name in self._forms]
        self._lent = lent_inputs(program, self._segments, plain)
        self._lends = any(lent.place.nbytes >= LARGE for lent in self._lent.values())
        fed = sum(graph.nbytes(v) for v, place in self._inputs.values() if place is not None)
        # The first kernel sequence, during whose inputs helpers can wake; a library has threads of its own.
        self.woken = self._segments[0].sequence if self._segments and fed >= MIN_WAKING_BYTES else None
        self._outputs = {
            v.name or "": (v, None if v in self._sparse else self.place_of(v)) for v in self._model.outputs
        }
        self._live = owned_by_step(program) if poison else []
        self._lanes = self._padded_lanes() if poison else {}

    def close(self) -> None:
        """End the threads that it started, and give back what libraries hold; it runs no more."""
        self._alone, self._segments, self._work = None, (), []
        if self._owns_team:
            self._team.close()

    def surroundings(self) -> Surroundings:
        """Its memory and threads, for a program of another shape that runs when this one does not."""
        return Surroundings(self._arena, dict(self._roots), self._team, dict(self._packed))

    def run(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """See `ProgramExecutor`; large inputs are lent. A library that runs all of it makes no copies."""
        if self._alone is None:
            (self.lend if self._lends else self.feed)(inputs)
            self.step()
            return self.fetch()
        if self._forms.keys() != inputs.keys() or any(type(v) is not np.ndarray for v in inputs.values()):
            input_checks.check_known(inputs, self._inputs)
            inputs = {
                n: input_checks.dense(n, v, self._inputs[n][0], self._declared) for n, v in inputs.items()
            }
        return self._alone(inputs)

    def feed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs to where the program reads them."""
        self._begin(inputs)
        self._copy(inputs)

    def lend(self, inputs: Mapping[str, object]) -> None:
        """Let the program read inputs where they are, until the next ones come; it copies those it cannot.

        Memory on a cache line, or of large arrays, is read there; it must not change until the step ends.
        """
        self._begin(inputs)
        self._copy({n: a for n, a in inputs.items() if n not in self._lent or not self._lent[n].take(a)})

    def _begin(self, inputs: Mapping[str, object]) -> None:
        if inputs.keys() != self._inputs.keys():
            input_checks.check_complete(inputs, self._inputs)
            input_checks.check_known(inputs, self._inputs)
        if self.woken is not None:
            self.woken.wake()
        self.forget()

    def forget(self) -> None:
        """Drop the objects of the host of the run before."""
        self._host.clear()

    def refeed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs that have changed; the others stay as they are."""
        input_checks.check_known(inputs, self._inputs)
        self._copy(inputs)

    def _copy(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs of known names; a call for each would be a good part of a small model's time."""
        for name, array in inputs.items():
            form = self._forms.get(name)
            if name in self._lent:
                self._lent[name].give_back()
            if (
                form is not None
                and type(array) is np.ndarray
                and array.shape == form[1]
                and array.dtype == form[2]
            ):
                _fill(form[0], array)
            else:
                self._convert(name, array)

    def _convert(self, name: str, array: object) -> None:
        """Copy an input that is stored sparse, is an object of the host, or has another form than planned."""
        value, place = self._inputs[name]
        if (form := self._sparse.get(value)) is not None:
            given = input_checks.sparse(name, array, value, form.kind, self._declared)
            given.write(self._memory(value)[0], form)
            return
        array = input_checks.dense(name, array, value, self._declared)
        if place is None:
            self._host[value] = array
        else:
            _fill(place, input_checks.as_planned(name, array, place.shape, place.dtype))

    def step(self) -> None:
        """Run all steps on the inputs; StorageBoundError where a value stores more than declared."""
        if self._poison:
            self._run_poisoned()
        else:
            for work in self._work:
                work()
        self._excess.check()

    def fetch(self) -> dict[str, object]:
        """Copies of the outputs."""
        return {
            name: found.copy() if isinstance(found, np.ndarray | SparseArray) else found
            for name, found in self.peek().items()
        }

    def peek(self) -> dict[str, object]:
        """The outputs where the program has them: the next run overwrites them."""
        return {
            name: self._object(value) if place is None else place
            for name, (value, place) in self._outputs.items()
        }

    def _object(self, value: ir.Value) -> object:
        """An output that is stored sparse, in the program's memory; else one of the host."""
        form = self._sparse.get(value)
        if form is None:
            return self._host[value]
        base, offset = self._memory(value)
        shape, kind = graph.static_shape(value), graph.element_type(value)
        return SparseArray.read(base[offset : offset + form.nbytes], form, shape, kind)

    def array(self, value: ir.Value) -> Array:
        """A value's memory as an array of its shape and dtype."""
        nbytes = graph.nbytes(value)
        base, offset = self._memory(value)
        return (
            base[offset : offset + nbytes].view(graph.element_type(value)).reshape(graph.static_shape(value))
        )

    def held(self, value: ir.Value) -> object:
        """The object of the host that a value is in the current run."""
        return self._host[value]

    def step_seconds(self) -> list[float]:
        """Seconds of every step in one run, from the time stamp counter after each kernel."""
        self._time_bodies(timed=True)
        seconds = self.timed_run()
        self._time_bodies(timed=False)
        return seconds

    def body_seconds(self) -> dict[str, float]:
        """Seconds of the steps in bodies in the run of the last `step_seconds`, by path, in all turns."""
        found: dict[str, float] = {}
        for path, body in self._bodies.items():
            for step, seconds in zip(body.executor.program.steps, body.seconds, strict=True):
                found[f"{path}/{step.group.name}"] = seconds
            found |= {f"{path}/{name}": seconds for name, seconds in body.executor.body_seconds().items()}
        return found

    def _time_bodies(self, *, timed: bool) -> None:
        for body in self._bodies.values():
            body.timed = timed
            if timed:
                body.seconds = [0.0] * len(body.seconds)
            body.executor._time_bodies(timed=timed)

    def timed_run(self) -> list[float]:
        """Seconds of every step in one run; bodies are timed as before."""
        seconds: list[float] = []
        for segment in self._segments:
            if segment.sequence is not None:
                segment.sequence.ticks[:] = 0
            started = time.perf_counter()
            segment.work()
            elapsed = time.perf_counter() - started
            if segment.sequence is None:
                seconds.append(elapsed)
            else:
                scale = elapsed / max(int(segment.sequence.ticks.sum()), 1)
                seconds += self.timed_steps(segment.sequence.ticks * scale, segment)
        return seconds

    def timed_steps(self, rows: Array, segment: Segment) -> list[float]:
        """Seconds of the steps of a segment from those of its rows; bodies that are timed count theirs."""
        seconds = []
        steps = self.program.steps[segment.first : segment.last]
        for step, (first, last), found in zip(steps, segment.calls, segment.steps, strict=True):
            seconds.append(float(rows[first:last].sum()))
            for call, begin, end in zip(step.calls, found.starts, found.starts[1:]):
                if isinstance(call, BodyCall) and self._driven[call.body].timed:
                    self._driven[call.body].count(rows[first + begin : first + end])
        return seconds

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Steps that run together, in order."""
        return self._segments

    def _memory(self, value: ir.Value) -> tuple[Array, int]:
        location = self.program.placement.values[value]
        if location.space == "arena":
            return self._arena, location.offset
        root = location.root if location.root is not None else value
        if root not in self._roots:
            fixed = graph.constant(root)
            if fixed is None:
                form = sparse_format(self.program, root)
                self._roots[root] = self._pool.take(graph.nbytes(root) if form is None else form.nbytes)
            else:
                self._roots[root] = self._weights.keep(fixed)
        return self._roots[root], location.offset

    def _address(self, argument: object, step: Step) -> int:
        if isinstance(argument, int):
            return argument
        if isinstance(argument, Workspace):
            return int(self._arena.ctypes.data) + step.workspaces[id(argument)]
        if isinstance(argument, Constant):
            if id(argument) not in self._packed:
                self._packed[id(argument)] = self._weights.packed(argument)
            return int(self._packed[id(argument)].ctypes.data)
        if isinstance(argument, BodyValue):
            return self._driven[argument.body].executor._address(argument.value, step)
        if isinstance(argument, Excess):
            return self._excess.address(argument)
        assert isinstance(argument, ir.Value)
        base, offset = self._memory(argument)
        return int(base.ctypes.data) + offset

    def _bind(self) -> tuple[Segment, ...]:
        segments = []
        for steps in stretches(self.program.steps):
            first, last = steps[0].index, steps[-1].index + 1
            if steps[0].is_host:
                work = self._library_step(steps[0]) if steps[0].is_library else self._host_step(steps[0])
                segments.append(Segment(first, last, work))
                continue
            found = tuple(map(self._step_rows, steps))
            sequence = KernelSequence(self._dispatch_loop, [r for s in found for r in s.rows], self._team)
            ends = (0, *itertools.accumulate(len(s.rows) for s in found))
            ranges = tuple(itertools.pairwise(ends))
            segments.append(Segment(first, last, sequence.run, sequence, ranges, found))
        return tuple(segments)

    @property
    def rows(self) -> tuple[KernelRow | JumpRow, ...]:
        """Rows of all steps, none of which runs on the host."""
        return tuple(r for segment in self._segments for step in segment.steps for r in step.rows)

    def _step_rows(self, step: Step) -> StepRows:
        for call in step.calls:
            if isinstance(call, BodyCall):
                self._driven[call.body] = self._body(call.body, call.inputs, step)
        shared = step.choice.seconds >= MIN_SHARED_SECONDS

        def kernel_row(call: KernelCall) -> KernelRow:
            numbers = tuple(self._address(a, step) for a in call.arguments)
            return KernelRow(self._kernels[call.request].address, call.units, numbers, shared)

        def jump_row(call: Jump, displacement: int) -> JumpRow:
            return JumpRow(displacement, self._address(call.flag, step), call.expected)

        body_rows = lambda body: self._driven[body].executor.rows  # noqa: E731
        return StepRows(*flattened(step.calls, kernel_row, jump_row, body_rows))

    def _walk(self, step: Step, segment: Segment) -> None:
        """Run a step of a sequence; its bodies are programs by themselves, poisoned or timed as this one."""
        assert segment.sequence is not None
        at = step.index - segment.first
        begin = segment.calls[at][0]
        walk(step.calls, segment.steps[at], segment.sequence, begin, lambda body: self._driven[body].turn())

    def _host_step(self, step: Step) -> Callable[[], None]:
        calls = []
        for call in step.calls:
            assert isinstance(call, HostCall)
            bodies = [None if b is None else self._body(b, call.inputs, step) for b in call.bodies]
            places = [self.place_of(v) for v in call.outputs]
            kernels = [self._kernels[k].function for k in call.kernels]
            given = [a for a in (kernels, call.nodes) if a]
            function = resolve(call.function)(call.node, *([bodies, places] if bodies else given))
            fixed = [None if v is None else self._fixed(v) for v in call.inputs]
            dynamic = [(i, v) for i, v in enumerate(call.inputs) if v is not None and fixed[i] is None]
            targets = tuple(zip(call.outputs, places, strict=True))
            if len(step.calls) == 1 and call.kernels and not dynamic and all(p is None for p in places):
                return functools.partial(self.run_kernels, call, function, fixed)
            calls.append((f"{call.node.op_type} {call.node.name!r}", function, fixed, dynamic, targets))

        def run() -> None:
            for title, function, fixed, dynamic, targets in calls:
                operands = list(fixed)
                for i, value in dynamic:
                    operands[i] = self._host[value]
                for (value, place), result in zip(targets, function(operands), strict=True):
                    if place is None or result is not place:
                        self.store(value, result, title)

        return run

    def _library_step(self, step: Step) -> Callable[[], None]:
        library = LibraryStep(step, self)
        whole = len(self.program.steps) == 1 and set(self._model.outputs) <= set(library.call.outputs)
        large = library.bound is None or library.carried_bytes >= MIN_WAKING_BYTES
        if whole and not self._poison and large:
            # Nothing is copied into the program's memory and out of it.
            inputs = dict.fromkeys(v.name or "" for v in self._model.inputs).keys()
            outputs = [v.name or "" for v in self._model.outputs]
            self._alone = functools.partial(library.compute, inputs, outputs)
        return library.run

    def place_of(self, value: ir.Value) -> Array | None:
        """A value's memory as an array; None for an object of the host."""
        return self.array(value) if self._is_placed(value) else None

    def _fixed(self, value: ir.Value) -> object | None:
        """The array of a value that is always at the same place; None for an object of the host."""
        fixed = graph.constant(value)
        return self.place_of(value) if fixed is None else fixed

    def _body(self, body: Body, inputs: Sequence[ir.Value | None], step: Step) -> BodyRunner:
        """A body on the threads of this program, in the part of its arena that the step has for it."""
        offset = self.program.placement.bodies.get(step.group, 0)
        arena = self._arena[offset : offset + body.nbytes]
        roots = {v: arena[start : start + nbytes] for v, (start, nbytes) in body.places.items()}
        for value, outer in body.captured(inputs):
            base, start = self._memory(outer)
            roots[value] = base[start : start + graph.nbytes(outer)]
        executor = Executor(
            body.program,
            self._compiler,
            poison=self._poison,
            around=Surroundings(arena, roots, self._team),
            weights=self._weights,
            drawn=self._excess.drawn,
        )
        ready = self._bodies[f"{step.group.name}/{body.name}"] = BodyRunner(executor, body)
        return ready

    def _write(self, value: ir.Value, array: Array) -> None:
        np.copyto(self.array(value), array)

    def padded_lanes(self, value: ir.Value) -> tuple[Array, Array]:
        """A value's memory in elements, and which of them are padded lanes."""
        layout = self.program.compilation.plan.require("layout")[value]
        shape, kind = graph.static_shape(value), graph.element_type(value)
        base, offset = self._memory(value)
        held = base[offset : offset + layout.nbytes(shape, kind.itemsize)].view(kind)
        return held, to_physical(np.zeros(shape, bool), layout, fill=True).reshape(-1)

    def _padded_lanes(self) -> dict[int, list[tuple[Array, Array]]]:
        """By step: what it writes and leaves undefined; a view's lanes may be elements of another value."""
        lanes = self.program.compilation.plan.padding or {}
        shared = {v for s in self.program.steps for view in s.choice.views for v in (view.source, view.view)}
        return {
            s.index: [
                self.padded_lanes(v)
                for v in s.group.outputs
                if lanes.get(v) == "undefined" and v not in shared
            ]
            for s in self.program.steps
        }

    def _run_poisoned(self) -> None:
        steps = ((s, i, calls) for s in self._segments for i, calls in zip(range(s.first, s.last), s.calls))
        for (segment, index, calls), (stale, free) in zip(steps, unowned(self._live, self._arena.size)):
            for part in stale:
                self._arena[part] = POISON
            step = self.program.steps[index]
            if segment.sequence is not None and step.is_control_flow:
                self._walk(step, segment)
            elif segment.sequence is not None:
                segment.sequence.run(*calls)
            else:
                segment.work()
            for part in free:
                astray = self._arena[part] != POISON
                if astray.any():
                    raise KernelError(
                        f"step {index} {step.group.name!r} wrote byte {part.start + astray.argmax()} of the "
                        "arena, which belongs to no buffer that lives then"
                    )
            for array, padded in self._lanes[index]:
                array[padded] = np.nan
            self._ran(index)


def _fill(place: Array, array: Array) -> None:
    """Copy an input, unless it is what `peek` gave: a cache that was written in place."""
    if place.nbytes < MIN_WAKING_BYTES or array.__array_interface__ != place.__array_interface__:
        place[...] = array
