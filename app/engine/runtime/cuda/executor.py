"""Binds a program to the memory of a GPU and runs it: launches, recorded once and replayed as a whole.

There are three allocations: weights and packed constants, the arena of the plan, and the inputs and outputs.
All addresses are fixed before the first run, so a graph of the launches holds for every run. Eager and
recorded runs call the same launches. What the reference evaluator computes runs on the host between two
graphs, its values copied there and back.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Constant, HostCall, LaunchCall, SubgraphCall, Workspace
from app.engine.core.program import Program, Step
from app.engine.runtime import input_checks
from app.engine.runtime.cuda.device import ALIGNMENT, Array, Device, Loaded, Passed, Pointer
from app.engine.runtime.executor import POISON, ProgramExecutor, owned_by_step, stretches, unowned
from app.engine.types.errors import KernelError
from app.kernels.cpu.runtime.compiler import resolve
from app.kernels.cuda.kernel import Kernel, Launch, Ref

Work: TypeAlias = Callable[[], None]


@dataclass(eq=False)
class Region:
    """An allocation in the making: pieces one after another, each aligned."""

    nbytes: int = 0
    address: int = 0
    offsets: dict[object, int] = field(default_factory=dict)

    def add(self, key: object, nbytes: int) -> None:
        """A piece of so many bytes."""
        self.offsets[key] = self.nbytes
        self.nbytes += -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps first..last (half-open) that run together: launches, or one host call.

    `steps` holds the launches of each.
    """

    first: int
    last: int
    steps: tuple[Work, ...]
    is_host: bool = False

    def __call__(self) -> None:
        """Run them one by one."""
        for work in self.steps:
            work()


