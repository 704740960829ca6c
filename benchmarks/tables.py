"""The results as tables and lines of text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Table

from benchmarks.peers import ONNXRUNTIME, OPENVINO, OPENVINO_F32
from benchmarks.row import OURS

Row = Mapping[str, Any]
COLUMNS = (OURS, ONNXRUNTIME, OPENVINO_F32, OPENVINO)
STEPS = 12  # of a model that are shown


def latency_table(rows: Sequence[Row], title: str) -> Table:
    """A line per model and thread count; the ratio is the better of the two f32 peers over ours."""
    table = Table(title=title)
    headings = ("model", "threads", *(f"{c} ms" for c in COLUMNS), "ratio", "max rel. difference")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        times = row["milliseconds"]
        table.add_row(
            row["model"],
            str(row["threads"]),
            *(_milliseconds(times.get(c)) for c in COLUMNS),
            f"{row['ratio']:.2f}x" if row["ratio"] else "-",
            f"{row['max_rel']:.1e}" if row["max_rel"] is not None else "-",
        )
    return table


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}" if value < 1 else f"{value:.2f}"


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric means, scaling, precisions, and everything that is not in the table."""
    lines = []
    for threads in sorted({r["threads"] for r in rows}):
        here = [r for r in rows if r["threads"] == threads]
        lines += _means(here, threads)
    lines += _scaling(rows)
    defaults = sorted({r["precision"][OPENVINO] for r in rows if OPENVINO in r["precision"]})
    if defaults:
        lines.append(
            f"OpenVINO's default precision on this CPU, as its compiled models say: {', '.join(defaults)}"
        )
    seeded = list(dict.fromkeys(r["model"] for r in rows if r["inputs"] == "seeded"))
    if seeded:
        lines.append(f"inputs drawn from a seed, not recorded: {', '.join(seeded)}")
    plain = list(dict.fromkeys(f"{r['model']} ({', '.join(r['as_it_is'])})" for r in rows if r["as_it_is"]))
    if plain:
        lines.append(f"run from the file as it is, without the shapes that we plan for: {', '.join(plain)}")
    refusals = {(r["model"], name): why for r in rows for name, why in r["refused"].items()}
    lines += [f"{model}: {name} cannot run it: {why}" for (model, name), why in refusals.items()]
    hosted = {r["model"]: r["reference"] for r in rows if r["reference"]}
    lines += [f"{model}: {len(s)} steps run in Python: {', '.join(s)}" for model, s in hosted.items()]
    return lines


def _means(rows: Sequence[Row], threads: int) -> list[str]:
    known = [r for r in rows if r["ratio"]]
    if not known:
        return []
    parts = [f"better f32 peer {geometric_mean([r['ratio'] for r in known]):.3f}x"]
    for peer in COLUMNS[1:]:
        ratios = [
            r["milliseconds"][peer] / r["milliseconds"][OURS] for r in rows if peer in r["milliseconds"]
        ]
        if ratios:
            parts.append(f"{peer} {geometric_mean(ratios):.3f}x ({len(ratios)} models)")
    ahead = sum(r["ratio"] >= 1 for r in known)
    peak = float(np.median([r["peak_gflops"] for r in rows]))
    return [
        f"{counted(threads)}, geometric mean of peer / ours: {', '.join(parts)}; "
        f"ahead in {ahead} of {len(known)}; peak {peak:.0f} GFLOP/s"
    ]


def _scaling(rows: Sequence[Row]) -> list[str]:
    """Time with one thread over time with more, ours and the peers'."""
    times = {(r["model"], r["threads"]): r["milliseconds"] for r in rows}
    lines = []
    for threads in sorted({r["threads"] for r in rows} - {1}):
        parts = []
        for side in COLUMNS:
            ratios = [
                times[model, 1][side] / many[side]
                for (model, count), many in times.items()
                if count == threads and side in many and side in times.get((model, 1), {})
            ]
            if ratios:
                parts.append(f"{side} {geometric_mean(ratios):.2f}x")
        if parts:
            lines.append(f"scaling from 1 to {threads} threads, geometric mean: {', '.join(parts)}")
    return lines


def operator_table(row: Row) -> Table:
    """The slowest steps of a model, with the share of the measured peak that they reach."""
    steps = row["operators"]
    total = sum(s["milliseconds"] for s in steps)
    table = Table(title=f"{row['model']}, {counted(row['threads'])}: {len(steps)} steps, {total:.3f} ms")
    table.add_column("step", no_wrap=True, max_width=60)
    table.add_column("implementation")
    for heading in ("ms", "share", "GFLOP/s", "of peak"):
        table.add_column(heading, justify="right")
    for step in steps[:STEPS]:
        table.add_row(
            f"{step['op']} {step['name']}",
            step["implementation"],
            f"{step['milliseconds']:.4f}",
            f"{step['milliseconds'] / max(total, 1e-12):.1%}",
            f"{step['gflops']:.1f}",
            f"{step['gflops'] / row['peak_gflops']:.0%}",
        )
    return table


def counted(threads: int) -> str:
    """`1 thread`, `2 threads`."""
    return f"{threads} thread{'s' if threads > 1 else ''}"


def geometric_mean(ratios: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(ratios))))
