"""A prediction counts what slower memories cost, in every figure that a job tells."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.entry import optimize
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Memory, Target
from app.jobs.comparison import Constraints, compare
from tests.engine.buffers.test_spill import CHAIN, LITTLE
from tests.harness import model_of

WIDE = Target("wide", memories=(Memory("sram", 1 << 20, 64, 20e9),), device="cpu", cores=1)
NARROW = dataclasses.replace(
    WIDE, name="narrow", memories=(Memory("sram", LITTLE, 64, 20e9), Memory("dram", 1 << 30, 64, 1e8))
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict, dict, Path]]:  # type: ignore[type-arg]
    """Summary, timings and folder by target."""
    folder = tmp_path_factory.mktemp("spilled")
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64), np.float32) / 8}
    onnx.save(ir.to_proto(model_of(CHAIN, weights)), folder / "net.onnx")
    found = {}
    for target in (WIDE, NARROW):
        out = folder / target.name
        out.mkdir()
        options = Options(timings="predicted", pareto=True, verify=False, fuse=False)
        summary = optimize.optimize(
            folder / "net.onnx", target, options, Bindings(), out, kernels=folder / "kernels"
        )
        found[target.name] = summary, json.loads((out / "timings.json").read_text()), out
    return found


def test_the_time_of_steps_and_of_slower_memories_is_the_predicted_latency(told) -> None:  # type: ignore[no-untyped-def]
    for name, (summary, timings, _) in told.items():
        steps = sum(o["seconds"] for o in timings["operators"])
        assert (timings["spill_seconds"] > 0) == (name == "narrow")
        assert summary["latency"]["after"] == pytest.approx(steps + timings["spill_seconds"])
        shares = sum(o["share"] for o in timings["operators"])
        assert shares + timings["spill_seconds"] / summary["latency"]["after"] == pytest.approx(1)
    # The program that it is compared with lies in the same memories.
    assert told["narrow"][0]["latency"]["before"] > told["wide"][0]["latency"]["before"]


def test_a_group_ranks_the_target_that_spills_behind_the_one_that_does_not(told) -> None:  # type: ignore[no-untyped-def]
    rows = [
        {
            "id": name,
            "target": name,
            "state": "succeeded",
            "code": None,
            "detail": None,
            "request": {"options": {}},
            "summary": told[name][0],
        }
        for name in ("narrow", "wide")
    ]
    ranked = {entry.job: entry.rank for entry in compare(rows, "latency", Constraints())}
    assert ranked == {"wide": 1, "narrow": 2}


def test_the_front_counts_slower_memories_and_speaks_of_peak_bytes(told) -> None:  # type: ignore[no-untyped-def]
    for summary, _, _ in told.values():
        assert summary["pareto"]
        assert all(set(p) == {"peak_bytes", "seconds", "told"} for p in summary["pareto"])
        assert min(p["seconds"] for p in summary["pareto"]) == pytest.approx(summary["latency"]["after"])


def test_trace_plan_and_page_show_slower_memories_beside_the_steps(told) -> None:  # type: ignore[no-untyped-def]
    _, timings, folder = told["narrow"]
    trace = json.loads((folder / "trace.json").read_text())
    lengths = [e["dur"] for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sum(lengths) == pytest.approx(timings["optimized"]["p50"] * 1e6)
    assert json.loads((folder / "plan.json").read_text())["spill_seconds"] == timings["spill_seconds"]
    assert "values in slower memories" in (folder / "report.html").read_text()
