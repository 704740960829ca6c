"""Which backend runs which sub-graph, by measurement on this machine.

The steps of the program that our own kernels make are in a topological order, so every interval of
them is a convex sub-graph. The interval of all steps is halved again and again where few bytes cross;
every interval is timed in every library, alone and on row-major values, and a tree of intervals tells
the least sum, conversions at the borders included. Sums are no more than a guess: whole programs of
the best guesses then race with those of each single backend. The fastest of many is partly luck: a
mixture that leads must win once more, in a duel with the fastest single backend. All times are kept in
the timings table, so that the same choice is made again without measuring.

`fastest_whole` is much cheaper: the plan in the order of the backends races with each library alone, which
is given the model as the file has it.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import SubgraphCall
from app.engine.core.group import SUBGRAPH, Group
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost import roofline
from app.engine.layouts.conversions import conversion
from app.engine.passes.partition import whole_label
from app.engine.planning import autotune
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.cpu.executor import Executor, aligned
from app.engine.runtime.oracle import rejection, rounds
from app.engine.runtime.verify import check, compare
from app.engine.types.errors import EngineError
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler, resolve

Array = np.ndarray[Any, Any]
Planned: TypeAlias = Callable[[Compilation, Options], Program]
Times: TypeAlias = Mapping[str, float]

SHARE = 0.01  # of the whole time: a smaller interval is not halved
LEAST = 20e-6  # seconds of an interval that is worth a call of a library
HOPELESS = 1.5  # times ours that every library takes: halves of such an interval are not timed
DEPTH = 2  # halvings that are timed even so
REPEATS = 3
SAMPLE = 5e-3  # seconds of one sample
ROUNDS = 7  # of a race
DUEL = 21  # rounds of a duel
MARGIN = 0.01  # by which a mixture must win its duel, in the median and as a fraction
WON = 0.75  # of the rounds of its duel that a mixture must win
DUELS = 2  # mixtures that are given one
GAIN = 0.003  # of the whole time, that an interval must promise to race
RUNNERS = 4  # intervals that race alone beside our own steps
SLOWER = 0.03  # than a library that runs the whole model, that a plan may be
CLOSE = 0.15  # from there, in which a race of whole models takes all rounds
FAR = 2.0  # times as fast, where one round is enough
RACE_SECONDS = 4.0  # after which a race takes no further round
RACE_ROUNDS = 15
# Tolerance of a race, relative to the output's maximum, for quantized models, where a rounded operand moves
# a value by a whole step, and for models in 16-bit floats, which a library rounds elsewhere. Verification
# compares them with the original.
ROUNDED = 0.05
NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def without_libraries(compilation: Compilation) -> Compilation:
    """The same with the backends that choose node by node only."""
    kept = _by_node(compilation)
    return replace(compilation, target=replace(compilation.target, backends=kept or ("reference",)))


def kernels_first(compilation: Compilation) -> Compilation:
    """The same with libraries for what no kernel of ours computes, and the reference evaluator last."""
    kept, target = _by_node(compilation), compilation.target
    ours = tuple(n for n in kept if n != "reference")
    libraries = tuple(n for n in target.backends if n not in kept)
    backends = (*ours, *libraries, *(n for n in kept if n == "reference"))
    return replace(compilation, target=replace(target, backends=backends))


def _by_node(compilation: Compilation) -> tuple[str, ...]:
    """The backends that choose node by node."""
    rows = compilation.registry.backends
    return tuple(n for n in compilation.target.backends if n not in rows or rows[n].selector is None)


def measured(
    compilation: Compilation,
    options: Options,
    compiler: Compiler,
    planned: Planned,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Compilation:
    """The compilation with sub-graphs assigned to the libraries that are fastest on them.

    Where none wins the assignment names no library. Notes tell the times of the whole program.
    """
    libraries = compilation.registry.libraries(compilation.target.backends)
    if not libraries:
        return replace(compilation, assignment=dict.fromkeys(_names(compilation), ""))
    with pinned(options.threads):
        return _Allocation(compilation, options, compiler, planned, libraries).best(progress)


def fastest_whole(
    compilation: Compilation,
    options: Options,
    compiler: Compiler,
    planned: Planned,
    inputs: Mapping[str, object] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Compilation:
    """The compilation, assigned to a library that runs the model faster than the plan does, or a part.

    The part is all between the nodes that a library runs anyhow. Both run on `inputs`, or on samples.
    A note tells the times, and why a library is refused.
    """
    libraries = compilation.registry.libraries(compilation.target.backends)
    if not libraries or not len(compilation.graph):
        return replace(compilation, source=None)
    with pinned(options.threads):
        allocation = _Allocation(compilation, options, compiler, planned, libraries)
        return allocation.fastest_whole(inputs or samples(compilation.graph.inputs), progress)


def given_up(compilation: Compilation, compiler: Compiler, reason: str) -> Compilation:
    """The compilation without what libraries were assigned by measurement, which is not tried again."""
    given = {label.partition("#")[0] for label in compilation.assignment.values() if label}
    keys = [_refused(compilation, name) for name in sorted(given)]
    autotune.store(compiler.folder, dict.fromkeys(keys, 1.0))
    note = f"choose: what libraries were assigned by measurement is given up: {reason}"
    return replace(compilation, assignment={}, source=None, notes=(*compilation.notes, note))


def _refused(compilation: Compilation, library: str) -> str:
    """Where the timings table holds that a library computes a model otherwise than it should."""
    return f"whole-refused {library} {_digest(compilation, f'{compilation.options.tolerance:g}')}"


def _digest(compilation: Compilation, text: str) -> str:
    """Hash of the graph's structure and a text."""
    nodes = tuple(compilation.graph)
    whole = graph.group(nodes, nodes[0], SUBGRAPH, lambda v: bool(v.name))
    return hashlib.sha256(f"{roofline.signature(whole)} {text}".encode()).hexdigest()[:32]


