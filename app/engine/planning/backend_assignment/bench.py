"""A graph, the libraries that may run parts of it, and the means to plan and time programs of it."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from app.engine.core import graph
from app.engine.core.calls import SubgraphCall
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.core.signature import signature
from app.engine.cost import roofline
from app.engine.planning.backend_assignment.intervals import Assignment
from app.engine.planning.backend_assignment.race_statistics import ROUNDS
from app.engine.planning.timing_cache import TimingCache
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.memory import aligned
from app.engine.runtime.cpu.rows import compiled
from app.engine.runtime.inputs import samples
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler, resolve

Array = np.ndarray[Any, Any]
Planned: TypeAlias = Callable[[Compilation, Options], Program]
Told: TypeAlias = Callable[[int, int], None]  # progress: (done, total)

REPEATS = 3  # samples of a sub-graph in a library
SAMPLE = 5e-3  # s, of one sample


class Bench:
    """Plans and times programs and sub-graphs of one graph.

    Attributes:
        planned: plans a compilation.
        libraries: names, in order of preference.
        cache: times that are known.
        rejections: what was refused, and why, in order of appearance.
        implementations: that run a sub-graph, by library.
        versions: the libraries with their versions.
    """

    def __init__(
        self,
        compilation: Compilation,
        options: Options,
        compiler: Compiler,
        planned: Planned,
        libraries: Sequence[str],
    ) -> None:
        self.compilation = compilation
        self.options = options
        self.planned = planned
        self.libraries = libraries
        self.cache = TimingCache(compiler.folder)
        self.context = replace(
            PlanningContext.of(replace(compilation, options=options)), timings=self.cache.table
        )
        self.nodes = {n.name or "": n for n in compilation.graph}
        self.rejections: dict[str, None] = {}
        subgraph = compilation.registry.candidates(SUBGRAPH, tuple(libraries))
        self.implementations = {implementation.backend: implementation for implementation in subgraph}
        called = [roofline.called(self.implementations[n]) for n in libraries if n in self.implementations]
        self.versions = " ".join(called)
        self._compiler = compiler
        self._clock = time.process_time if options.threads == 1 else time.perf_counter

    @cached_property
    def base(self) -> Mapping[str, str]:
        """Assignment by node of what no kernel of ours computes, to libraries; empty for other nodes."""
        found = self.planned(replace(kernels_first(self.compilation), assignment={}), self.options)
        parts = {n.name or "": p for n, p in (found.compilation.plan.partition or {}).items()}
        return {
            name: f"{parts[name].backend}#base{parts[name].index}"
            if name in parts and parts[name].backend in self.libraries
            else ""
            for name in self.nodes
        }

    def assigned(self, assignment: Assignment) -> Compilation:
        """The compilation with sub-graphs assigned to libraries, beside what only these compute."""
        labels = dict(self.base)
        for i, (name, *nodes) in enumerate(assignment):
            labels.update(dict.fromkeys(nodes, f"{name}#{i}"))
        return replace(self.compilation, assignment=labels)

    def program(self, assignment: Assignment) -> Program:
        """The program of an assignment."""
        return self.planned(self.assigned(assignment), self.options)

    def executor(self, program: Program) -> Executor:
        """A program in memory; whoever asks closes it."""
        return Executor(program, self._compiler, drawn=True)

    def compile_together(self, programs: Sequence[Program]) -> None:
        """Compile the kernels of programs at once, which all cores share."""
        compiled(tuple(dict.fromkeys(k for p in programs for k in p.kernels)), self._compiler)

    def digest(self, text: str) -> str:
        """Hash of the graph's structure and a text."""
        return digest(self.compilation, text)

    def in_turn(
        self, executors: Sequence[Executor], inputs: Mapping[str, object], rounds: int = ROUNDS
    ) -> list[list[float]]:
        """Seconds of whole runs, by executor and round; every second round goes backwards."""
        taken: list[list[float]] = [[] for _ in executors]
        for turn in range(rounds):
            pairs = list(zip(taken, executors))
            for column, executor in reversed(pairs) if turn % 2 else pairs:
                executor.run(inputs)
                times, spent = 0, 0.0
                started = self._clock()
                while times == 0 or spent < SAMPLE:
                    executor.run(inputs)
                    times, spent = times + 1, self._clock() - started
                column.append(spent / times)
        return taken

    def step_seconds(self, program: Program, steps: Sequence[tuple[str, ...]]) -> list[float]:
        """Seconds of each step of our own program, the least of several runs."""
        key = f"steps-alone x{self.options.threads} {self.digest(repr(steps))}"
        keys = [f"{key} {i}" for i in range(len(steps))]
        if not all(k in self.cache.table for k in keys):
            with closing(self.executor(program)) as executor:
                executor.run(samples(program.compilation.graph.inputs, program.compilation.bindings.storage))
                runs = [self._seconds_alone(executor) for _ in range(ROUNDS)]
            reading = min(self._reading() for _ in range(ROUNDS))
            self.cache.table.update(zip(keys, (max(min(c) - reading, 0.0) for c in zip(*runs))))
        return [self.cache.table[k] for k in keys]

    def _seconds_alone(self, executor: Executor) -> list[float]:
        """Seconds of every step in one run by the clock, read around each; the inputs were fed.

        A clock of processor time does not count what else the machine does.
        """
        seconds = [0.0] * len(executor.program.steps)
        for segment in executor.segments:
            if segment.sequence is None:
                started = self._clock()
                segment.work()
                seconds[segment.first] = self._clock() - started
                continue
            for index, (first, last) in zip(range(segment.first, segment.last), segment.calls, strict=True):
                if first < last:
                    started = self._clock()
                    segment.sequence.run(first, last)
                    seconds[index] = self._clock() - started
        return seconds

    def _reading(self) -> float:
        """Seconds of reading the clock twice."""
        started = self._clock()
        return self._clock() - started

    def library_seconds(self, group: Group, name: str) -> float | None:
        """Measured seconds of a sub-graph in a library; None where it cannot run it."""
        implementation = self.implementations.get(name)
        if implementation is None or implementation.rejection(group, self.context) is not None:
            return None
        if any(graph.is_dynamic(v) for v in (*group.inputs, *group.outputs) if v.name):
            return None
        key = roofline.key(implementation, group, self.context)
        if key not in self.cache.table:
            try:
                self.cache.table[key] = self.time_library(implementation, group)
            except Exception as cause:  # libraries raise types of their own; any of them is a rejection
                told = " ".join(str(cause).split())[:300]
                self.rejections[f"{name} cannot run the sub-graph of {group.name!r}: {told}"] = None
                return None
        return self.cache.table[key]

    def time_library(self, implementation: Implementation, group: Group) -> float:
        """Seconds of one run of a sub-graph in a library, on our memory where the library takes it."""
        (call,) = implementation.lower(group, self.context)
        assert isinstance(call, SubgraphCall)
        names = [[v.name or "" for v in values] for values in (call.inputs, call.outputs)]
        prepared = resolve(call.function)(call.model(), *names, call.threads)
        given = samples(call.inputs)
        inputs = [_held(np.asarray(given[name])) for name in names[0]]
        outputs = [_held(np.asarray(a)) for a in samples(call.outputs).values()]
        bound = hasattr(prepared, "bind")
        run = prepared.bind(inputs, outputs) if bound else lambda: prepared(inputs)
        run()
        started = self._clock()
        run()
        once = max(self._clock() - started, 1e-6)
        times = max(int(SAMPLE / once), 1)
        taken = []
        for _ in range(REPEATS if once < 0.2 else 2):
            started = self._clock()
            for _ in range(times):
                run()
            taken.append((self._clock() - started) / times)
        return min(taken)


