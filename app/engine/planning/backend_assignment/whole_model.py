"""A library that runs the whole model, or all between the nodes it runs anyhow, against our own steps.

Much cheaper than timing sub-graphs: the plan in the order of the backends races with each library alone,
which is given the model as the file has it.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.cost import roofline
from app.engine.passes.partition import whole_label
from app.engine.planning.backend_assignment.bench import Bench, Planned, Told, digest
from app.engine.planning.backend_assignment.race_statistics import TOLERATED_LOSS, is_decided, median_ratio
from app.engine.planning.timing_cache import store
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.inputs import samples
from app.engine.runtime.oracle import rejection, rounds
from app.engine.runtime.verify import check, compare
from app.engine.types.errors import EngineError
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler

MAX_SECONDS = 4.0  # s of a race, after which it takes no further round
MAX_ROUNDS = 15
# Tolerance of a race, relative to the output's maximum, for quantized models, where a rounded operand moves
# a value by a whole step, and for models in 16-bit floats, which a library rounds elsewhere. Verification
# compares them with the original.
ROUNDED = 0.05
NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def fastest_whole(
    compilation: Compilation,
    options: Options,
    compiler: Compiler,
    planned: Planned,
    inputs: Mapping[str, object] | None = None,
    progress: Told = lambda _done, _total: None,
) -> Compilation:
    """The compilation, assigned to a library that runs the model faster than the plan does, or a part.

    The part is all between the nodes that a library runs anyhow. A library must be faster by TOLERATED_LOSS.
    Both run on `inputs`, or on samples. A note tells the times, and why a library is refused.
    """
    libraries = compilation.registry.libraries(compilation.target.backends)
    if not libraries or not len(compilation.graph):
        return replace(compilation, source=None)
    inputs = inputs or samples(compilation.graph.inputs, compilation.bindings.storage)
    with pinned(options.threads):
        bench = Bench(compilation, options, compiler, planned, libraries)
        own = planned(compilation, options)
        if [s.is_library for s in own.steps] == [True]:
            return compilation
        ratios: dict[str, tuple[float, Mapping[str, str]]] = {}
        for done, name in enumerate(libraries):
            progress(done, len(libraries))
            for title, assignment in _candidates(bench, own, name):
                try:
                    ratios[title] = _ratio(bench, name, assignment, own, inputs), assignment
                except EngineError as cause:
                    bench.rejections[f"choose: {title} is refused: {cause.message}"] = None
    bench.cache.save()
    return _chosen(bench, ratios)


def given_up(compilation: Compilation, compiler: Compiler, reason: str) -> Compilation:
    """The compilation without what libraries were assigned by measurement, which is not tried again."""
    given = {label.partition("#")[0] for label in compilation.assignment.values() if label}
    keys = [_refused(compilation, name) for name in sorted(given)]
    store(compiler.folder, dict.fromkeys(keys, 1.0))
    note = f"choose: what libraries were assigned by measurement is given up: {reason}"
    return replace(compilation, assignment={}, source=None, notes=(*compilation.notes, note))


def _refused(compilation: Compilation, library: str) -> str:
    """Key of the timings table for a library that computes a model otherwise than it should."""
    return f"whole-refused {library} {digest(compilation, f'{compilation.options.tolerance:g}')}"


def _candidates(bench: Bench, own: Program, name: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Titles and labels by node of what a library may run."""
    yield f"{name} on the whole model", dict.fromkeys(bench.nodes, whole_label(name))
    between = _between(bench, own, name)
    if between and len(between) < len(bench.nodes):
        labels = {n: f"{name}#between" if n in between else "" for n in bench.nodes}
        yield f"{name} on all {len(between)} nodes between those it runs", labels


