"""The memory of a region's plan as a document of formulas, see `app.engine.memory.region_peak`."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from app.engine.memory.problem import Buffer
from app.engine.memory.region_peak import formula_json, solution_at
from app.engine.planning.regions.pieces import RegionPlan, Sample
from app.engine.planning.regions.program import RegionProgram, RowRefusedError
from app.engine.types.errors import RegionError
from app.engine.types.regions.formula import Formula, constant, fitted
from app.engine.types.regions.region import Point, Region

Json = dict[str, Any]
ENUMERATED = 4096  # points of a region at which workspaces are sized, and the worst case proved, one by one


def memory_formulas(plan: RegionPlan) -> Json:
    """The part `region` of memory.json: its pieces with their formulas, the worst case, and the loss curve.

    Raises:
        RegionError: the peak by formulas is not that of the program at a sample.
    """
    pieces = [_piece(program) for program in plan.pieces]
    proofs = [piece["proof"] for piece in pieces]
    return {
        "symbols": _bounds(plan.region),
        "inputs": {n: list(dims) for n, dims in plan.region.inputs.items()},
        "points": plan.region.count,
        "pieces": pieces,
        "curve": [sample_json(sample) for sample in plan.curve],
        "worst_bytes": max(piece["worst_bytes"] for piece in pieces),
        "proof": "; ".join(dict.fromkeys(proofs)) if all(proofs) else "",
    }


def sample_json(sample: Sample) -> Json:
    """Times at a shape as JSON; `measured` is the least measured share of the two times."""
    times = sample.chosen, sample.own
    return {
        "sizes": dict(sample.point),
        "seconds": sample.chosen.total,
        "own_seconds": sample.own.total,
        "loss": sample.loss,
        "measured": min(t.measured / t.total if t.total else 0.0 for t in times),
    }


def _bounds(region: Region) -> Json:
    return {n: [s.low, s.high, s.step] for n, s in region.symbols.items()}


def _piece(program: RegionProgram) -> Json:
    """A piece: sizes by formula, which buffer lies above which, and its worst case.

    A workspace without a formula has a table of all shapes where these are ENUMERATED at most; of equal ones
    the later name the first. Any other size without one counts as at the sample that takes most: the document
    is not `exact` then.

    Raises:
        RegionError: the peak by the document is not that of the program at a sample.
    """
    region = program.region
    points = region.samples()
    placed = [program.at(p) for p in points]
    stacking, buffers = program.stacking, []
    for problem in (p.compilation.plan.require("buffers").assignment.problem for p in placed):
        stacking = stacking.extended(problem)
        buffers.append({b.id: b for b in problem.buffers})
    every = {name: b for found in buffers for name, b in found.items()}
    absent = {name: dataclasses.replace(b, size=0, parts=()) for name, b in every.items()}
    found = {n: _row(region, points, [b.get(n, absent[n]) for b in buffers]) for n in stacking.order}
    tables = _tables(program, [name for name, (_, formulas) in found.items() if None in formulas])
    rows, exact, monotone = [], True, True
    named: dict[tuple[int, ...], str] = {}  # the first buffer with a table
    for name, (row, formulas) in found.items():
        known = [f for f in formulas if f is not None]
        exact &= len(known) == len(formulas) or name in tables
        monotone &= len(known) == len(formulas) and not row["parts"] and all(f.is_monotone for f in known)
        below = dict(stacking.below[name])
        table = tuple(tables.get(name, ()))
        first = named.setdefault(table, name)
        rows.append(row | {"below": below, "table": [*table] if first == name else first if table else []})
    document: Json = {
        "symbols": _bounds(region),
        "anchor": dict(program.anchor),
        "points": region.count,
        "buffers": rows,
        "exact": exact,
        "notes": list(program.notes),
    }
    for point, plan in zip(points, placed):
        peak = solution_at(document, point).peak
        if peak < plan.arena_bytes or (exact and peak != plan.arena_bytes):
            raise RegionError(
                f"at {dict(point)} the formulas give {peak} byte, the plan {plan.arena_bytes} byte"
            )
    return document | _worst(document, region, monotone=monotone)


def _tables(program: RegionProgram, names: Sequence[str]) -> dict[str, list[int]]:
    """Bytes of workspaces without a formula at every point; none in a large region."""
    ids = program.workspace_ids
    if program.region.count > ENUMERATED:
        return {}
    try:
        return program.workspace_sizes([name for name in names if name in ids])
    except RowRefusedError:
        return {}


def _row(
    region: Region, points: Sequence[Point], found: Sequence[Buffer]
) -> tuple[Json, list[Formula | None]]:
    """A buffer of the document, and its formulas; None for those that were not found."""
    first = found[0]
    formulas = [fitted(region, points, [b.size for b in found])]
    lives = [tuple((p.lower, p.upper) for p in b.parts) for b in found]
    parts = []
    if all(life == lives[0] for life in lives):
        for at, part in enumerate(first.parts):
            offset = fitted(region, points, [b.parts[at].offset for b in found])
            size = fitted(region, points, [b.parts[at].size for b in found])
            formulas += [offset, size]
            if offset is not None and size is not None:
                ends = {"offset": formula_json(offset), "bytes": formula_json(size)}
                parts.append(ends | {"lower": part.lower, "upper": part.upper})
    if len(parts) != len(first.parts) or formulas[0] is None:
        formulas.append(None)
        parts = []
    row: Json = {
        "id": first.id,
        "lower": first.lower,
        "upper": first.upper,
        "alignment": first.alignment,
        "bytes": formula_json(formulas[0] or constant(max(b.size for b in found))),
        "parts": parts,
    }
    return row, formulas


def _worst(document: Json, region: Region, *, monotone: bool) -> Json:
    """The peak of the worst case and what proves that no shape takes more; empty where nothing does."""
    peak = solution_at(document, region.largest).peak
    if monotone:
        return {"worst_bytes": peak, "proof": "no size falls where a symbol grows"}
    if region.count <= ENUMERATED:
        worst = max(solution_at(document, point).peak for point in region.points())
        return {"worst_bytes": worst, "proof": "every shape"}
    return {"worst_bytes": peak, "proof": ""}
