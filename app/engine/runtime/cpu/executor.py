"""Binds a program to memory and runs it: compiled stretches, host calls between them."""

import hashlib
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Body, Constant, HostCall, KernelCall, RunBody, SubgraphCall, Workspace
from app.engine.core.placement import Slice
from app.engine.core.program import Program, Step
from app.engine.runtime import input_checks
from app.engine.types.errors import KernelError, LibraryError
from app.engine.types.layout import to_physical
from app.kernels.cpu.runtime.compiler import Compiler, resolve
from app.kernels.cpu.runtime.driver import KernelSequence, Team, compile_dispatch_loop
from app.kernels.cpu.runtime.parallel import helped

Array = np.ndarray[Any, Any]
ALIGNMENT = 64  # byte: a cache line
HUGE = 2 * 1024 * 1024  # byte of a huge page
# Byte before and after an array that are ours too. A load whose masked-off lanes lie in a page that is
# not there gives the right result, but far more slowly.
MARGIN = 4096
WORTH_FINDING = 64 * 1024  # byte of an array from which on equal ones are looked for
BLOCK = 16 * HUGE  # byte of a block of a pool; what is not touched takes no memory
# Predicted time of a step on all threads below which one thread runs it: to meet costs about a microsecond.
WORTH_SHARING = 1e-6
LONG_TO_FEED = 2**16  # byte of inputs, from which on helpers are woken before these are copied
LONGEST = 400  # characters of what a library says
GUARD = 4096  # bytes behind the arena
NO_ROOTS: Mapping[ir.Value, Array] = {}
POISON = 0xFF  # every floating-point type reads NaN, every index is far out of range


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps first..last (half-open) that run together: one stretch of kernel rows, or one host call."""

    first: int
    last: int
    stretch: KernelSequence | None
    rows: tuple[tuple[int, int], ...]  # of each step, half-open rows of the stretch
    host: Callable[[], None] | None = None

    @property
    def work(self) -> Callable[[], None]:
        """What runs all of it."""
        if self.stretch is not None:
            return self.stretch.run
        assert self.host is not None
        return self.host


def aligned(nbytes: int) -> Array:
    """Zeroed bytes that start on a cache line; large ones lie in huge pages where the system has them.

    Streams of weights run a third faster so: hardware prefetches up to the end of a page.
    """
    start = HUGE if nbytes >= HUGE else ALIGNMENT
    if nbytes < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        raw = np.zeros(nbytes + start + 2 * MARGIN, np.uint8)
    else:
        mapping = mmap.mmap(-1, nbytes + 2 * MARGIN + 2 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_HUGEPAGE)
        raw = np.frombuffer(mapping, np.uint8)
    first = -raw.ctypes.data % start + MARGIN
    end = first + nbytes
    raw[first - MARGIN : first] = raw[end : end + MARGIN] = 0  # written, so that the pages are there
    return raw[first:end]


class Pool:
    """Memory for many arrays that stay: pieces of large blocks, each on a cache line."""

    def __init__(self) -> None:
        self._block = aligned(0)
        self._used = 0

    def take(self, nbytes: int) -> Array:
        """Zeroed bytes that start on a cache line."""
        if self._used + nbytes > self._block.size:
            self._block = aligned(max(nbytes, BLOCK))
            self._used = 0
        piece = self._block[self._used : self._used + nbytes]
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return piece


class Weights:
    """Memory for arrays that no run changes, of programs that hold much the same: equal ones once.

    `read` is called after each large one: what it was made from is not needed any more.
    """

    def __init__(self, read: Callable[[], None] = lambda: None) -> None:
        self._read = read
        self._pool = Pool()
        self._known: dict[bytes, Array] = {}  # by digest

    def keep(self, array: Array) -> Array:
        """The bytes of an array, in memory that stays."""
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(raw.data, digest_size=32).digest() if raw.nbytes >= WORTH_FINDING else b""
        kept = self._known.get(digest)
        if kept is None:
            kept = self._pool.take(raw.nbytes)
            kept[:] = raw
            if digest:
                self._known[digest] = kept
        if digest:
            self._read()
        return kept


class _Body:
    """A body that is ready to run; see `plan.RunBody`."""

    def __init__(self, executor: "Executor", body: Body) -> None:
        model = body.program.compilation.graph
        self.executor = executor
        self.timed = False
        self.seconds = [0.0] * len(body.program.steps)  # since `timed` was set
        own = zip(model.inputs[: body.own], body.inputs[: body.own], strict=True)
        self._inputs = {i: v.name or "" for v, i in own}
        self._places = {i: executor.place_of(v) for v, i in zip(model.inputs, body.inputs[: body.own])}
        fed = [p for p in self._places.values() if p is not None]
        self._outputs: list[tuple[ir.Value, Array | None, bool]] = []
        for i in body.outputs:
            place = executor.place_of(model.outputs[i])
            # An output that is an input is written over as the next turn is fed.
            shared = place is not None and any(np.may_share_memory(place, p) for p in fed)
            self._outputs.append((model.outputs[i], place, shared))

    def __call__(self, values: Sequence[object | None], /) -> list[object]:
        self.executor.forget()
        self.executor.refeed({name: values[i] for i, name in self._inputs.items()})
        return self._run()

    def again(self, changed: Mapping[int, object], /) -> list[object]:
        for i, value in changed.items():
            place = self._places[i]
            if place is None:
                self.executor.refeed({self._inputs[i]: value})
            else:
                place[...] = value
        return self._run()

    def _run(self) -> list[object]:
        if self.timed:
            turn = self.executor.timed_run()
            self.seconds = [a + b for a, b in zip(self.seconds, turn, strict=True)]
        else:
            self.executor.step()
        return [
            self.executor.held(value) if place is None else place.copy() if shared else place
            for value, place, shared in self._outputs
        ]


class Executor:
    """A program in memory of its own: one arena, the weights, and staging for inputs and outputs.

    Args:
        program: what to run.
        compiler: where machine code comes from.
        poison: fill with NaN every byte of the arena that no live buffer owns, before and after
            each step, so that a wrong plan shows in the outputs; after a step also the padded lanes
            that it leaves undefined. Slow; for tests.
        cores: cores to pin the team to; empty leaves threads where they are.
        arena: where its values live, of whoever runs it as a body; else it takes memory of its own.
        roots: bytes of inputs and outputs, of whoever runs it as a body; it takes memory for the others.
        team: threads to run on, of whoever closes them; else it starts its own.
        progress: called with (done, total) while kernels compile.
        weights: where it keeps its constants, of several programs; else it has memory of its own.
    """

    def __init__(
        self,
        program: Program,
        compiler: Compiler,
        *,
        poison: bool = False,
        cores: Sequence[int] = (),
        arena: Array | None = None,
        roots: Mapping[ir.Value, Array] = NO_ROOTS,
        team: Team | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
        weights: Weights | None = None,
    ) -> None:
        self.program = program
        self._model = program.compilation.graph
        self._poison = poison
        # In poisoned memory what follows the arena is watched too.
        own = program.arena_bytes + GUARD * poison
        self._arena = aligned(own) if arena is None else arena[: program.arena_bytes]
        self._pool = Pool()  # of inputs and outputs
        self._weights = Weights() if weights is None else weights
        self._roots = dict(roots)  # memory of inputs, outputs and weights
        self._packed: dict[int, Array] = {}  # Constant arguments, by identity
        self._host: dict[ir.Value, object] = {}  # dynamic values of the current run
        self._bodies: dict[str, _Body] = {}  # by path
        self._alone: Callable[[Mapping[str, object]], dict[str, object]] | None = None
        self._compiler = compiler
        self._owns_team = team is None
        self._team = Team(program.compilation.options.threads, cores) if team is None else team
        kernels = {}
        with helped(compiler, program.kernels):
            for done, key in enumerate(program.kernels):
                progress(done, len(program.kernels))
                name, types, static, takes_thread = key
                try:
                    kernels[key] = compiler.compile(name, types, static, takes_thread=takes_thread)
                except Exception as cause:  # any failure of the compiler is the kernel's
                    raise KernelError(f"kernel {name!r} for {types} does not compile: {cause}") from cause
        self._kernels = kernels
        self._dispatch_loop = compile_dispatch_loop()
        self._segments = self._bind()
        self._work = [s.work for s in self._segments]
        self._inputs = {v.name or "": (v, self.place_of(v)) for v in self._model.inputs}
        fed = sum(graph.nbytes(v) for v, place in self._inputs.values() if place is not None)
        # What runs first, where helpers can wake meanwhile; a library has threads of its own.
        self._woken = self._segments[0].stretch if self._segments and fed >= LONG_TO_FEED else None
        self._outputs = {v.name or "": (v, self.place_of(v)) for v in self._model.outputs}
        self._held = self._holdings() if poison else {}
        self._lanes = self._padded_lanes() if poison else {}

    def close(self) -> None:
        """End the threads that it started, and give back what libraries hold; it runs no more."""
        self._alone, self._segments, self._work = None, (), []
        if self._owns_team:
            self._team.close()

    def run(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Outputs by name, copied out of the program's memory.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype than planned.
        """
        if self._alone is not None:
            return self._alone(inputs)
        self.feed(inputs)
        self.step()
        return self.fetch()

    def feed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs to where the program reads them."""
        input_checks.check_complete(inputs, self._inputs)
        if self._woken is not None:
            self._woken.wake()
        self.forget()
        self.refeed(inputs)

    def forget(self) -> None:
        """Drop the objects of the host of the run before."""
        self._host.clear()

    def refeed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs that have changed; the others stay as they are."""
        input_checks.check_known(inputs, self._inputs)
        for name, array in inputs.items():
            value, place = self._inputs[name]
            if place is None:
                self._host[value] = array
                continue
            given = input_checks.as_planned(name, array, place.shape, place.dtype)
            np.copyto(place, given)

    def step(self) -> None:
        """Run all steps on the inputs that were fed."""
        if self._poison:
            self._run_poisoned()
            return
        for work in self._work:
            work()

    def infer(self) -> None:
        """The same; when it returns, all is done."""
        self.step()

    def fetch(self) -> dict[str, object]:
        """Copies of the outputs."""
        return {
            name: self._host[value] if place is None else place.copy()
            for name, (value, place) in self._outputs.items()
        }

    def peek(self) -> dict[str, object]:
        """The outputs where the program has them: the next run overwrites them."""
        return {
            name: self._host[value] if place is None else place
            for name, (value, place) in self._outputs.items()
        }

    def array(self, value: ir.Value) -> Array:
        """A value's memory as an array of its shape and dtype."""
        kind = graph.dtype(value)
        assert kind is not None
        nbytes = graph.nbytes(value)
        base, offset = self._memory(value)
        return base[offset : offset + nbytes].view(kind).reshape(graph.static_shape(value))

    def held(self, value: ir.Value) -> object:
        """An object of the host, of the current run."""
        return self._host[value]

    def step_seconds(self) -> list[float]:
        """Seconds of every step in one run, from the time stamp counter after each row."""
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
        """Seconds of every step in one run; bodies go on with what they were told of time."""
        seconds = [0.0] * len(self.program.steps)
        for segment in self._segments:
            started = time.perf_counter()
            segment.work()
            if segment.stretch is None:
                seconds[segment.first] = time.perf_counter() - started
                continue
            elapsed = time.perf_counter() - started
            shares = _shares(segment, segment.stretch)
            for index, share in zip(range(segment.first, segment.last), shares, strict=True):
                seconds[index] = share * elapsed
        return seconds

    def seconds_alone(self, clock: Callable[[], float]) -> list[float]:
        """Seconds of every step in one run by a clock that is read around each; the inputs were fed.

        A clock of processor time does not count what else the machine does.
        """
        seconds = [0.0] * len(self.program.steps)
        for segment in self._segments:
            if segment.stretch is None:
                started = clock()
                segment.work()
                seconds[segment.first] = clock() - started
                continue
            for index, (first, last) in zip(range(segment.first, segment.last), segment.rows, strict=True):
                if first < last:
                    started = clock()
                    segment.stretch.run(first, last)
                    seconds[index] = clock() - started
        return seconds

    def _memory(self, value: ir.Value) -> tuple[Array, int]:
        location = self.program.placement.values[value]
        if location.space == "arena":
            return self._arena, location.offset
        root = location.root if location.root is not None else value
        if root not in self._roots:
            fixed = graph.constant(root)
            if fixed is None:
                self._roots[root] = self._pool.take(graph.nbytes(root))
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
                self._packed[id(argument)] = self._weights.keep(argument.array)
            return int(self._packed[id(argument)].ctypes.data)
        assert isinstance(argument, ir.Value)
        base, offset = self._memory(argument)
        return int(base.ctypes.data) + offset

    def _bind(self) -> tuple[Segment, ...]:
        segments: list[Segment] = []
        rows: list[tuple[int, int, tuple[int, ...]]] = []
        shared: list[bool] = []
        ranges: list[tuple[int, int]] = []

        def close(last: int) -> None:
            if ranges:
                stretch = KernelSequence(self._dispatch_loop, rows, self._team, shared)
                segments.append(Segment(last - len(ranges), last, stretch, tuple(ranges)))
            rows.clear()
            shared.clear()
            ranges.clear()

        for step in self.program.steps:
            if step.is_host:
                close(step.index)
                host = self._library_step(step) if step.is_library else self._host_step(step)
                segments.append(Segment(step.index, step.index + 1, None, ((0, 0),), host))
                continue
            first = len(rows)
            for call in step.calls:
                assert isinstance(call, KernelCall)
                kernel = self._kernels[call.kernel, call.types, call.static, call.takes_thread]
                numbers = tuple(self._address(a, step) for a in call.arguments)
                rows.append((kernel.address, call.units, numbers))
                shared.append(step.choice.seconds >= WORTH_SHARING)
            ranges.append((first, len(rows)))
        close(len(self.program.steps))
        return tuple(segments)

    def _host_step(self, step: Step) -> Callable[[], None]:
        calls = []
        for call in step.calls:
            assert isinstance(call, HostCall)
            bodies = [self._body(b, call, step) for b in call.bodies]
            places = [self.place_of(v) for v in call.outputs]
            function = resolve(call.function)(call.node, *([bodies, places] if bodies else []))
            fixed = [None if v is None else self._fixed(v) for v in call.inputs]
            dynamic = [(i, v) for i, v in enumerate(call.inputs) if v is not None and fixed[i] is None]
            calls.append((call, function, fixed, dynamic, places))

        def run() -> None:
            for call, function, fixed, dynamic, places in calls:
                operands = list(fixed)
                for i, value in dynamic:
                    operands[i] = self._host[value]
                for value, place, result in zip(call.outputs, places, function(operands), strict=True):
                    if place is None or result is not place:
                        self._store(value, result, f"{call.node.op_type} {call.node.name!r}")

        return run

    def _library_step(self, step: Step) -> Callable[[], None]:
        """What runs a sub-graph in its library, on our memory where the library takes it."""
        (call,) = step.calls
        assert isinstance(call, SubgraphCall)
        nodes = tuple(n.name or "" for n in step.group.nodes)

        def failed(cause: Exception) -> LibraryError:
            told = " ".join(str(cause).split())[:LONGEST]
            return LibraryError(
                f"{call.backend} fails on the sub-graph of {step.group.name!r} ({len(nodes)} nodes): {told}",
                backend=call.backend,
                nodes=nodes,
                pointer=f"node:{step.group.name}",
            )

        names = [[v.name or "" for v in values] for values in (call.inputs, call.outputs)]
        places = [[self.place_of(v) for v in values] for values in (call.inputs, call.outputs)]
        try:
            prepared = resolve(call.function)(call.model(), *names, call.threads)
            bound = hasattr(prepared, "bind") and all(p is not None for side in places for p in side)
            work = prepared.bind(*places) if bound else None
        except Exception as cause:  # libraries raise types of their own, and any of them is a refusal
            raise failed(cause) from cause

        def run_bound() -> None:
            assert work is not None
            try:
                work()
            except Exception as cause:  # as above
                raise failed(cause) from cause

        def run() -> None:
            try:
                given = [self._host[v] if p is None else p for v, p in zip(call.inputs, places[0])]
                results = prepared(given)
            except Exception as cause:  # as above
                raise failed(cause) from cause
            for value, result in zip(call.outputs, results, strict=True):
                self._store(value, result, f"{call.backend} of {step.group.name!r}")

        given = {v.name or "": p for v, p in zip(call.inputs, places[0])}
        planned = [v for v, p in zip(call.outputs, places[1]) if p is not None]
        returned = [v.name or "" for v in self._model.outputs]

        def alone(inputs: Mapping[str, object]) -> dict[str, object]:
            if inputs.keys() != self._inputs.keys():
                input_checks.check_complete(inputs, self._inputs)
                input_checks.check_known(inputs, self._inputs)
            values = [
                inputs[n] if p is None else input_checks.as_planned(n, inputs[n], p.shape, p.dtype)
                for n, p in given.items()
            ]
            try:
                made = dict(zip(names[1], prepared(values)))
            except Exception as cause:  # as above
                raise failed(cause) from cause
            for value in planned:
                self._computed(value, made[value.name or ""], f"{call.backend} of {step.group.name!r}")
            return made if names[1] == returned else {name: made[name] for name in returned}

        carried = sum(p.nbytes for side in places for p in side if p is not None)
        whole = len(self.program.steps) == 1 and set(self._model.outputs) <= set(call.outputs)
        if whole and not self._poison and (work is None or carried >= LONG_TO_FEED):
            self._alone = alone  # nothing is copied into the program's memory and out of it
        return run_bound if work is not None else run

    def place_of(self, value: ir.Value) -> Array | None:
        """A value's memory as an array; None for an object of the host."""
        return self.array(value) if value in self.program.placement.values else None

    def _fixed(self, value: ir.Value) -> object | None:
        """The array of a value that is always at the same place; None for an object of the host."""
        fixed = graph.constant(value)
        if fixed is not None:
            return fixed
        return self.place_of(value)

    def _body(self, body: Body | None, call: HostCall, step: Step) -> RunBody | None:
        """A body on the threads of this program, in the part of its arena that the step has for it."""
        if body is None:
            return None
        offset = self.program.placement.bodies.get(step.group, 0)
        arena = self._arena[offset : offset + body.nbytes]
        roots = {v: arena[start : start + nbytes] for v, (start, nbytes) in body.places.items()}
        captured = zip(
            body.program.compilation.graph.inputs[body.own :], body.inputs[body.own :], strict=True
        )
        for value, position in captured:
            outer = call.inputs[position]
            assert outer is not None
            base, start = self._memory(outer)
            roots[value] = base[start : start + graph.nbytes(outer)]
        executor = Executor(
            body.program,
            self._compiler,
            poison=self._poison,
            arena=arena,
            roots=roots,
            team=self._team,
            weights=self._weights,
        )
        ready = self._bodies[f"{step.group.name}/{body.name}"] = _Body(executor, body)
        return ready

    def _store(self, value: ir.Value, result: object, writer: str) -> None:
        if value not in self.program.placement.values:
            self._host[value] = _owned(result)
            return
        np.copyto(self.array(value), self._computed(value, result, writer))

    def _computed(self, value: ir.Value, result: object, writer: str) -> Array:
        """What a host call made, in the shape and dtype that were planned."""
        array = np.asarray(result)
        expected, kind = graph.static_shape(value), graph.dtype(value)
        if array.shape != expected or array.dtype != kind:
            raise KernelError(
                f"{writer}: output {value.name!r} was planned as {kind}{list(expected)}, "
                f"computed as {array.dtype}{list(array.shape)}",
                pointer=f"value:{value.name}",
            )
        return array

    def _holdings(self) -> dict[int, list[tuple[int, slice]]]:
        """By step: number and arena bytes of the buffers that live in it, where a value of theirs does."""
        held: dict[int, list[tuple[int, slice]]] = {i: [] for i in range(len(self.program.steps))}
        for number, buffer in enumerate(self.program.placement.buffers, start=1):
            whole = Slice(buffer.name, 0, buffer.nbytes, buffer.first, buffer.last)
            for part in buffer.slices or (whole,):
                start = buffer.offset + part.offset
                for index in range(part.first, part.last + 1):
                    held[index].append((number, slice(start, start + part.nbytes)))
        return held

    def padded_lanes(self, value: ir.Value) -> tuple[Array, Array]:
        """A value's memory in elements, and which of them are padded lanes."""
        columns, kind = self.program.compilation.plan.layout, graph.dtype(value)
        assert columns is not None
        assert kind is not None
        shape, layout = graph.static_shape(value), columns[value]
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
        before = np.zeros(self._arena.size, np.int32)
        for segment in self._segments:
            for index, (first, last) in zip(range(segment.first, segment.last), segment.rows, strict=True):
                owner = np.zeros(self._arena.size, np.int32)
                for number, held in self._held[index]:
                    owner[held] = number
                # A byte that changed hands is dead or new: its old contents mean nothing.
                self._arena[(owner != before) | (owner == 0)] = POISON
                before = owner
                if segment.stretch is not None:
                    segment.stretch.run(first, last)
                else:
                    segment.work()
                astray = np.flatnonzero((owner == 0) & (self._arena != POISON))
                if astray.size:
                    name = self.program.steps[index].group.name
                    raise KernelError(
                        f"step {index} {name!r} wrote byte {astray[0]} of the arena, "
                        "which belongs to no buffer that lives then"
                    )
                for array, padded in self._lanes[index]:
                    array[padded] = np.nan
                self._ran(index)

    def _ran(self, index: int) -> None:
        """Called after each step in poisoned memory; for tests."""


def _shares(segment: Segment, stretch: KernelSequence) -> list[float]:
    """Fraction of a stretch's time that each of its steps took."""
    ticks = stretch.ticks
    total = max(float(ticks[segment.rows[-1][1]] - ticks[0]), 1.0)
    return [float(ticks[last] - ticks[first]) / total for first, last in segment.rows]


def _owned(result: object) -> object:
    """A host value that shares no memory with the arena."""
    if isinstance(result, np.ndarray):
        return result.copy()
    if isinstance(result, list):
        return [_owned(r) for r in result]
    return result
