"""One run as a trace: steps on a time line, a thread per backend, the bytes alive beside them.

Opens in Perfetto and in chrome://tracing. Source: "Trace Event Format", Google, sections "Complete Events",
"Counter Events" and "Metadata Events"; times are microseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from app.engine.core.plan import Compilation

Json = dict[str, Any]

NO_TIMES: Mapping[str, float] = {}


def trace_json(
    compilation: Compilation,
    memory: Json,
    seconds: Sequence[float],
    timings: Json,
    inner: Mapping[str, float] = NO_TIMES,
) -> Json:
    """The steps one after another, each as long as it took or is predicted to take.

    Steps in bodies lie within the step that runs them, each once, as long as all its turns.

    Args:
        compilation: its plan has an order.
        memory: the `stowplan.memory/1` document of the plan.
        seconds: by step.
        timings: the `stowplan.timings/1` document. What it says of slower memories follows the steps.
        inner: seconds of steps in bodies, by path; those that are not told are left out.
    """
    plan = compilation.plan
    implementation = plan.require("implementation")
    choices = [implementation[group] for group in plan.require("order")]
    threads = {name: n for n, name in enumerate(dict.fromkeys(c.implementation.backend for c in choices))}
    events: list[Json] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": compilation.target.name}},
        *(
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": n, "args": {"name": b}}
            for b, n in threads.items()
        ),
    ]
    starts: dict[str, tuple[float, int]] = {}  # by path of a step: where its bodies begin, and the thread
    start = 0.0
    for choice, step, length in zip(choices, memory["steps"], seconds, strict=True):
        thread = threads[choice.implementation.backend]
        starts[step["name"]] = start, thread
        events.append(_event(step, choice.implementation.name, thread, start, length))
        events.append(
            {"ph": "C", "name": "arena", "pid": 0, "ts": start, "args": {"live": step["live_bytes"]}}
        )
        start += length * 1e6
    if timings["spill_seconds"]:
        events.append(_spill(start, timings["spill_seconds"]))
    for body in (b for b in memory["bodies"] if b["parent"] in starts):
        start, thread = starts[body["parent"]]
        for step in (s for s in body["steps"] if s["name"] in inner):
            starts[step["name"]] = start, thread
            event = _event(step, step["implementation"], thread, start, inner[step["name"]])
            event["args"]["turns"] = body["turns"]
            events.append(event)
            start += inner[step["name"]] * 1e6
        starts[body["parent"]] = start, thread
    return {
        "schema": "stowplan.trace/1",
        "displayTimeUnit": "ms",
        "otherData": {"model": compilation.graph.name or "", "timings": timings["kind"]},
        "traceEvents": events,
    }


def _spill(start: float, seconds: float) -> Json:
    return {
        "ph": "X",
        "name": "values in slower memories",
        "cat": "spill",
        "pid": 0,
        "tid": 0,
        "ts": start,
        "dur": seconds * 1e6,
        "args": {},
    }


def _event(step: Json, category: str, thread: int, start: float, seconds: float) -> Json:
    return {
        "ph": "X",
        "name": step["op"],
        "cat": category,
        "pid": 0,
        "tid": thread,
        "ts": start,
        "dur": seconds * 1e6,
        "args": {"step": step["index"], "node": step["name"], "implementation": step["implementation"]},
    }
