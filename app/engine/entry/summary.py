"""timings.json and the summary of a job."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.engine.core import bodies
from app.engine.core.plan import Compilation
from app.engine.core.program import Program, Step
from app.engine.cost import roofline
from app.engine.entry.execution import Execution, Measured
from app.engine.layouts.conversions import changes
from app.engine.model.load import Loaded
from app.engine.planning import utilization
from app.engine.planning.precision_fallbacks import Attempt
from app.engine.report import decisions
from app.engine.runtime import comparison
from app.engine.runtime.peers import Rival
from app.engine.types.accelerator import BACKEND
from app.engine.types.backend_names import UNEXECUTED
from app.engine.types.target import Peak

Json = dict[str, Any]
_PREDICTED = (BACKEND, UNEXECUTED)


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step of the program, or of a body in it, by path, with its seconds in one inference.

    Attributes:
        own: seconds without those of the steps in its bodies.
        compilation: that the step is planned in.
        turns: times that one inference runs it, as far as that is known.
    """

    path: str
    parent: str | None
    step: Step
    seconds: float
    own: float
    compilation: Compilation
    turns: int


def timed_steps(program: Program, seconds: Sequence[float], inner: Mapping[str, float]) -> list[TimedStep]:
    """Every step of a program, then those in bodies; `inner` are seconds of the latter by path."""
    found: list[tuple[str, str | None, Step, float, Compilation, int]] = [
        (s.group.name, None, s, t, program.compilation, 1)
        for s, t in zip(program.steps, seconds, strict=True)
    ]
    for nested in bodies.walk(program.compilation):
        for step in nested.body.program.steps:
            path = f"{nested.path}/{step.group.name}"
            found.append((path, nested.parent, step, inner[path], nested.compilation, nested.turns))
    in_bodies: dict[str | None, float] = {}
    for _, parent, _, spent, *_ in found:
        in_bodies[parent] = in_bodies.get(parent, 0.0) + spent
    return [
        TimedStep(path, parent, step, spent, max(spent - in_bodies.get(path, 0.0), 0.0), compilation, turns)
        for path, parent, step, spent, compilation, turns in found
    ]


def timings_json(fused: Program, plain: Program, taken: Measured | str, steps: Sequence[TimedStep]) -> Json:
    """The document timings.json; `taken` are the measurements, or the reason why there are none."""
    measured = None if isinstance(taken, str) else taken
    options, target = fused.compilation.options, fused.compilation.target
    peak = measured.peak if measured else Peak.described(target, options.threads)
    spilled = 0.0 if measured else fused.placement.delay  # what is measured contains it
    # A run is its steps and what is outside of them: feeding, waking helpers, fetching.
    known = sum(timed.own for timed in steps) + spilled
    total = max(known, measured.optimized.p50 if measured else 0.0)
    operators = [
        {
            "name": timed.path,
            "parent": timed.parent,
            "op": "+".join(n.op_type for n in timed.step.group.nodes),
            "implementation": timed.step.choice.implementation.name,
            "backend": timed.step.choice.implementation.backend,
            "seconds": timed.own,
            "share": timed.own / (total or 1.0),
            "seconds_with_bodies": timed.seconds,
            **utilization.figures(timed.step, timed.compilation, timed.turns, timed.own, peak),
        }
        for timed in steps
    ]
    groups = fused.compilation.plan.groups
    return {
        "schema": "stowplan.timings/2",
        "kind": "measured" if measured else "predicted",
        "machine": {
            "cpu_model": target.cpu_model,
            "flags": list(target.isa),
            "cores": target.cores,
            "threads": options.threads,
            # Peak of one thread, which predictions follow; null where it was not measured.
            "peak": fused.compilation.peak and fused.compilation.peak.to_json(),
        },
        "optimized": measured.optimized.to_json() if measured else _prediction(fused),
        "unfused": measured.unfused.to_json() if measured else _prediction(plain),
        "peers": {r.name: _samples(r) for r in (measured.rivals if measured else ())},
        "peak": peak.to_json(),
        "operators": sorted(operators, key=lambda o: -float(str(o["seconds"]))),
        "outside": {"seconds": total - known, "share": (total - known) / (total or 1.0)},
        # Seconds that values in slower memories add to those of the steps.
        "spill_seconds": spilled,
        # Measured seconds that implementations and layouts were chosen by.
        "tuning": roofline.consulted((*groups, *changes(groups)), fused.compilation.timings),
    }


