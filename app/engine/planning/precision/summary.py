"""The document precision.json: the choice under an error budget, node by node, and the alternatives."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from app.engine.planning.precision.candidates import BY_NAME, CANDIDATES, FLOAT32
from app.engine.planning.precision.samples import Samples
from app.engine.planning.precision.search import GAIN, MARGIN, Budget, Checked, Found, Point
from app.engine.planning.precision.sites import Site

Json = dict[str, Any]


def precision_json(
    found: Found, budget: Budget, given: Samples, rejected: Mapping[str, str], *, measured: bool
) -> Json:
    """The document; `rejected` are products that are no sites, `measured` tells of the seconds."""
    chosen = None if found.chosen is None else _checked(found.chosen, found)
    return {
        "schema": "stowplan.precision/1",
        "budget": budget.error,
        "metric": budget.metric,
        "margin": MARGIN,
        "kind": "measured" if measured else "predicted",
        "samples": {
            "source": given.source,
            "calibration": len(given.calibration),
            "held_back": len(given.held_back),
        },
        "warnings": [*given.warnings, *found.warnings],
        "sentence": sentence(chosen, _reason(found), budget.error, len(given.held_back)),
        "chosen": chosen,
        "reason": _reason(found),
        "tried": [_checked(checked, found) for checked in found.tried],
        "front": [_point(point, found) for point in found.front],
        "references": [
            {"name": FLOAT32, "seconds": _float32_seconds(found), "error": 0.0},
            *({"name": name, **_point(point, found)} for name, point in found.whole.items()),
        ],
        "nodes": [_node(site, found, budget) for site in found.sites],
        "rejected": dict(rejected),
    }


def sentence(chosen: Json | None, reason: str, budget: float, held_back: int) -> str:
    """Sentence on a choice, an entry of `tried`, or on the `reason` why all stays float32."""
    if chosen is None:
        return f"precision: float32, as {reason}"
    counts = ", ".join(f"{count} in {name}" for name, count in chosen["nodes"].items())
    error, how = chosen["error"], f"on {held_back} samples held back"
    if error is None:
        error, how = chosen["simulated"], f"{how}, simulated"
    faster = f"{chosen['speedup']:.2f}x float32" if chosen["speedup"] else "times are predicted"
    return f"precision: products {counts}; error {error:.2g} of {budget:g} {how}; {faster}"


def _reason(found: Found) -> str:
    """Reason why all stays float32; empty where something does not."""
    if found.chosen is not None:
        return ""
    if not found.sites:
        return "no product of the model has constant float32 weights"
    if not found.noise:
        return "no product is faster in a shorter precision"
    if not found.tried:
        return "no choice of shorter precisions that saves time is within the budget"
    return "; ".join(str(checked.rejection) for checked in found.tried)


def _float32_seconds(found: Found) -> float:
    return sum(spent[FLOAT32] for spent in found.seconds.values()) + found.rest


def _point(point: Point, found: Found) -> Json:
    counts = Counter(point.assignment.get(site.name, FLOAT32) for site in found.sites)
    return {
        "seconds": point.seconds,
        "error": _finite(point.error),
        "gap": point.gap,
        "nodes": {name: counts[name] for name in (FLOAT32, *BY_NAME) if counts[name]},
    }


def _checked(checked: Checked, found: Found) -> Json:
    """A planned point: `error` is that of its program, `simulated` that of the simulation."""
    told = _point(checked.point, found)
    own, float32 = checked.seconds or (None, None)
    return told | {
        "simulated": told["error"],
        "error": None if checked.error is None else _finite(checked.error),
        "run_seconds": own,
        "float32_run_seconds": float32,
        "speedup": checked.speedup,
        "results_rounded": checked.results,
        "rejection": checked.rejection,
    }


def _node(site: Site, found: Found, budget: Budget) -> Json:
    chosen = FLOAT32 if found.chosen is None else found.chosen.point.assignment.get(site.name, FLOAT32)
    seconds = found.seconds.get(site.name, {})
    base = seconds.get(FLOAT32)
    options = [_option(site, row.name, found) for row in CANDIDATES]
    taken = BY_NAME.get(chosen)
    nbytes = site.array.nbytes if taken is None else taken.weight_bytes(site.array.size, site.channels)
    return {
        "name": site.name,
        "op": site.op,
        "precision": chosen,
        "error": _finite(found.alone.get((site.name, chosen), 0.0)),
        "seconds": seconds.get(chosen),
        "saved": None if base is None else base - seconds[chosen],
        "weight_bytes": nbytes,
        "levels": found.rules.get(site.activation),
        "weights": None if taken is None else _rounding(site, chosen, found),
        "reason": _why_not_lower(site, chosen, found, budget),
        "alternatives": options,
    }


def _rounding(site: Site, chosen: str, found: Found) -> str:
    if BY_NAME[chosen].half:
        return "nearest"
    return "second order" if (site.name, chosen) in found.in_turn else "least squares"


def _option(site: Site, name: str, found: Found) -> Json:
    """A precision of a node: seconds, error of its rounding alone, and why it was not offered."""
    spent = found.seconds.get(site.name, {})
    error = found.alone.get((site.name, name))
    rejection = site.rejection(BY_NAME[name])
    if rejection is None and spent and name not in spent:
        exact = f"{name} gains nothing on this target, which multiplies 8 bits exactly"
        none = "no kernel for this target multiplies such operands"
        rejection = found.untimed.get(name, none if BY_NAME[name].half else exact)
    if rejection is None and error is None and name in spent:
        than = "float32" if spent[name] >= GAIN * spent[FLOAT32] else "a more exact precision"
        rejection = (
            f"not faster than {than}: {spent[name] * 1e6:.3g} us, in float32 {spent[FLOAT32] * 1e6:.3g} us"
        )
    return {
        "name": name,
        "seconds": spent.get(name),
        "error": None if error is None else _finite(error),
        "rejection": rejection,
    }


def _why_not_lower(site: Site, chosen: str, found: Found, budget: Budget) -> str:
    """Reason why the node has no faster precision; empty where it has the fastest."""
    spent = found.seconds.get(site.name, {})
    faster = sorted(
        (seconds, name)
        for name, seconds in spent.items()
        if (site.name, name) in found.alone and seconds < spent[chosen]
    )
    if not faster:
        return "" if chosen != FLOAT32 else "no precision is faster"
    seconds, name = faster[0]
    error, saved = found.alone[site.name, name], spent[chosen] - seconds
    told = f"{name} would save {saved * 1e6:.3g} us and move outputs by {error:.2e} alone"
    if error > MARGIN * budget.error:
        return f"{told}, the budget is {budget.error:g}"
    return f"{told}; with what the others take, the budget of {budget.error:g} would be exceeded or time lost"


def _finite(number: float) -> float | None:
    """The number as JSON has it; None where it is infinite or NaN."""
    return number if abs(number) < float("inf") else None
