"""report.html and memory.html, pages that need nothing else.

Names come from the model and are not to be trusted: the pages escape them.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jinja2

from app.engine.report import memory_map, units

SLOWEST = 25  # operators with a bar of their own
AT_PEAK = 40  # buffers that the page of the memory map names
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
        )
    )


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