def _samples(rival: Rival) -> Json:
    if rival.samples is None or rival.ours is None:
        return {"unavailable": rival.reason}
    return {**rival.samples.to_json(), "ours": rival.ours.to_json()}


def _comparison(fused: Program, timings: Json, taken: Measured | str) -> Json:
    solution = fused.placement.solution
    measured = None if isinstance(taken, str) else taken
    water = measured.arena if measured else None
    memory = comparison.Memory(
        solution.peak,
        solution.lower_bound,
        solution.proved and not fused.placement.unplanned,
        water if isinstance(water, int) else None,
        water if isinstance(water, str) else "",
        len(fused.placement.unplanned),
    )
    rivals = measured.rivals if measured else ()
    reason = taken if isinstance(taken, str) else ""
    return comparison.comparison(timings["optimized"]["p50"], timings["kind"], rivals, memory, reason)


def _prediction(program: Program) -> Json:
    seconds = program.seconds
    return {"p10": seconds, "p50": seconds, "p90": seconds, "samples": [], "warmup": 0}


def _steps(steps: Sequence[Step]) -> Json:
    """Numbers of steps by what runs them."""
    predicted = sum(
        s.choice.implementation.backend in _PREDICTED and not s.calls and not s.choice.views for s in steps
    )
    return {
        "compiled": sum(bool(s.calls) and not (s.is_host or s.is_control_flow) for s in steps),
        "views": sum(not s.calls for s in steps) - predicted,
        "predicted": predicted,  # of an accelerator, or of nothing that executes them: without calls
        "control_flow": sum(s.is_control_flow and not s.is_fallback for s in steps),
        "fallback": sum(s.is_fallback for s in steps),
        "library": sum(s.is_library for s in steps),
    }


def summary_json(
    name: str,
    loaded: Loaded,
    execution: Execution,
    timings: Json,
    verification: Json | None,
    attempt: Attempt,
    taken: Measured | str,
) -> Json:
    """The summary of a job; `name` stands for a graph without a name."""
    fused, plain = execution.fused, execution.plain
    compilation = fused.compilation
    solution = fused.placement.solution
    nested_steps = [s for nested in bodies.walk(compilation) for s in nested.body.program.steps]
    return {
        "schema": "stowplan.summary/1",
        "model": compilation.graph.name or name,
        "target": compilation.target.name,
        "nodes": {
            "original": loaded.original_nodes,
            "canonical": len(compilation.graph),
            "before": len(plain.steps),
            "after": len(fused.steps),
        },
        "peak_bytes": {"before": plain.placement.solution.peak, "after": solution.peak},
        "lower_bound": solution.lower_bound,
        "gap": solution.gap,
        "naive_bytes": fused.placement.naive,
        "latency": {
            "before": timings["unfused"]["p50"],
            "after": timings["optimized"]["p50"],
            "onnxruntime": timings["peers"].get("onnxruntime", {}).get("p50"),
        },
        "comparison": _comparison(fused, timings, taken),
        "timings": timings["kind"],
        "precision": {
            **dataclasses.asdict(attempt.precision),
            "fast_algorithms": compilation.options.fast_algorithms,
            "int16": dict(compilation.options.int16),
            "steps": dict(Counter(s.choice.implementation.precision for s in fused.steps)),
        },
        "verification": verification,
        "steps": _steps([*fused.steps, *nested_steps]) | {"in_bodies": len(nested_steps)},
        "unplanned": list(fused.placement.unplanned),
        "backends": dict(Counter(p.backend for p in (compilation.plan.partition or {}).values())),
        "fallbacks": decisions.fallbacks(compilation),
        "libraries": decisions.libraries(compilation),
        "accelerator": decisions.accelerated(compilation),
        "operators": timings["operators"][:25],
        "outside": timings["outside"],
        "spill_seconds": timings["spill_seconds"],
        "passes": [{"name": r.name, "seconds": r.seconds, "nodes": r.nodes} for r in compilation.records],
        "notes": [*loaded.notes, *compilation.notes, *attempt.notes(fused)],
    }
