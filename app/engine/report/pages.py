"""report.html and memory.html, pages that need nothing else.

Names come from the model and are not to be trusted: the pages escape them.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jinja2

from app.engine.report import memory_map, units

SLOWEST = 25  # operators with a bar of their own
AT_PEAK = 40  # buffers that the page of the memory map names
WIDE, TALL = 640.0, 260.0  # of the picture of time against error
LISTED = 1500  # decisions on the page; decisions.json has all


def report_html(
    summary: Mapping[str, Any],
    memory: Mapping[str, Any],
    timings: Mapping[str, Any],
    decisions: Mapping[str, Any],
) -> str:
    """One page that needs nothing else: no script, style, font or image from anywhere."""
    operators = sorted(timings["operators"], key=lambda o: (-o["seconds"], o["name"]))
    rows = sorted(decisions["decisions"], key=lambda d: not d["fallback"])
    return (
        _environment()
        .get_template("report.html")
        .render(
            summary=summary,
            memory=memory,
            timings=timings,
            map=memory_map.draw(memory),
            operators=operators[:SLOWEST],
            rest=operators[SLOWEST:],
            slowest=max((o["seconds"] for o in operators), default=0.0),
            decisions=rows[:LISTED],
            omitted=len(rows[LISTED:]),
            symbol=(decisions["symbol"] or ())[:LISTED],
            choice=summary.get("precision_choice"),
            chart=_chart(summary.get("precision_choice")),
        )
    )


def _chart(choice: Mapping[str, Any] | None) -> dict[str, Any]:
    """Points of time against error, placed in WIDE x TALL: the front, the references and the choice.

    Both axes are logarithmic; float32, without error, lies at the left edge. Empty without a front.
    """
    if not choice or not choice["front"]:
        return {}
    marks = [("front", p) for p in choice["front"]] + [("reference", p) for p in choice["references"]]
    if choice["chosen"]:
        chosen = choice["chosen"] | {"error": choice["chosen"]["simulated"]}
        marks.append(("chosen", chosen | {"name": "chosen"}))
    marks = [(kind, p) for kind, p in marks if p["error"] is not None and p["seconds"] > 0]
    errors = [p["error"] for _, p in marks if p["error"] > 0] + [choice["budget"]]
    times = [p["seconds"] for _, p in marks]
    across = functools.partial(_placed, low=min(errors) / 2, high=max(errors) * 1.2, extent=WIDE)
    down = functools.partial(_placed, low=min(times) / 1.05, high=max(times) * 1.05, extent=TALL)
    points = [
        {
            "kind": kind,
            "name": p.get("name", ""),
            "x": across(max(p["error"], min(errors) / 2)),
            "y": TALL - down(p["seconds"]),
            "error": p["error"],
            "seconds": p["seconds"],
        }
        for kind, p in marks
    ]
    return {"wide": WIDE, "tall": TALL, "budget": across(choice["budget"]), "points": points}


def _placed(number: float, low: float, high: float, extent: float) -> float:
    """Place on a logarithmic axis from `low` to `high`, 0 to `extent`."""
    return extent * math.log(number / low) / math.log(high / low)


def memory_html(memory: Mapping[str, Any], model: str) -> str:
    """The memory map alone, with what lives at the peak and what others would take."""
    live = [step["live_bytes"] for step in memory["steps"]]
    worst = max(range(len(live)), key=live.__getitem__, default=0)
    at_peak = [
        {**b, "bytes": part["bytes"]}
        for b in memory["buffers"]
        for part in (b["parts"] or [b])
        if part["first"] <= worst <= part["last"] and part["bytes"]
    ]
    return (
        _environment()
        .get_template("memory.html")
        .render(
            model=model,
            memory=memory,
            map=memory_map.draw(memory),
            worst=worst,
            live=live[worst] if live else 0,
            at_peak=sorted(at_peak, key=lambda b: (-b["bytes"], b["name"]))[:AT_PEAK],
            more=max(len(at_peak) - AT_PEAK, 0),
        )
    )


def compile_templates() -> None:
    """Make the pages' templates ready for this process and those it forks."""
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("app.engine.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= units.FILTERS
    return environment
