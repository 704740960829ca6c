"""Seconds of sites in a program, measured step by step; those of conversions count with a site."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from app.engine.core.program import Program, Step
from app.engine.planning import session
from app.engine.planning.precision.sites import Site
from app.kernels.cpu.runtime.compiler import Compiler

RUNS = 15  # of a program, of which each step counts by its least
ROUNDS = 31  # runs of each of two programs, taking turns, at least
RACE = 0.2  # seconds of these runs: a program of microseconds takes as many as tell it from noise

Bind: TypeAlias = Callable[[Program], session.Running]


class Bench:
    """Programs in memory, fed with inputs and run once; all but the first leave for the next."""

    def __init__(self, compiler: Compiler, inputs: Mapping[str, object]) -> None:
        self._compiler, self._inputs = compiler, inputs
        self._first: Program | None = None
        self._bound: list[session.Running] = []

    def bind(self, program: Program) -> session.Running:
        """The program in memory."""
        for executor in self._bound:
            if executor.program is program:
                return executor
        self._first = self._first or program
        if program is not self._first:
            self.keep_first()
        executor = session.bound(program, self._compiler)
        self._bound.append(executor)
        executor.feed(accepted(program, self._inputs))
        executor.infer()
        return executor

    def keep_first(self) -> None:
        """Give the memory of all others back."""
        for executor in self._bound:
            if executor.program is not self._first:
                executor.close()
        self._bound = [e for e in self._bound if e.program is self._first]

    def close(self) -> None:
        """Give all memory back, until programs are bound again."""
        while self._bound:
            self._bound.pop().close()


def accepted(program: Program, inputs: Mapping[str, object]) -> dict[str, object]:
    """Inputs that a program has."""
    free = {v.name for v in program.compilation.graph.inputs}
    return {k: v for k, v in inputs.items() if k in free}


def step_seconds(programs: Sequence[Program], bind: Bind) -> list[list[float]]:
    """Least seconds of the steps of each program, which take turns on this machine."""
    executors = [bind(program) for program in programs]
    runs = [[executor.step_seconds() for executor in executors] for _ in range(RUNS)]
    return [[min(column) for column in zip(*own, strict=True)] for own in zip(*runs, strict=True)]


def by_site(program: Program, seconds: Sequence[float], sites: Sequence[Site]) -> dict[str, float]:
    """Seconds of each site; `""` is what belongs to none.

    A step without a site, a conversion or a pooling, counts with the first site that reads what it makes,
    else with the one whose result it reads: the same rule for every program of a model.
    """
    names = {site.name for site in sites}
    owners = [_sites_of(step, names) for step in program.steps]
    readers: dict[str | None, list[int]] = {}
    writer: dict[str | None, int] = {}
    for step in program.steps:
        for value in step.group.inputs:
            readers.setdefault(value.name, []).append(step.index)
        for value in step.group.outputs:
            writer[value.name] = step.index
    for step in reversed(program.steps):
        if not owners[step.index]:
            behind = [owners[r] for v in step.group.outputs for r in readers.get(v.name, [])]
            owners[step.index] = next((owner for owner in behind if owner), ())
    for step in program.steps:
        if not owners[step.index]:
            before = [owners[writer[v.name]] for v in step.group.inputs if v.name in writer]
            owners[step.index] = next((owner for owner in before if owner), ())
    found = dict.fromkeys(("", *names), 0.0)
    for step, spent in zip(program.steps, seconds, strict=True):
        for owner in owners[step.index] or ("",):
            found[owner] += spent / max(len(owners[step.index]), 1)
    return found


def _sites_of(step: Step, names: set[str]) -> tuple[str, ...]:
    """Sites that a step computes: nodes that replace another have its name, or that and a number."""
    owners = (origin(node.name or "", names) for node in step.group.nodes)
    return tuple(dict.fromkeys(owner for owner in owners if owner))


def origin(name: str, names: Collection[str]) -> str:
    """The one of `names` that a node has, or that a node had which it replaces; empty without one."""
    while name not in names and "." in name and name.rpartition(".")[2].isdigit():
        name = name.rpartition(".")[0]
    return name if name in names else ""


def raced(programs: Sequence[Program], bind: Bind) -> list[list[float]]:
    """Seconds of ROUNDS runs of each program or more, taking turns."""
    found: list[list[float]] = [[] for _ in programs]
    executors = [bind(program) for program in programs]
    until = time.perf_counter() + RACE
    while len(found[0]) < ROUNDS or time.perf_counter() < until:
        for executor, taken in zip(executors, found, strict=True):
            started = time.perf_counter()
            executor.infer()
            taken.append(time.perf_counter() - started)
    return found