def _names(compilation: Compilation) -> list[str]:
    return [n.name or "" for n in compilation.graph]


def samples(values: Iterable[ir.Value]) -> dict[str, object]:
    """Arrays of the right shapes and types, by name: small positive floats, integers zero."""
    rng = np.random.default_rng(0)
    found: dict[str, object] = {}
    for value in values:
        kind = graph.dtype(value)
        if kind is None or graph.is_dynamic(value):
            continue
        shape = graph.static_shape(value)
        drawn = rng.uniform(0.5, 1.0, shape) if kind.kind == "f" else np.zeros(shape)
        found[value.name or ""] = drawn.astype(kind)
    return found


@dataclass(frozen=True, slots=True)
class _Interval:
    """Steps first..last (half-open) of our own program, and its halves."""

    first: int
    last: int
    halves: tuple["_Interval", ...] = ()


Placed: TypeAlias = tuple[_Interval, str]  # an interval and the library that runs it
Labels: TypeAlias = tuple[tuple[str, ...], ...]  # (backend, nodes ...) of every sub-graph of a library


class _Allocation:
    """The measurements behind one assignment."""

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
        self.compiler = compiler
        self.planned = planned
        self.libraries = libraries
        self.table = autotune.stored(compiler.folder)
        self.context = replace(PlanningContext.of(replace(compilation, options=options)), timings=self.table)
        self.clock = time.process_time if options.threads == 1 else time.perf_counter
        self.nodes = {n.name or "": n for n in compilation.graph}
        self.readers = graph.readers(compilation.graph)
        self.ends = frozenset(compilation.graph.outputs)
        self.failed: dict[str, None] = {}
        self._base: dict[str, str] | None = None
        self.rows = {row.backend: row for row in compilation.registry.candidates(SUBGRAPH, tuple(libraries))}
        self.versions = " ".join(roofline.called(self.rows[name]) for name in libraries if name in self.rows)

    def best(self, progress: Callable[[int, int], None]) -> Compilation:
        """The compilation with the assignment of the fastest program."""
        program = self.planned(self._assigned(()), self.options)
        steps = [
            tuple(n.name or "" for n in s.group.nodes if (n.name or "") in self.nodes) for s in program.steps
        ]
        seconds = self._step_seconds(program, steps)
        whole = sum(seconds)
        root = _halved(0, len(steps), seconds, self._crossing(steps), whole * SHARE)
        times: dict[Placed, float] = {}
        count = len(list(_all(root)))
        open_ = [(root, 0)]
        while open_:
            interval, depth = open_.pop()
            progress(len(times) // len(self.libraries), count)
            group = self._group(steps[interval.first : interval.last])
            ratios = []
            for name in self.libraries if group else ():
                assert group is not None
                found = self._library_seconds(group, name)
                if found is not None:
                    times[interval, name] = found + self._conversions(group, program)
                    ratios.append(
                        times[interval, name] / (sum(seconds[interval.first : interval.last]) or 1.0)
                    )
            if depth < DEPTH or not ratios or min(ratios) < HOPELESS:
                open_ += [(half, depth + 1) for half in reversed(interval.halves)]
        autotune.store(self.compiler.folder, self.table)
        alone: list[tuple[Placed, ...]] = [
            ((root, name),) for name in self.libraries if (root, name) in times
        ]
        guesses = [
            _least(root, seconds, times, n)[1] for n in (self.libraries, *([n] for n in self.libraries))
        ]
        promised = {p: sum(seconds[p[0].first : p[0].last]) - t for p, t in times.items()}
        likely = [p for p in sorted(promised, key=lambda p: -promised[p]) if promised[p] > GAIN * whole]
        runners = [(p,) for p in likely[:RUNNERS]]
        first = list(dict.fromkeys([(), *alone, *guesses, *runners]))
        raced = self._raced([self._labels(c, steps) for c in first], progress)
        # What wins alone is put together; intervals do not overlap.
        won = [c[0] for c in runners if raced[self._labels(c, steps)] < raced[()]]
        won.sort(key=lambda p: raced[self._labels((p,), steps)])
        joined: list[Placed] = []
        for placed in won:
            if all(placed[0].last <= p[0].first or p[0].last <= placed[0].first for p in joined):
                joined.append(placed)
        raced |= self._raced([(), self._labels(joined, steps)], progress)
        return self._fastest(raced, {(), *(self._labels(c, steps) for c in alone)})

    def _step_seconds(self, program: Program, steps: Sequence[tuple[str, ...]]) -> list[float]:
        """Seconds of each step of our own program, the least of several runs."""
        key = f"steps-alone x{self.options.threads} {self._digest(repr(steps))}"
        context = [self.table.get(f"{key} {i}") for i in range(len(steps))]
        if all(k is not None for k in context):
            return [float(k) for k in context if k is not None]
        with closing(Executor(program, self.compiler)) as executor:
            executor.run(samples(program.compilation.graph.inputs))
            runs = [executor.seconds_alone(self.clock) for _ in range(ROUNDS)]
        call = min(self._empty() for _ in range(ROUNDS))
        found = [max(min(column) - call, 0.0) for column in zip(*runs)]
        self.table.update({f"{key} {i}": s for i, s in enumerate(found)})
        return found

    def _empty(self) -> float:
        """Seconds of reading the clock twice."""
        started = self.clock()
        return self.clock() - started

    def fastest_whole(
        self, inputs: Mapping[str, object], progress: Callable[[int, int], None]
    ) -> Compilation:
        """The compilation, assigned to a library where that is faster by SLOWER: all of it, or a part."""
        own = self.planned(self.compilation, self.options)
        if [s.is_library for s in own.steps] == [True]:
            return self.compilation
        ratios: dict[str, tuple[float, Mapping[str, str]]] = {}
        for done, name in enumerate(self.libraries):
            progress(done, len(self.libraries))
            candidates = {f"{name} on the whole model": dict.fromkeys(self.nodes, whole_label(name))}
            between = self._between(own, name)
            if between and len(between) < len(self.nodes):
                label = {n: f"{name}#between" if n in between else "" for n in self.nodes}
                candidates[f"{name} on all {len(between)} nodes between those it runs"] = label
            for title, assignment in candidates.items():
                ratio = self._whole_ratio(title, name, assignment, own, inputs)
                if ratio is not None:
                    ratios[title] = ratio, assignment
        autotune.store(self.compiler.folder, self.table)
        best = min(ratios, key=lambda title: ratios[title][0], default="")
        taken = bool(best) and ratios[best][0] < 1.0 - SLOWER
        told = ", ".join(f"{title} takes {ratio:.3g} times as long" for title, (ratio, _) in ratios.items())
        what = f"{best} is taken" if taken else "the plan of single steps is taken"
        notes = (f"choose: {what}; beside the plan of single steps {told}",) if told else ()
        chosen: Mapping[str, str] = ratios[best][1] if taken else {}
        return replace(
            self.compilation,
            assignment=chosen,
            source=self.compilation.source if taken and "" not in chosen.values() else None,
            timings=self.table,
            notes=(*self.compilation.notes, *notes, *self.failed),
        )

    def _between(self, own: Program, name: str) -> frozenset[str]:
        """Nodes on the paths between those that a library runs in several steps of a plan, and these."""
        steps = [s for s in own.steps if s.is_library and s.choice.implementation.backend == name]
        if len(steps) < 2:
            return frozenset()
        after = {n.name or "" for s in steps for n in s.group.nodes} & self.nodes.keys()
        before = set(after)
        needed = {
            node: {p.name or "" for v in graph.reads(self.nodes[node]) if (p := v.producer()) is not None}
            for node in self.nodes
        }
        for node in self.nodes:  # in topological order
            if not after.isdisjoint(needed[node]):
                after.add(node)
        for node in reversed(self.nodes):
            if node in before:
                before |= needed[node]
        return frozenset(after & before)

    def _whole_ratio(
        self,
        title: str,
        name: str,
        assignment: Mapping[str, str],
        own: Program,
        inputs: Mapping[str, object],
    ) -> float | None:
        """Times the plan of single steps that one with a library takes; None where it is refused."""
        source = self.compilation.source
        given = self.compilation.graph if source is None else source.graph
        reason = rejection(given, self.compilation.target)
        if _refused(self.compilation, name) in self.table:
            reason = "its outputs differed from the original's"
        if reason is not None:
            self.failed[f"choose: {title} is refused: {reason}"] = None
            return None
        try:
            other = self.planned(replace(self.compilation, assignment=assignment), self.options)
        except EngineError as cause:
            self.failed[f"choose: {title} is refused: {cause.message}"] = None
            return None
        if [s.is_library for s in other.steps] != [True] and "" not in assignment.values():
            self.failed[f"choose: {title} is refused: {self._passed_over(other, name)}"] = None
            return None
        steps = repr(
            [
                [(roofline.called(s.choice.implementation), len(s.group.nodes)) for s in p.steps]
                for p in (own, other)
            ]
        )
        key = f"whole {roofline.called(self.rows[name])} x{self.options.threads} {self._digest(steps)}"
        if key not in self.table:
            try:
                self.table[key], seconds = self._whole_race(own, other, inputs)
            except EngineError as cause:
                self.failed[f"choose: {title} is refused: {cause.message}"] = None
                return None
            if len(other.steps) == 1:
                self.table[roofline.key(self.rows[name], other.steps[0].group, self.context)] = seconds
        return self.table[key]

    def _passed_over(self, program: Program, name: str) -> str:
        """First reason why the library does not run nodes of the plan."""
        told = program.compilation.plan.require("passed_over")
        return next(
            (reasons[name] for reasons in told.values() if name in reasons), "it refuses a part of it"
        )

    def _whole_race(self, own: Program, whole: Program, inputs: Mapping[str, object]) -> tuple[float, float]:
        """The median ratio of the times of two programs, and the seconds of the second.

        Raises:
            EngineError: one does not run, or their outputs differ.
        """
        names = {v.name for v in self.compilation.graph.inputs}
        fed = {k: v for k, v in inputs.items() if k in names}
        coarse = rounds(self.compilation.graph) or any(
            v.dtype in NARROW for n in self.nodes.values() for v in n.outputs
        )
        tolerance = max(self.options.tolerance, ROUNDED if coarse else 0.0)
        with (
            closing(Executor(own, self.compiler)) as one,
            closing(Executor(whole, self.compiler)) as other,
        ):
            check(compare(one.run(fed), other.run(fed), tolerance))
            taken: list[list[float]] = [[], []]
            started = time.perf_counter()
            while len(taken[0]) < RACE_ROUNDS:
                for column, more in zip(taken, self._in_turn([one, other], fed, 2)):
                    column += more
                ratio = float(np.median([b / a for a, b in zip(*taken)]))
                decided = not 1.0 / FAR < ratio < FAR or (
                    len(taken[0]) >= ROUNDS and abs(ratio - (1.0 - SLOWER)) > CLOSE
                )
                if decided or time.perf_counter() - started > RACE_SECONDS:
                    break
        return ratio, float(np.median(taken[1]))

    def _digest(self, text: str) -> str:
        return _digest(self.compilation, text)

    def _crossing(self, steps: Sequence[tuple[str, ...]]) -> list[float]:
        """Bytes that live across the border before each step."""
        place = {name: i for i, names in enumerate(steps) for name in names}
        change = [0.0] * (len(steps) + 2)
        for i, names in enumerate(steps):
            for value in (v for name in names for v in self.nodes[name].outputs):
                last = max((place[r.name or ""] for r in self.readers.get(value, ())), default=i)
                if last > i:
                    moved = 1e9 if graph.is_dynamic(value) else float(graph.nbytes(value))
                    change[i + 1] += moved
                    change[last + 1] -= moved
        return list(np.cumsum(change))

    def _group(self, steps: Iterable[tuple[str, ...]]) -> Group | None:
        """Nodes as what a library runs; None where there are none, or nothing comes of them."""
        names = {name for step in steps for name in step}
        nodes = tuple(n for n in self.compilation.graph if n.name in names)
        if not nodes:
            return None
        inside = set(nodes)
        return graph.group(
            nodes,
            max(nodes, key=lambda n: (roofline.arithmetic(n), n.name or "")),
            SUBGRAPH,
            lambda v: (
                bool(v.name) and (v in self.ends or any(r not in inside for r in self.readers.get(v, ())))
            ),
        )

    def _conversions(self, group: Group, program: Program) -> float:
        """Predicted seconds of conversions at the border, where our program has a value blocked."""
        layout = program.compilation.plan.require("layout")
        blocked = {v.name: at for v, at in layout.items() if not at.is_plain}
        border = [v for v in (*group.inputs, *group.outputs) if v.name in blocked]
        return sum(conversion(v, blocked[v.name], self.compilation, self.context) for v in border)

    def _library_seconds(self, group: Group, name: str) -> float | None:
        """Measured seconds of a sub-graph in a library; None where it cannot run it."""
        row = self.rows.get(name)
        if row is None or row.rejection(group, self.context) is not None:
            return None
        if any(graph.is_dynamic(v) for v in (*group.inputs, *group.outputs) if v.name):
            return None
        key = roofline.key(row, group, self.context)
        if key not in self.table:
            try:
                self.table[key] = self._timed(row, group)
            except Exception as cause:  # libraries raise types of their own; any of them is a refusal
                told = " ".join(str(cause).split())[:300]
                self.failed[f"{name} cannot run the sub-graph of {group.name!r}: {told}"] = None
                return None
        return self.table[key]

    def _timed(self, row: Implementation, group: Group) -> float:
        (call,) = row.lower(group, self.context)
        assert isinstance(call, SubgraphCall)
        names = [[v.name or "" for v in values] for values in (call.inputs, call.outputs)]
        prepared = resolve(call.function)(call.model(), *names, call.threads)
        given = samples(call.inputs)
        inputs = [_held(np.asarray(given[name])) for name in names[0]]
        outputs = [_held(np.asarray(a)) for a in samples(call.outputs).values()]
        bound = hasattr(prepared, "bind")
        run = prepared.bind(inputs, outputs) if bound else lambda: prepared(inputs)
        run()
        started = self.clock()
        run()
        once = max(self.clock() - started, 1e-6)
        times = max(int(SAMPLE / once), 1)
        found = []
        for _ in range(REPEATS if once < 0.2 else 2):
            started = self.clock()
            for _ in range(times):
                run()
            found.append((self.clock() - started) / times)
        return min(found)

    def _labels(self, chosen: Iterable[tuple[_Interval, str]], steps: Sequence[tuple[str, ...]]) -> Labels:
        """Sub-graphs by backend; neighbours that one backend runs are joined."""
        joined: list[list[str]] = []
        end, before = -1, ""
        for interval, name in sorted(chosen, key=lambda c: c[0].first):
            nodes = [n for step in steps[interval.first : interval.last] for n in step]
            if name == before and interval.first == end:
                joined[-1] += nodes
            else:
                joined.append([name, *nodes])
            end, before = interval.last, name
        return tuple(tuple(j) for j in joined)

    def _assigned(self, labels: Labels) -> Compilation:
        if self._base is None:
            # What no kernel of ours computes stays with a library, whatever the others are given.
            found = self.planned(replace(kernels_first(self.compilation), assignment={}), self.options)
            parts = {n.name or "": p for n, p in (found.compilation.plan.partition or {}).items()}
            self._base = {
                name: f"{parts[name].backend}#base{parts[name].index}"
                if name in parts and parts[name].backend in self.libraries
                else ""
                for name in self.nodes
            }
        assignment = dict(self._base)
        for i, (name, *nodes) in enumerate(labels):
            assignment.update(dict.fromkeys(nodes, f"{name}#{i}"))
        return replace(self.compilation, assignment=assignment)

    def _raced(
        self, candidates: Sequence[Labels], progress: Callable[[int, int], None]
    ) -> dict[Labels, float]:
        """Seconds of whole programs, by what libraries run in them; the first is our own alone."""
        keys = {
            c: f"program {self.versions} x{self.options.threads} {self._digest(repr(c))}" for c in candidates
        }
        if not all(key in self.table for key in keys.values()):
            self.table.update(self._race(keys, progress))
            autotune.store(self.compiler.folder, self.table)
        return {c: self.table[key] for c, key in keys.items()}

    def _fastest(self, raced: Mapping[Labels, float], singles: set[Labels]) -> Compilation:
        """The compilation of the fastest single backend, or of a mixture that wins a duel with it."""
        ranked = sorted(raced, key=raced.__getitem__)
        simple = next(c for c in ranked if c in singles)
        leaders = ranked[: ranked.index(simple)][:DUELS]
        duels = {c: self._duel(c, simple) for c in leaders}
        best = next((c for c, (ratio, won) in duels.items() if ratio <= 1.0 - MARGIN and won >= WON), simple)
        told = ", ".join(f"{_told(c)} {s * 1e6:.4g} us" for c, s in raced.items() if s != float("inf"))
        against = "".join(
            f"; {_told(c)} in a duel with {_told(simple)}: {ratio:.3f} of its time, {won:.0%} of rounds won"
            for c, (ratio, won) in duels.items()
        )
        notes = (f"choose: {_told(best)} is taken; measured: {told}{against}", *self.failed)
        found = self._assigned(best)
        return replace(found, timings=self.table, notes=(*self.compilation.notes, *notes))

    def _race(self, keys: Mapping[Labels, str], progress: Callable[[int, int], None]) -> dict[str, float]:
        """Seconds of whole programs, infinite for what does not run; each in turn with our own program.

        Only two programs hold their weights at a time. What the machine does meanwhile meets both: a
        time is the median ratio of a round, times the median of our own.
        """
        inputs = samples(self.compilation.graph.inputs)
        found = dict.fromkeys(keys.values(), float("inf"))
        ours = [self.table[keys[()]]] if keys[()] in self.table else []
        ratios = {keys[()]: 1.0}
        with closing(Executor(self.planned(self._assigned(()), self.options), self.compiler)) as own:
            expected = own.run(inputs)
            for done, (labels, key) in enumerate(keys.items()):
                progress(done, len(keys))
                if not labels or key in self.table:
                    found[key] = self.table.get(key, found[key])
                    continue
                try:
                    program = self.planned(self._assigned(labels), self.options)
                    with closing(Executor(program, self.compiler)) as executor:
                        check(compare(expected, executor.run(inputs), self.options.tolerance))
                        taken = self._in_turn([own, executor], inputs)
                except EngineError as cause:
                    self.failed[f"{_told(labels)} is refused: {cause.message}"] = None
                    continue
                ratios[key] = float(np.median([b / a for a, b in zip(*taken)]))
                if keys[()] not in self.table:
                    ours.append(float(np.median(taken[0])))
            own_seconds = float(np.median(ours or self._in_turn([own], inputs)[0]))
        return {**found, **{key: ratio * own_seconds for key, ratio in ratios.items()}}

    def _duel(self, labels: Labels, other: Labels) -> tuple[float, float]:
        """Median ratio of two programs' times, and the share of the rounds that the first won."""
        key = f"duel {self.versions} x{self.options.threads} {self._digest(repr((labels, other)))}"
        names = (f"{key} ratio", f"{key} won")
        if not all(name in self.table for name in names):
            programs = [self.planned(self._assigned(c), self.options) for c in (labels, other)]
            inputs = samples(self.compilation.graph.inputs)
            with (
                closing(Executor(programs[0], self.compiler)) as one,
                closing(Executor(programs[1], self.compiler)) as two,
            ):
                taken = np.array(self._in_turn([one, two], inputs, DUEL))
            ratios = taken[0] / taken[1]
            self.table.update(zip(names, (float(np.median(ratios)), float(np.mean(ratios < 1.0)))))
            autotune.store(self.compiler.folder, self.table)
        return self.table[names[0]], self.table[names[1]]

    def _in_turn(
        self, executors: Sequence[Executor], inputs: Mapping[str, object], rounds: int = ROUNDS
    ) -> list[list[float]]:
        """Seconds of whole runs, by executor and round; every second round goes backwards."""
        taken: list[list[float]] = [[] for _ in executors]
        for turn in range(rounds):
            pairs = list(zip(taken, executors))
            for column, executor in reversed(pairs) if turn % 2 else pairs:
                executor.run(inputs)
                times, spent = 0, 0.0
                started = self.clock()
                while times == 0 or spent < SAMPLE:
                    executor.run(inputs)
                    times, spent = times + 1, self.clock() - started
                column.append(spent / times)
        return taken


def _held(array: Array) -> Array:
    place = aligned(array.nbytes)[: array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(place, array)
    return place


def _told(labels: Labels) -> str:
    """`onnxruntime (34 nodes from 'conv1' on)`."""
    parts = [f"{name} ({len(nodes)} nodes from {nodes[0]!r} on)" for name, *nodes in labels]
    return " + ".join(parts) or "no library"


def _all(interval: _Interval) -> Iterable[_Interval]:
    yield interval
    for half in interval.halves:
        yield from _all(half)


def _halved(
    first: int, last: int, seconds: Sequence[float], crossing: Sequence[float], least: float
) -> _Interval:
    """An interval with its halves: cut after a quarter to three quarters of its time, where least crosses."""
    spent = np.cumsum(seconds[first:last])
    whole = float(spent[-1]) if len(spent) else 0.0
    if last - first < 2 or whole < 2 * max(least, LEAST):
        return _Interval(first, last)
    at = range(first + 1, last)
    middle = [k for k in at if 0.25 * whole <= spent[k - first - 1] <= 0.75 * whole]
    middle = middle or [min(at, key=lambda k: abs(spent[k - first - 1] - whole / 2))]
    cut = min(middle, key=lambda k: (crossing[k], abs(spent[k - first - 1] - whole / 2)))
    halves = (
        _halved(first, cut, seconds, crossing, least),
        _halved(cut, last, seconds, crossing, least),
    )
    return _Interval(first, last, halves)


def _least(
    interval: _Interval,
    seconds: Sequence[float],
    times: Mapping[tuple[_Interval, str], float],
    names: Sequence[str],
) -> tuple[float, tuple[tuple[_Interval, str], ...]]:
    """The least seconds of an interval, and which intervals within it libraries run."""
    best: tuple[float, tuple[tuple[_Interval, str], ...]] = sum(seconds[interval.first : interval.last]), ()
    for name in names:
        found = times.get((interval, name), float("inf"))
        if found < best[0]:
            best = found, ((interval, name),)
    if interval.halves:
        parts = [_least(half, seconds, times, names) for half in interval.halves]
        total = sum(t for t, _ in parts)
        if total < best[0]:
            best = total, tuple(c for _, chosen in parts for c in chosen)
    return best