def _between(bench: Bench, own: Program, name: str) -> frozenset[str]:
    """Nodes on the paths between those that a library runs in several steps of a plan, and these."""
    steps = [s for s in own.steps if s.is_library and s.choice.implementation.backend == name]
    if len(steps) < 2:
        return frozenset()
    after = {n.name or "" for s in steps for n in s.group.nodes} & bench.nodes.keys()
    before = set(after)
    needed = {
        reader: {p.name or "" for v in graph.reads(node) if (p := v.producer()) is not None}
        for reader, node in bench.nodes.items()
    }
    for node in bench.nodes:  # in topological order
        if not after.isdisjoint(needed[node]):
            after.add(node)
    for node in reversed(bench.nodes):
        if node in before:
            before |= needed[node]
    return frozenset(after & before)


def _ratio(
    bench: Bench, name: str, assignment: Mapping[str, str], own: Program, inputs: Mapping[str, object]
) -> float:
    """Time of a plan with a library in times of the plan of single steps.

    Raises:
        EngineError: the library is refused, or fails.
    """
    compilation, table = bench.compilation, bench.cache.table
    if _refused(compilation, name) in table:
        raise EngineError("its outputs differed from the original's")
    reason = rejection((compilation.source or compilation).graph, compilation.target)
    if reason is not None:
        raise EngineError(reason)
    other = bench.planned(replace(compilation, assignment=assignment), bench.options)
    if [s.is_library for s in other.steps] != [True] and "" not in assignment.values():
        told = other.compilation.plan.require("passed_over").values()
        reasons = (found[name] for found in told if name in found)
        raise EngineError(next(reasons, "it refuses a part of it"))
    steps = [
        [(roofline.called(s.choice.implementation), len(s.group.nodes)) for s in p.steps]
        for p in (own, other)
    ]
    implementation, planned = bench.implementations[name], bench.digest(repr(steps))
    key = f"whole {roofline.called(implementation)} x{bench.options.threads} {planned}"
    if key not in table:
        table[key], seconds = race(bench, own, other, inputs)
        if len(other.steps) == 1:
            table[roofline.key(implementation, other.steps[0].group, bench.context)] = seconds
    return table[key]


def race(bench: Bench, own: Program, other: Program, inputs: Mapping[str, object]) -> tuple[float, float]:
    """The median ratio of the times of two programs, and the seconds of the second.

    Raises:
        EngineError: one does not run, or their outputs differ.
    """
    main = bench.compilation.graph
    names = {v.name for v in main.inputs}
    fed = {k: v for k, v in inputs.items() if k in names}
    narrow = any(v.dtype in NARROW for n in bench.nodes.values() for v in n.outputs)
    tolerance = max(bench.options.tolerance, ROUNDED if narrow or rounds(main) else 0.0)
    with closing(bench.executor(own)) as one, closing(bench.executor(other)) as two:
        check(compare(one.run(fed), two.run(fed), tolerance))
        taken: list[list[float]] = [[], []]
        started = time.perf_counter()
        while len(taken[0]) < MAX_ROUNDS:
            for column, more in zip(taken, bench.in_turn([one, two], fed, 2)):
                column += more
            if is_decided(*taken) or time.perf_counter() - started > MAX_SECONDS:
                break
    return median_ratio(*taken), float(np.median(taken[1]))


def _chosen(bench: Bench, ratios: Mapping[str, tuple[float, Mapping[str, str]]]) -> Compilation:
    """The compilation with the best assignment by title, where it is fast enough."""
    compilation = bench.compilation
    best = min(ratios, key=lambda title: ratios[title][0], default="")
    taken = bool(best) and ratios[best][0] < 1.0 - TOLERATED_LOSS
    told = ", ".join(f"{title} takes {ratio:.3g} times as long" for title, (ratio, _) in ratios.items())
    what = f"{best} is taken" if taken else "the plan of single steps is taken"
    notes = (f"choose: {what}; beside the plan of single steps {told}",) if told else ()
    chosen: Mapping[str, str] = ratios[best][1] if taken else {}
    return replace(
        compilation,
        assignment=chosen,
        streams=() if taken else compilation.streams,
        source=compilation.source if taken and "" not in chosen.values() else None,
        timings=bench.cache.table,
        notes=(*compilation.notes, *notes, *bench.rejections),
    )
