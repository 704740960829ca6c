"""A job on the command line: progress while it runs, tables when it is done."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from app.engine.report.units import NBSP, duration, operations

SLOWEST = 12  # steps shown
FLOPS = "FLOPs of the textbook's algorithm: Winograd's and Strassen's may exceed the peak"
TONES = {"good": "green", "bad": "red"}
# Names of the verified programs and files, by their key in the verification.
WHAT = {
    "outputs": "our kernels",
    "exported": "optimized.onnx",
    "functions": "optimized.functions.onnx",
    "inlined": "optimized.inlined.onnx",
}


def progress_bar(console: Console) -> Progress:
    """A bar per phase, with the time it took."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def show_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """The comparison with other runtimes, the slowest steps, before and after, the verification."""
    choice = summary.get("precision_choice")
    for line in (*lines(summary), *precision_lines(choice), *training_lines(summary.get("training"))):
        console.print(line)
    console.print(slowest(summary))
    console.print(before_and_after(summary))
    verification = summary.get("verification")
    if verification:
        console.print(distances(verification))
        for place, reason in verification.get("unverified", {}).items():
            console.print(
                f"[yellow]{escape(WHAT.get(place, place))} not verified because {escape(reason)}[/]"
            )
    steps = summary["steps"]
    if steps["fallback"]:
        console.print(
            f"[yellow]{steps['fallback']} steps fell back to the reference evaluator; "
            "decisions.json has the reasons[/]"
        )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Rows of texts, none of them cut."""
    made = Table()
    for heading in headings:
        made.add_column(heading, overflow="fold")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def lines(summary: Mapping[str, Any]) -> Iterable[Text]:
    """The sentences of a job's comparison, and who was not measured."""
    found = summary.get("comparison") or {}
    for line in found.get("lines", ()):
        text = Text(line["text"])
        text.stylize(f"bold {TONES.get(line['tone'], '')}".strip(), 0, len(line["head"]))
        yield text
    yield from map(Text, found.get("notes", ()))


def precision_lines(choice: Mapping[str, Any] | None) -> Iterable[Text]:
    """Warnings on the samples of an error budget, and what was chosen under it; none without a budget."""
    if choice:
        yield from (Text(f"warning: {warning}", "yellow") for warning in choice["warnings"])
        yield Text(choice["sentence"])


def training_lines(found: Mapping[str, Any] | None) -> Iterable[str]:
    """Sentences on the memory of a training graph; none for another graph."""
    if not found:
        return
    parts = (f"{name} {size(found[name]['peak_bytes'])}" for name in ("forward", "backward"))
    yield f"training: {' and '.join(parts)} in use, {size(found['kept_bytes'])} kept for backward"
    if (bound := found["order"]["lower_bound"]) is not None:
        told = "proved least" if found["order"]["proved"] else f"at most {found['order']['gap']:.2%} above it"
        yield f"  in any order of the steps at least {size(bound)}: {told}"
    for point in found["rematerialization"]:
        yield (
            f"  {point['nodes']} nodes computed again: {size(point['saved_bytes'])} less, "
            f"{point['extra_seconds'] * 1e6:+,.1f} us"
        )


def slowest(summary: Mapping[str, Any]) -> Table:
    """The steps that took longest, with what they reach of the machine, and what is outside of steps."""
    table = Table(title=f"Slowest steps ({summary['timings']})", title_justify="left", box=SIMPLE_HEAD)
    table.padding, table.pad_edge = (0, 1, 0, 0), False
    table.caption, table.caption_justify = FLOPS, "left"
    for heading in ("step", "implementation"):
        table.add_column(heading, overflow="fold")
    for heading in ("us", "share", "FLOPs", "bytes", "of peak"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in summary["operators"][:SLOWEST]:
        table.add_row(
            Text(row["name"]),
            Text(row["implementation"]),
            f"{row['seconds'] * 1e6:,.1f}",
            f"{row['share']:.1%}",
            operations(row.get("flops")).removesuffix("FLOP"),
            size(row.get("bytes") or 0),
            "–" if row.get("of_peak") is None else f"{row['of_peak']:.0%}",
        )
    outside = summary.get("outside") or {}
    if outside.get("seconds"):
        times = (f"{outside['seconds'] * 1e6:,.1f}", f"{outside['share']:.1%}")
        table.add_row("outside of steps", "feed, wake, fetch", *times, "–", "–", "–")
    if spilled := summary.get("spill_seconds"):
        share = spilled / (summary["latency"]["after"] or 1.0)
        times = (f"{spilled * 1e6:,.1f}", f"{share:.1%}")
        table.add_row("values in slower memories", "-", *times, "–", "–", "–")
    return table


def before_and_after(summary: Mapping[str, Any]) -> Table:
    """Nodes, memory and latency without fusion, with it, and in peers."""
    table = Table(title="Before and after", title_justify="left")
    found = summary.get("comparison") or {}
    peers = [peer for peer in found.get("peers", ()) if peer["seconds"] is not None]
    for heading in ("", "without fusion", "with fusion", *(peer["name"] for peer in peers)):
        table.add_column(heading, justify="left" if not heading else "right")
    water = (found.get("memory") or {}).get("onnxruntime")
    nodes, peak, latency = summary["nodes"], summary["peak_bytes"], summary["latency"]
    table.add_row(
        f"nodes (file: {nodes['original']})", str(nodes["before"]), str(nodes["after"]), *("-" for _ in peers)
    )
    table.add_row(
        "peak activation memory",
        size(peak["before"]),
        size(peak["after"]),
        *(size(water) if water and peer["name"] == "onnxruntime" else "-" for peer in peers),
    )
    table.add_row(
        f"latency ({summary['timings']})",
        milliseconds(latency["before"]),
        milliseconds(latency["after"]),
        *(milliseconds(peer["seconds"]) for peer in peers),
    )
    return table


def distances(verification: Mapping[str, Any]) -> Table:
    """How far each output is from the oracle's."""
    table = Table(title=f"Difference from the original in {verification['oracle']}", title_justify="left")
    for heading in ("output", "what ran", "max abs", "of its maximum", "allowed"):
        table.add_column(
            heading, justify="left" if heading in ("output", "what ran") else "right", overflow="fold"
        )
    for key in ("outputs", "exported"):
        for row in verification[key]:
            table.add_row(
                Text(row["name"]),
                WHAT[key],
                f"{row['max_abs']:.2e}",
                f"{row['max_rel']:.2e}",
                f"{row['tolerance']:.0e}",
            )
    return table


def size(nbytes: int) -> str:
    """Bytes for people, exact below ten thousand."""
    if nbytes < 10_000:
        return f"{nbytes} B"
    return f"{nbytes / 1e6:,.2f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"


def milliseconds(seconds: float | None) -> str:
    """A latency for people; one below 0.1 ms in µs or ns, which keeps its digits."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else duration(seconds).replace(NBSP, " ")