class DeviceExecutor(ProgramExecutor):
    """A program in the memory of a device.

    Args:
        program: what to run.
        device: where.
        owns_device: whether it is closed with the executor.
        debug: wait after each launch, and name the kernel, step and arguments of one that fails. Slow, and
            never recorded.
        poison: fill with NaN every byte of the arena that no live buffer owns, before each step, so that a
            wrong plan shows in the outputs. Slow, and never recorded; for tests.
        progress: called with (done, total) while kernels are loaded.

    Raises:
        CapacityError: the device has too little memory.
        KernelError: a kernel cannot be compiled or loaded.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        *,
        debug: bool = False,
        poison: bool = False,
        owns_device: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> None:
        super().__init__(program)
        self._device = device
        self._debug, self._poison, self._owns_device = debug, poison, owns_device
        self._timelines: list[Callable[[], list[float]]] | None = None
        self._keep: dict[int, Constant] = {}  # identities are keys: what has one must live
        self._weights, self._staging, self._arena = Region(), Region(), Region()
        self._regions = (self._weights, self._staging, self._arena)
        self._arrange()
        try:
            for region in self._regions:
                region.address = device.allocate(max(region.nbytes, ALIGNMENT))
            self._upload()
            self._segments = self._bind(progress)
        except BaseException:
            self.close()
            raise
        self._inputs = {v.name or "": v for v in self._model.inputs}
        self._outputs = {v.name or "": v for v in self._model.outputs}
        self._replays: list[Work] | None = None
        stale = (parts for parts, _ in unowned(owned_by_step(program), self._arena.nbytes))
        self._stale = list(stale) if poison else []

    def close(self) -> None:
        """Give the memory back."""
        for region in self._regions:
            if region.address:
                self._device.release(region.address)
                region.address = 0
        if self._owns_device:
            self._device.close()

    def feed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs to where the program reads them."""
        input_checks.check_known(inputs, self._inputs)
        input_checks.check_complete(inputs, self._inputs)
        self._host.clear()
        for name, value in self._inputs.items():
            if graph.is_dynamic(value):
                self._host[value] = inputs[name]
                continue
            shape, kind = graph.static_shape(value), graph.dtype(value)
            array = input_checks.dense(name, inputs[name], value, self._declared)
            given = input_checks.as_planned(name, array, shape, kind)
            self._write(value, given)

    def step(self) -> None:
        """Run all steps on the inputs that were fed: the first time one by one, then as recorded."""
        if self._poison:
            self._run_poisoned()
        elif self._replays is None:
            for segment in self._segments:
                segment()
            self._device.wait()
            if not self._debug:
                self._replays = [s if s.is_host else self._device.record(s) for s in self._segments]
        else:
            for work in self._replays:
                work()

    def infer(self) -> None:
        """The same; when it returns, all is done."""
        self.step()
        self._device.wait()

    def fetch(self) -> dict[str, object]:
        """Copies of the outputs."""
        return {
            name: self._host[value] if graph.is_dynamic(value) else self.array(value)
            for name, value in self._outputs.items()
        }

    def array(self, value: ir.Value) -> Array:
        """A copy of a value, row-major."""
        found = np.empty(graph.static_shape(value), graph.element_type(value))
        if found.nbytes:
            self._device.read(self._place(value)[0], found.reshape(-1).view(np.uint8))
        return found

    def step_seconds(self) -> list[float]:
        """Seconds of every step in one run: of launches on the device's own clock, as replayed."""
        if self._timelines is None:
            self.infer()  # everything has run before it is recorded
            self._timelines = [
                functools.partial(self._host_seconds, s)
                if s.is_host or self._debug
                else self._device.timeline(s.steps)
                for s in self._segments
            ]
        return [seconds for timeline in self._timelines for seconds in timeline()]

    def _host_seconds(self, segment: Segment) -> list[float]:
        seconds = []
        for work in segment.steps:
            started = time.perf_counter()
            work()
            self._device.wait()
            seconds.append(time.perf_counter() - started)
        return seconds

    def body_seconds(self) -> dict[str, float]:
        """None: the reference evaluator runs bodies."""
        return {}

    def _write(self, value: ir.Value, array: Array) -> None:
        self._send(self._place(value)[0], array)

    def _send(self, address: int, array: Array) -> None:
        if array.nbytes:
            self._device.write(address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def _arrange(self) -> None:
        """Give everything outside the arena a place."""
        self._arena.nbytes = self.program.arena_bytes
        for value in (*self._model.inputs, *self._model.outputs):
            if value in self.program.placement.values and value not in self._staging.offsets:
                self._root(value)
        for step in self.program.steps:
            for call in step.calls:
                for argument in call.arguments if isinstance(call, LaunchCall) else ():
                    if isinstance(argument, ir.Value):
                        self._root(argument)
                    elif isinstance(argument, Constant) and id(argument) not in self._keep:
                        self._keep[id(argument)] = argument
                        self._weights.add(id(argument), argument.nbytes)

    def _root(self, value: ir.Value) -> None:
        """A place for what owns a value's memory, unless that is the arena."""
        location = self.program.placement.values[value]
        if location.space == "arena":
            return
        root = location.root if location.root is not None else value
        fixed = graph.constant(root)
        region = self._staging if fixed is None else self._weights
        if root not in region.offsets:
            region.add(root, graph.nbytes(root) if fixed is None else fixed.nbytes)

    def _upload(self) -> None:
        """Copy weights and constants; those that are packed are made one by one, and not kept."""
        for key, offset in self._weights.offsets.items():
            array = graph.constant(key) if isinstance(key, ir.Value) else None
            if array is None:
                assert isinstance(key, int)
                array = self._keep[key].array
            self._send(self._weights.address + offset, array)

    def _place(self, value: ir.Value) -> tuple[int, int]:
        """Address and bytes of a value."""
        location = self.program.placement.values[value]
        if location.space == "arena":
            return self._arena.address + location.offset, location.nbytes
        root = location.root if location.root is not None else value
        region = self._weights if root in self._weights.offsets else self._staging
        return region.address + region.offsets[root] + location.offset, location.nbytes

    def _passed(self, argument: object, given: object, type_: str, step: Step) -> Passed:
        """Value that a kernel gets for an argument of a call, where the launch has a role or a number."""
        if not isinstance(given, Ref):
            assert isinstance(given, int | float)
            return given
        if isinstance(argument, Workspace):
            address, nbytes = self._arena.address + step.workspaces[id(argument)], argument.nbytes
        elif isinstance(argument, Constant):
            address, nbytes = self._weights.address + self._weights.offsets[id(argument)], argument.nbytes
        else:
            assert isinstance(argument, ir.Value)
            address, nbytes = self._place(argument)
        return Pointer(address + given.offset, nbytes - given.offset, type_.removesuffix("*"))

    def _bind(self, progress: Callable[[int, int], None]) -> tuple[Segment, ...]:
        wanted = kernels_of(self.program)
        loaded: dict[Kernel, Loaded] = {}
        for done, kernel in enumerate(wanted):
            progress(done, len(wanted))
            loaded[kernel] = self._device.load(kernel)
        segments = []
        for steps in stretches(self.program.steps):
            if steps[0].is_host:
                works = [self._host_step(steps[0])]
            else:
                works = [_in_turn(self._launches(step, loaded)) for step in steps]
            first, last = steps[0].index, steps[-1].index + 1
            segments.append(Segment(first, last, tuple(works), steps[0].is_host))
        return tuple(segments)

    def _launches(self, step: Step, loaded: Mapping[Kernel, Loaded]) -> list[Work]:
        found = []
        for call in step.calls:
            assert isinstance(call, LaunchCall), f"{call} of step {step.group.name!r} is for a CPU"
            launch = launch_of(call)
            given = zip(call.arguments, launch.arguments, call.types, strict=True)
            passed = tuple(self._passed(a, g, t, step) for a, g, t in given)
            work = loaded[launch.kernel].bound(launch.grid, passed)
            found.append(self._watched(work, launch, passed, step) if self._debug else work)
        return found

    def _watched(self, work: Work, launch: Launch, passed: Sequence[Passed], step: Step) -> Work:
        """A launch that is waited for; where it fails, the error says which it was."""
        kernel = launch.kernel
        given = ", ".join(
            f"{g.role} = {p.nbytes} byte of {p.element} at {p.address:#x}"
            if isinstance(g, Ref) and isinstance(p, Pointer)
            else f"{kind} {p}"
            for g, p, kind in zip(launch.arguments, passed, kernel.signature, strict=True)
        )

        def run() -> None:
            try:
                work()
                self._device.wait()
            except KernelError as cause:
                raise KernelError(
                    f"step {step.index} {step.group.name!r}: kernel {kernel.name!r}, {launch.grid} blocks of "
                    f"{kernel.threads} threads with {kernel.shared_bytes} byte of shared memory, "
                    f"({given}): {cause.message}",
                    pointer=f"node:{step.group.name}",
                ) from cause

        return run

    def _host_step(self, step: Step) -> Work:
        """A function that runs the reference evaluator on copies of what it reads."""
        calls = []
        for call in step.calls:
            if isinstance(call, SubgraphCall):
                raise KernelError(
                    f"step {step.group.name!r}: backend {call.backend!r} is for CPUs; a program on a GPU "
                    "takes backends 'cuda' and 'reference'",
                    pointer=f"node:{step.group.name}",
                )
            assert isinstance(call, HostCall)
            bodies = [[None] * len(call.bodies), [None] * len(call.outputs)] if call.bodies else []
            calls.append((call, resolve(call.function)(call.node, *bodies)))

        def read(value: ir.Value | None) -> object:
            if value is None:
                return None
            fixed = graph.constant(value)
            if fixed is not None:
                return fixed
            return self.array(value) if value in self.program.placement.values else self._host[value]

        def run() -> None:
            for call, function in calls:
                results = function([read(v) for v in call.inputs])
                for value, result in zip(call.outputs, results, strict=True):
                    self.store(value, result, f"{call.node.op_type} {call.node.name!r}")

        return run

    def _run_poisoned(self) -> None:
        works = [work for segment in self._segments for work in segment.steps]
        for index, work in enumerate(works):
            for part in self._stale[index]:
                self._device.fill(self._arena.address + part.start, part.stop - part.start, POISON)
            work()
            self._ran(index)
        self._device.wait()


def launch_of(call: LaunchCall) -> Launch:
    """The launch of a call, which every one has."""
    assert call.launch is not None
    return call.launch


def kernels_of(program: Program) -> tuple[Kernel, ...]:
    """Every distinct kernel that a program launches, in order of first use."""
    calls = (c for s in program.steps for c in s.calls if isinstance(c, LaunchCall))
    return tuple(dict.fromkeys(launch_of(c).kernel for c in calls))


def _in_turn(works: Sequence[Work]) -> Work:
    """All of them, one after another."""

    def work() -> None:
        for each in works:
            each()

    return works[0] if len(works) == 1 else work
