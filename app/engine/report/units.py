"""Numbers as people read them, in reports and on pages."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

NBSP = "\N{NO-BREAK SPACE}"
OPERATIONS = (("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3), ("FLOP", 1.0))
UNITS = (("s", 1.0), ("ms", 1e3), ("µs", 1e6), ("ns", 1e9))


def size(nbytes: int | None) -> str:
    """Bytes for people, exact below ten thousand."""
    if nbytes is None:
        return "–"
    if nbytes < 10_000:
        return f"{nbytes}{NBSP}B"
    if nbytes >= 1e9:
        return f"{nbytes / 1e9:,.2f}{NBSP}GB"
    return f"{nbytes / 1e6:,.2f}{NBSP}MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f}{NBSP}kB"


def duration(seconds: float | None) -> str:
    """Seconds for people."""
    if seconds is None:
        return "–"
    if not seconds:
        return "0"
    unit, scale = next((u for u in UNITS if seconds * u[1] >= 1), UNITS[-1])
    number = seconds * scale
    return f"{number:,.0f}{NBSP}{unit}" if number >= 1000 else f"{number:.3g}{NBSP}{unit}"


def figure(number: float | None) -> str:
    """A small number for people."""
    return "–" if number is None else f"{number:.3g}"


def operations(count: float | None) -> str:
    """Floating-point operations for people."""
    if not count:
        return "–"
    unit, scale = next((u for u in OPERATIONS if count >= u[1]), OPERATIONS[-1])
    return f"{count / scale:.3g}{NBSP}{unit}"


def rate(number: float | None, unit: str) -> str:
    """A speed for people; nothing where there is none."""
    return f"{number:.3g}{NBSP}{unit}" if number else ""


def share(part: float | None) -> str:
    """A share in percent."""
    return "–" if part is None else f"{part * 100:.0f}{NBSP}%" if part >= 0.1 else f"{part * 100:.1f}{NBSP}%"


def cut(text: object, length: int = 160) -> str:
    """At most `length` characters of a text; names in a model may be of any length."""
    whole = str(text)
    return whole if len(whole) <= length else f"{whole[: length - 1]}…"


def attempts(message: str) -> tuple[str, list[tuple[str, str]]]:
    """A message, and the attempts that it lists after `tried:`, each with what came of it."""
    head, _, tried = message.partition("; tried: ")
    rows = [part.rpartition(": ") for part in tried.split("; ")] if tried else []
    return head, [(what, outcome) for what, _, outcome in rows]


# As templates call them.
FILTERS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {
        "size": size,
        "duration": duration,
        "cut": cut,
        "figure": figure,
        "attempts": attempts,
        "operations": operations,
        "rate": rate,
        "share": share,
    }
)
