"""The picture of the memory map: steps to the right, addresses upward, a rectangle per buffer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 1000.0, 400.0  # of the drawing, before it is stretched to the page
MOST = 2000  # rectangles; the largest are drawn
HEADROOM = 1.06  # over the peak


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A buffer in drawing coordinates.

    `within` is the body whose steps `first` and `last` count; empty for those of the plan.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    name: str
    nbytes: int
    first: int
    last: int
    offset: int
    reason: str
    within: str = ""


@dataclass(frozen=True, slots=True)
class MemoryMap:
    """Geometry of the drawing.

    Attributes:
        live: points of the outline of live bytes, as an SVG path.
        ticks: (fraction of the height from the top, bytes).
        omitted: buffers too small to be drawn.
        further: where slower memories begin, from the top, and their names.
    """

    rectangles: tuple[Rectangle, ...]
    kinds: tuple[str, ...]
    live: str
    peak_y: float
    bound_y: float
    ticks: tuple[tuple[float, int], ...]
    steps: int
    omitted: int
    further: tuple[tuple[float, str], ...] = ()


def draw(memory: Mapping[str, Any]) -> MemoryMap:
    """Geometry of a `stowplan.memory/1` document."""
    steps = max(1, len(memory["steps"]))
    end = max(m["start"] + m["peak_bytes"] for m in memory["memories"])
    top: float = max(1, end) * HEADROOM

    def y(nbytes: int) -> float:
        return HEIGHT * (1.0 - nbytes / top)

    shown = _shown(memory)
    largest = sorted(
        shown, key=lambda s: (bool(s[3]), -s[0]["bytes"] * (s[0]["last"] + 1 - s[0]["first"]), s[0]["name"])
    )
    kept = largest[:MOST]
    rectangles = tuple(
        Rectangle(
            x=WIDTH * (start + b["first"] * step) / steps,
            y=y(b["offset"] + b["bytes"]),
            width=WIDTH * (b["last"] + 1 - b["first"]) * step / steps,
            height=HEIGHT * b["bytes"] / top,
            kind=_kind(b),
            name=b["name"],
            nbytes=b["bytes"],
            first=b["first"],
            last=b["last"],
            offset=b["offset"],
            reason=b["reason"],
            within=within,
        )
        for b, start, step, within in kept
    )
    outline = "".join(
        f"{'M' if i == 0 else 'L'}{WIDTH * i / steps:.2f} {y(step['live_bytes']):.2f}"
        f"H{WIDTH * (i + 1) / steps:.2f}"
        for i, step in enumerate(memory["steps"])
    )
    return MemoryMap(
        rectangles,
        tuple(sorted({r.kind for r in rectangles})),
        outline,
        y(memory["peak_bytes"]),
        y(memory["lower_bound"]),
        _ticks(end, top),
        steps,
        len(shown) - len(kept),
        tuple((y(m["start"]), m["name"]) for m in memory["memories"][1:]),
    )


def _shown(memory: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], float, float, str]]:
    """Every part of a buffer, with the start and the width of the steps that it counts, and their body.

    A buffer whose bytes do not all live as long is one rectangle for each part; those of a body lie where
    the step that runs it is, on top of what the step has for them.
    """
    return [
        (
            {**b, **part, "offset": b["offset"] + (part["offset"] if b["parts"] else 0)},
            start,
            (end - start) / max(count, 1),
            within,
        )
        for buffers, start, end, count, within in (
            (memory["buffers"], 0.0, float(len(memory["steps"])), len(memory["steps"]), ""),
            *((b["buffers"], *b["span"], len(b["steps"]), b["name"]) for b in memory["bodies"]),
        )
        for b in buffers
        for part in (b["parts"] or [b])
        if part["bytes"]
    ]


def _kind(buffer: Mapping[str, Any]) -> str:
    """The buffer's kind; an activation that several values share is told apart."""
    shared = buffer["kind"] == "activation" and len(buffer["values"]) > 1
    return "shared" if shared else str(buffer["kind"])


def _ticks(peak: int, top: float) -> tuple[tuple[float, int], ...]:
    """Round addresses below the peak, four or so."""
    if peak <= 0:
        return ()
    raw = peak / 4
    power = 10 ** (len(str(int(raw))) - 1) if raw >= 1 else 1
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw)
    return tuple((1 - n / top, n) for n in range(0, peak + 1, int(step)))