def kernels_first(compilation: Compilation) -> Compilation:
    """The same with libraries for what no kernel of ours computes, and the reference evaluator last."""
    kept, target = _by_node(compilation), compilation.target
    ours = tuple(n for n in kept if n != "reference")
    libraries = tuple(n for n in target.backends if n not in kept)
    backends = (*ours, *libraries, *(n for n in kept if n == "reference"))
    return replace(compilation, target=replace(target, backends=backends))


def _by_node(compilation: Compilation) -> tuple[str, ...]:
    """The backends that choose node by node."""
    known = compilation.registry.backends
    return tuple(n for n in compilation.target.backends if n not in known or known[n].selector is None)


def digest(compilation: Compilation, text: str) -> str:
    """Hash of the graph's structure and a text."""
    nodes = tuple(compilation.graph)
    whole = graph.group(nodes, nodes[0], SUBGRAPH, lambda v: bool(v.name))
    return hashlib.sha256(f"{signature(whole)} {text}".encode()).hexdigest()[:32]


def without_libraries(compilation: Compilation) -> Compilation:
    """The same with the backends that choose node by node only."""
    kept = _by_node(compilation)
    return replace(compilation, target=replace(compilation.target, backends=kept or ("reference",)))


def _held(array: Array) -> Array:
    place = aligned(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(place, array)
    return place
