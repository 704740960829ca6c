"""Choice of a precision for every site: measured seconds, simulated errors, a budget, and a check by running.

Noise of single sites, the share of an output's power that their rounding adds, is taken to add; the choice of
least time under a bound on the sum is a knapsack. A bound is tried by simulating the whole choice on samples
held back, so that what the sum misses is seen; the largest whose error is within the budget is found by
bisection. What is chosen is planned, run against float32 on these samples, and timed in turns with it.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core.program import Program
from app.engine.planning.precision import metrics
from app.engine.planning.precision.candidates import BY_NAME, FLOAT32, Activation, Candidate
from app.engine.planning.precision.knapsack import Option, choose
from app.engine.planning.precision.qdq import Assignment, quantized
from app.engine.planning.precision.rounding.calibration import Calibration
from app.engine.planning.precision.samples import Samples
from app.engine.planning.precision.simulation import Simulation
from app.engine.planning.precision.sites import Site
from app.engine.types.options import ErrorMetric

MARGIN = 0.77  # of the budget: errors on other samples were up to 1.28 times those found
GAIN = 0.96  # of a site's seconds in a more exact precision, above which one is not worth its rounding
SCREENED = 4  # samples held back that errors of choices are simulated on; the best and its program see all
SCREENINGS = 4  # times that others are screened, where they err more
LEAST_MISSED = 1.05  # factor by which errors are to be smaller after a program that was not within the budget
SEARCHED = (
    2  # samples of the calibration, its last, that errors of single sites are measured on: weights fit the
)
# first ones, see `calibration.OBSERVED`
SHARE = 0.01  # of the time in float32, that products take at least for which a precision is tried
HALVINGS = 40  # bounds that are tried at most, each half of the one before
BEYOND = 2  # of them, below the first that the budget allows: points of the front
BISECTIONS = 6  # of the bound, around the budget
SLOWER = 1.02  # times the time of a choice that it may take with results rounded, for other runtimes
FASTER = 0.99  # of the time of float32 in alternating runs, that a choice may take at most
ROUNDS = 4  # choices that are planned and checked, each with seconds as the one before had them

Array = np.ndarray[Any, Any]

# The program of a model, and of its sites that kernels may round to 16 bits: candidates by site.
Plan: TypeAlias = Callable[[ir.Model, Mapping[str, str]], Program]
# Seconds by site of programs that take turns; of what belongs to none by the empty name.
Seconds: TypeAlias = Callable[[Sequence[Program]], Sequence[Mapping[str, float]]]
# Outputs of a program on samples, None where it does not run here.
Outputs: TypeAlias = Callable[[Program], Sequence[Mapping[str, object]] | None]
# Seconds of two programs that take turns, None where they do not run here.
Race: TypeAlias = Callable[[Program, Program], tuple[list[float], list[float]] | None]
Progress: TypeAlias = Callable[[int, int], None]
Key: TypeAlias = tuple[tuple[str, str], ...]  # an assignment


@dataclass(frozen=True, slots=True)
class Machine:
    """Candidates for a machine, and how programs for it are made, run and timed."""

    candidates: Sequence[Candidate]
    unsigned: bool  # see Quantities
    plan: Plan
    seconds: Seconds
    outputs: Outputs
    race: Race
    rest: Callable[[], None]  # gives memory of programs back; they take it again when they are timed
    progress: Progress


@dataclass(frozen=True, slots=True)
class Budget:
    """An error that outputs may have, and how it is measured."""

    error: float
    metric: ErrorMetric


@dataclass(frozen=True, slots=True)
class Point:
    """A choice of precisions.

    Attributes:
        assignment: candidates by site; others are float32.
        seconds: sum of the steps of all sites, each as last measured in its precision.
        error: simulated on the samples held back.
        gap: share of `seconds` that a better choice under the same bound on noise could save at most.
    """

    assignment: Assignment
    seconds: float
    error: float
    gap: float = 0.0


@dataclass(frozen=True, slots=True)
class Checked:
    """A planned point: error of its program on the samples held back, and seconds in turns with float32.

    `error` is None where the program does not run here, `seconds` too. `results` tells that those of 8-bit
    convolutions are rounded, see `qdq.quantized`.
    """

    point: Point
    program: Program | None  # of the best one so far
    error: float | None
    seconds: tuple[float, float] | None  # of this program and of float32, medians
    rejection: str | None = None
    results: bool = False

    @property
    def speedup(self) -> float | None:
        """Ratio of seconds in float32 over own."""
        return None if self.seconds is None else self.seconds[1] / self.seconds[0]


@dataclass
class Found:
    """All that a search knows at its end."""

    sites: tuple[Site, ...]
    seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by site and candidate, f32 too
    rest: float = 0.0  # seconds of what belongs to no site
    untimed: dict[str, str] = field(default_factory=dict)  # candidates that were not tried, with the reason
    noise: Mapping[tuple[str, str], float] = field(default_factory=dict)  # by site and candidate
    alone: Mapping[tuple[str, str], float] = field(default_factory=dict)  # error in the budget's metric
    rules: Mapping[str, str] = field(default_factory=dict)  # rule of the levels, by activation
    front: tuple[Point, ...] = ()
    whole: Mapping[str, Point] = field(default_factory=dict)  # all sites that can in one precision
    chosen: Checked | None = None
    model: ir.Model | None = None  # of the chosen one
    tried: tuple[Checked, ...] = ()
    warnings: tuple[str, ...] = ()
    in_turn: Set[tuple[str, str]] = frozenset()  # whose weights are rounded by second order


class Search:
    """The search for one model; `simulation` and `machine` run what it asks for.

    Seconds and errors of single sites are measured once: they are the same under every budget.
    """

    def __init__(
        self,
        plain: ir.Model,
        sites: tuple[Site, ...],
        samples: Samples,
        metric: ErrorMetric,
        simulation: Simulation,
        machine: Machine,
    ) -> None:
        self._plain, self._sites, self._metric, self._budget = plain, sites, metric, 0.0
        self._samples, self._simulation, self._machine = samples, simulation, machine
        self._numbers = Calibration(sites, samples.calibration, simulation, machine.unsigned)
        self._found = Found(sites, rules=self._numbers.rules, in_turn=self._numbers.in_turn)
        self._measured: tuple[Program, dict[str, tuple[Candidate, ...]]] | None = None
        self._exact = {k: [self._run({}, s) for s in part] for k, part in self._parts().items()}
        self._errors: dict[Key, float] = {}
        self._seconds: dict[str, dict[str, float]] = {}
        self._screened = list(range(len(samples.held_back)))[:SCREENED]
        self._missed = 1.0  # times the simulated error that programs had
        self._done = 0

    def run(self, budget: float) -> Found:
        """Find the choice whose error is within the budget; `chosen` stays None where float32 is best."""
        if self._measured is None:
            self._measured = self._measure()
        float32, offered = self._measured
        self._budget, self._missed = budget, 1.0
        self._found = found = replace(self._found, chosen=None, model=None, tried=())
        if any(offered.values()):
            found.whole = self._whole(offered)
            self._check(float32, offered)
            found.front = pareto(self._point(dict(key)) for key in self._errors)
        return found

    def _measure(self) -> tuple[Program, dict[str, tuple[Candidate, ...]]]:
        """Measure single sites; the program in float32, and by site the candidates that are faster."""
        self._numbers.observe()
        self._found.warnings = tuple(self._numbers.warnings())
        float32, offered = self._timed()
        if any(offered.values()):
            self._machine.rest()
            self._numbers.take(offered)
            self._measure_noise(offered, self._numbers.refine(offered, self._step))
        return float32, offered

    def _rows(self, site: Site) -> list[Candidate]:
        """Candidates that apply to a site, the more exact first."""
        return [row for row in self._machine.candidates if site.rejection(row) is None]

    def _parts(self) -> dict[str, tuple[Mapping[str, object], ...]]:
        return {"search": self._samples.calibration[-SEARCHED:], "held back": self._samples.held_back}

    def _run(self, assignment: Assignment, sample: Mapping[str, object]) -> dict[str, object]:
        return self._simulation.outputs_of(sample, assignment, self._numbers.quantities)

    def _step(self) -> None:
        """Tell the progress; as many steps as there are at most."""
        total = 1 + len(self._machine.candidates) + len(self._numbers.readers) + len(self._sites) + ROUNDS
        self._done += 1
        self._machine.progress(min(self._done, total), total)

    def _timed(self) -> tuple[Program, dict[str, tuple[Candidate, ...]]]:
        """The program in float32, and by site the candidates that are faster, there or everywhere."""
        float32 = self._machine.plan(self._plain, {})
        (base,) = self._machine.seconds([float32])
        self._seconds = {s.name: {FLOAT32: base[s.name]} for s in self._sites}
        self._found.seconds, self._found.rest = self._seconds, base[""]
        self._step()
        for row in self._machine.candidates:
            assignment = {s.name: row.name for s in self._sites if s.rejection(row) is None}
            share = math.fsum(base[name] for name in assignment) / (math.fsum(base.values()) or 1.0)
            if share >= SHARE:
                self._numbers.take(dict.fromkeys(assignment, (row,)))
                self._time(assignment, self._program(assignment), float32)
            else:
                self._found.untimed[row.name] = (
                    f"products that it applies to take {share:.2%} of the time in float32"
                )
            self._step()
        offered = {}
        everywhere = [row for row in self._machine.candidates if row.for_all and self._saves(row)]
        for site in self._sites:
            timed = [row for row in self._rows(site) if row.name in self._seconds[site.name]]
            alone = tuple(worth(timed, self._seconds[site.name]))
            offered[site.name] = tuple(row for row in timed if row in alone or row in everywhere)
        return float32, offered

    def _saves(self, row: Candidate) -> bool:
        """True if a precision saves time where all sites that it applies to have it."""
        spent = [own for own in self._seconds.values() if row.name in own]
        return math.fsum(s[row.name] for s in spent) < GAIN * math.fsum(s[FLOAT32] for s in spent)

    def _time(self, assignment: Assignment, program: Program, float32: Program) -> None:
        """Note seconds of assigned sites, by their ratio to those in float32 measured in the same turns."""
        own, other = self._machine.seconds([program, float32])
        for name, candidate in assignment.items():
            spent = self._seconds[name]
            ratio = own[name] / other[name] if other[name] else 1.0
            spent[candidate] = spent[FLOAT32] * ratio

    def _model(self, assignment: Assignment, *, results: bool = False) -> ir.Model:
        given = self._numbers.quantities
        return quantized(self._plain, self._sites, assignment, given, results=results)

    def _program(self, assignment: Assignment, *, results: bool = False) -> Program:
        halves = {name: candidate for name, candidate in assignment.items() if BY_NAME[candidate].half}
        return self._machine.plan(self._model(assignment, results=results), halves)

    def _noise(self, assignment: Assignment) -> tuple[float, float]:
        """Noise and error of an assignment on the samples of the search."""
        samples, exact = self._parts()["search"], self._exact["search"]
        made = [self._run(assignment, sample) for sample in samples]
        noises = [metrics.noise(a, b) for a, b in zip(exact, made, strict=True)]
        return max(noises), metrics.worst(self._metric, exact, made)

    def _measure_noise(
        self, offered: Mapping[str, Sequence[Candidate]], local: Mapping[tuple[str, str], float]
    ) -> None:
        """Noise at the outputs, and error, of each candidate alone.

        Of candidates that round for the product alone one is simulated, and of those that round for all that
        reads the activation; others have its noise in the ratio of what they add to the product.
        """
        noise: dict[tuple[str, str], float] = {}
        alone: dict[tuple[str, str], float] = {}
        for site in self._sites:
            simulated: dict[bool, tuple[str, str]] = {}
            for row in offered[site.name]:
                key = site.name, row.name
                like = simulated.get(row.for_all)
                if like is not None and local.get(key):
                    ratio = local[key] / local[like]
                    noise[key] = noise[like] * ratio
                    alone[key] = alone[like] * (ratio if self._metric == "cosine" else ratio**0.5)
                    continue
                noise[key], alone[key] = self._noise({site.name: row.name})
                if local.get(key):
                    simulated[row.for_all] = key
            self._step()
        self._found.noise, self._found.alone = noise, alone

    def _point(self, assignment: Assignment, gap: float = 0.0) -> Point:
        """The point of an assignment, at the seconds of sites as they are known by now."""
        key = key_of(assignment)
        if key not in self._errors:
            exact = [self._exact["held back"][k] for k in self._screened]
            made = [self._run(assignment, self._samples.held_back[k]) for k in self._screened]
            self._errors[key] = metrics.worst(self._metric, exact, made)
        seconds = sum(self._seconds[s.name][assignment.get(s.name, FLOAT32)] for s in self._sites)
        return Point(dict(assignment), seconds + self._found.rest, self._errors[key], gap)

    def _within(self, bound: float, offered: Mapping[str, Sequence[Candidate]]) -> Point:
        """The fastest choice whose summed noise is within a bound."""
        seconds, noise = self._seconds, self._found.noise
        items = [
            [
                Option(seconds[s.name][FLOAT32], 0.0),
                *(Option(seconds[s.name][r.name], noise[s.name, r.name]) for r in offered[s.name]),
            ]
            for s in self._sites
        ]
        best = choose(items, bound)
        if best is None:
            return self._point({})
        taken = {
            s.name: offered[s.name][k - 1].name for s, k in zip(self._sites, best.indices, strict=True) if k
        }
        return self._point(taken, best.gap)

    def _sweep(self, offered: Mapping[str, Sequence[Candidate]]) -> Point:
        """Points over bounds on noise; the fastest found that the simulation has within the budget."""
        noises = [
            max((self._found.noise[s.name, r.name] for r in offered[s.name]), default=0.0)
            for s in self._sites
        ]
        total = math.fsum(n for n in noises if n < math.inf) or 1.0
        limit = MARGIN * self._budget / self._missed
        least = min((n for n in self._found.noise.values() if n > 0.0), default=total)
        bounds = [total]
        while bounds[-1] > least and len(bounds) < HALVINGS:
            bounds.append(bounds[-1] / 2)
        points: list[Point] = []
        for bound in bounds:
            points.append(self._within(bound, offered))
            if sum(point.error <= limit for point in points) > BEYOND:
                break
        fits = [point.error <= limit for point in points]
        if True in fits and not fits[0]:
            high, low = bounds[fits.index(True) - 1], bounds[fits.index(True)]
            for _ in range(BISECTIONS):
                middle = (high * low) ** 0.5
                points.append(self._within(middle, offered))
                high, low = (high, middle) if points[-1].error <= limit else (middle, low)
        within = [point for point in points if point.error <= limit]
        return min(within, key=lambda p: (p.seconds, p.error), default=self._point({}))

    def _best(self, offered: Mapping[str, Sequence[Candidate]]) -> Point:
        """The fastest point that the simulation has within the budget on all samples held back.

        Where it is not, those that err most are screened from then on; the last resort is a smaller bound.
        """
        metric, exact = self._metric, self._exact["held back"]
        for turn in itertools.count():
            point = self._sweep(offered)
            if not point.assignment or len(exact) <= SCREENED:
                return point
            made = self._on_all(point)
            error = metrics.worst(metric, exact, made)
            if error <= MARGIN * self._budget:
                return replace(point, error=error)
            if turn < SCREENINGS and metric != "top1":  # a mean, which that of the worst says nothing of
                errors = [metrics.error(metric, a, b) for a, b in zip(exact, made, strict=True)]
                self._screened = sorted(range(len(errors)), key=lambda k: -errors[k])[:SCREENED]
                self._errors.clear()
            else:
                self._missed *= max(error / (point.error or error), LEAST_MISSED)
        raise AssertionError("turns do not end")

    def _on_all(self, point: Point) -> list[dict[str, object]]:
        """Simulated outputs on all samples held back."""
        return [self._run(point.assignment, sample) for sample in self._samples.held_back]

    def _check(self, float32: Program, offered: Mapping[str, Sequence[Candidate]]) -> None:
        """Plan and run the best point; with the seconds that its sites then take, choose again."""
        tried: dict[Key, Checked] = {}
        best: Checked | None = None
        for point in self._points(offered, tried):
            key = key_of(point.assignment)
            self._simulation.forget()
            program = self._program(point.assignment)
            tried[key] = checked = self._checked(point, program, float32)
            if checked.error is not None and checked.error > self._budget:
                self._missed *= max(checked.error / (point.error or checked.error), LEAST_MISSED)
                self._errors[key] = checked.error
            self._step()
            self._time(point.assignment, program, float32)
            self._machine.rest()
            best = max(
                (c for c in tried.values() if c.rejection is None),
                key=lambda c: c.speedup or 0.0,
                default=None,
            )
            tried = {k: c if c is best else replace(c, program=None) for k, c in tried.items()}
        best = None if best is None else self._with_results(best, float32)
        self._found.tried, self._found.chosen = tuple(tried.values()), best
        self._found.model = None if best is None else self._model(best.point.assignment, results=best.results)

    def _points(
        self, offered: Mapping[str, Sequence[Candidate]], tried: Mapping[Key, Checked]
    ) -> Iterator[Point]:
        """Points worth a plan: the best, as seconds are known by then, and the fastest in one precision.

        Seconds of sites hide that a site between others in its precision needs no conversions.
        """
        for _ in range(ROUNDS):
            point = self._best(offered)
            if key_of(point.assignment) in tried or not point.assignment:
                break
            yield point
        limit = MARGIN * self._budget / self._missed
        whole = [point for point in self._found.whole.values() if key_of(point.assignment) not in tried]
        for point in sorted((p for p in whole if p.error <= limit), key=lambda p: p.seconds)[:1]:
            exact, made = self._exact["held back"], self._on_all(point)
            error = metrics.worst(self._metric, exact, made)
            if error <= limit:
                yield replace(point, error=error)

    def _with_results(self, best: Checked, float32: Program) -> Checked:
        """The choice with results rounded, where that is within the budget and about as fast."""
        assignment = best.point.assignment
        alike = [self._model(assignment, results=results).graph for results in (False, True)]
        if best.error is None or len(alike[0]) == len(alike[1]):
            return best
        checked = self._checked(best.point, self._program(assignment, results=True), float32)
        self._machine.rest()
        slow = (checked.speedup or 1.0) * SLOWER < (best.speedup or 1.0)
        return best if checked.rejection or slow else replace(checked, results=True)

    def _whole(self, offered: Mapping[str, Sequence[Candidate]]) -> dict[str, Point]:
        """Points that have one precision wherever it is offered."""
        found = {}
        for row in self._machine.candidates:
            assignment = {s.name: row.name for s in self._sites if row in offered[s.name]}
            if assignment:
                found[row.name] = self._point(assignment)
        return found

    def _checked(self, point: Point, program: Program, float32: Program) -> Checked:
        checked = Checked(point, program, None, None)
        outputs = self._machine.outputs(program)
        if outputs is None:
            return checked
        error = metrics.worst(self._metric, self._exact["held back"], outputs)
        checked = replace(checked, error=error)
        if error > self._budget:
            told = f"its program has an error of {error:.3g}, the budget is {self._budget:g}"
            return replace(checked, rejection=told)
        taken = self._machine.race(program, float32)
        if taken is None:
            return checked
        ratios = [own / other for own, other in zip(*taken, strict=True)]
        ratio, base = statistics.median(ratios), statistics.median(taken[1])
        checked = replace(checked, seconds=(ratio * base, base))
        if ratio > FASTER:
            told = f"it is not faster than float32, taking {ratio:.3f} times as long in alternating runs"
            return replace(checked, rejection=told)
        return checked


def key_of(assignment: Assignment) -> Key:
    """Sites and candidates in order."""
    return tuple(sorted(assignment.items()))


def worth(rows: Sequence[Candidate], seconds: Mapping[str, float]) -> Iterator[Candidate]:
    """Candidates that save time over float32, bfloat16, and more exact ones that round activations alike."""
    base = seconds[FLOAT32]
    least: dict[Activation, float] = {}
    for row in rows:
        spent = seconds[row.name]
        if spent < GAIN * min(base, least.get(row.activation, math.inf)):
            yield row
            least[row.activation] = spent
            base = spent if row.half else base


def pareto(points: Iterable[Point]) -> tuple[Point, ...]:
    """The points of which none is both faster and more accurate, the fastest first."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.seconds, p.error)):
        if not found or point.error < found[-1].error:
            found.append(point)
    return tuple(found)
