"""What the command line shows of a job: progress while it runs, tables when it is done."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

SLOWEST = 12  # operators shown


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
    """The slowest operators, before and after, and the distance from the reference."""
    console.print(slowest(summary))
    console.print(before_and_after(summary))
    verification = summary.get("verification")
    if verification:
        console.print(distances(verification))
    steps = summary["steps"]
    if steps["fallback"]:
        console.print(
            f"[yellow]{steps['fallback']} steps fell back to the reference evaluator; "
            "decisions.json has the reasons[/]"
        )


def slowest(summary: Mapping[str, Any]) -> Table:
    """The operators that took longest."""
    table = Table(title=f"Slowest operators ({summary['timings']})", title_justify="left")
    for heading, side in (
        ("step", "left"),
        ("operators", "left"),
        ("implementation", "left"),
        ("us", "right"),
        ("share", "right"),
    ):
        table.add_column(heading, justify=side, overflow="fold")  # type: ignore[arg-type]  # two of its literals
    for row in summary["operators"][:SLOWEST]:
        table.add_row(
            row["name"],
            row["op"],
            row["implementation"],
            f"{row['seconds'] * 1e6:,.1f}",
            f"{row['share']:.1%}",
        )
    if spilled := summary.get("spill_seconds"):
        share = spilled / (summary["latency"]["after"] or 1.0)
        table.add_row("-", "values in slower memories", "-", f"{spilled * 1e6:,.1f}", f"{share:.1%}")
    return table


def before_and_after(summary: Mapping[str, Any]) -> Table:
    """Nodes, memory and latency without fusion, with it, and in onnxruntime."""
    table = Table(title="Before and after", title_justify="left")
    for heading in ("", "without fusion", "with fusion", "onnxruntime"):
        table.add_column(heading, justify="left" if not heading else "right")
    nodes, peak, latency = summary["nodes"], summary["peak_bytes"], summary["latency"]
    table.add_row(f"nodes (file: {nodes['original']})", str(nodes["before"]), str(nodes["after"]), "-")
    table.add_row("peak activation memory", size(peak["before"]), size(peak["after"]), "-")
    table.add_row(
        f"latency ({summary['timings']})",
        milliseconds(latency["before"]),
        milliseconds(latency["after"]),
        milliseconds(latency["onnxruntime"]),
    )
    return table


def distances(verification: Mapping[str, Any]) -> Table:
    """How far each output is from the oracle's."""
    table = Table(title=f"Difference from the original in {verification['oracle']}", title_justify="left")
    for heading in ("output", "what ran", "max abs", "of its maximum", "allowed"):
        table.add_column(
            heading, justify="left" if heading in ("output", "what ran") else "right", overflow="fold"
        )
    for key, what in (("outputs", "our kernels"), ("exported", "optimized.onnx")):
        for row in verification[key]:
            table.add_row(
                row["name"], what, f"{row['max_abs']:.2e}", f"{row['max_rel']:.2e}", f"{row['tolerance']:.0e}"
            )
    return table


def saved(console: Console, folder: Path, names: list[str]) -> None:
    """Where the artifacts are."""
    console.print(f"Artifacts in [bold]{folder}[/]: {', '.join(names)}")


def size(nbytes: int) -> str:
    """Bytes for people, exact below ten thousand."""
    if nbytes < 10_000:
        return f"{nbytes} B"
    return f"{nbytes / 1e6:,.2f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.1f} kB"


def milliseconds(seconds: float | None) -> str:
    """A latency for people."""
    return "-" if seconds is None else f"{seconds * 1e3:.3f} ms"
