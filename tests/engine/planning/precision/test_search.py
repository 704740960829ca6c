"""The search for precisions, on machines whose times the test makes up."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core.program import Program
from app.engine.planning.precision import metrics
from app.engine.planning.precision.candidates import BY_NAME, FLOAT32
from app.engine.planning.precision.samples import Samples
from app.engine.planning.precision.search import MARGIN, Budget, Found, Machine, Search, pareto, worth
from app.engine.planning.precision.simulation import Simulation
from app.engine.planning.precision.sites import sites
from app.engine.planning.precision.summary import precision_json
from app.engine.report.onnx import export
from app.engine.runtime.oracle import runtime
from tests.engine.planning.precision import models

ROWS = tuple(BY_NAME[name] for name in ("int8", "w8-block32", "w4-block32"))


@dataclass
class Pretended:
    """A machine that runs models in onnxruntime and makes times up: by operator of what a site became.

    `slowdown` is the ratio of a race; `moved` is added to the outputs of programs; matrix products take
    `matmul` of their time.
    """

    folder: Path
    held_back: Sequence[Mapping[str, object]]
    names: tuple[str, ...]
    times: Mapping[str, float] = field(
        default_factory=lambda: {"int8": 0.3, "w8-block32": 0.6, "w4-block32": 0.4}
    )
    slowdown: float = 0.5
    matmul: float = 1.0
    moved: float = 0.0

    def machine(self) -> Machine:
        return Machine(
            ROWS,
            False,
            self.plan,
            self.seconds,
            self.outputs,
            self.race,
            self.rest,
            lambda _done, _total: None,
        )

    def plan(self, model: ir.Model, _halves: Mapping[str, str]) -> Program:
        return model  # type: ignore[return-value]  # what stands for a program here

    def seconds(self, programs: Sequence[Program]) -> list[Mapping[str, float]]:
        return [self._seconds(p) for p in programs]  # type: ignore[arg-type]  # models

    def _seconds(self, model: ir.Model) -> dict[str, float]:
        nodes = {n.name: n for n in model.graph}
        found = {"": 1.0}
        for place, name in enumerate(self.names):
            small = self.matmul if nodes[name].op_type != "Conv" else 1.0
            found[name] = (1.0 + place) * small * self.times.get(precision_of(nodes[name]), 1.0)
        return found

    def outputs(self, program: Program) -> list[Mapping[str, object]]:
        path = self.folder / "program.onnx"
        export(program, path)  # type: ignore[arg-type]  # a model
        run = runtime(path, threads=1, optimized=False)
        return [{k: np.asarray(v) + self.moved for k, v in run(s).items()} for s in self.held_back]

    def rest(self) -> None:
        """Programs here take no memory."""

    def race(self, _program: Program, _float32: Program) -> tuple[list[float], list[float]]:
        return [self.slowdown] * 3, [1.0] * 3


def precision_of(node: ir.Node) -> str:
    """The precision of a product, read off its weights."""
    source = node.inputs[1].producer()  # type: ignore[union-attr]  # weights
    if source is None:
        return FLOAT32
    kind, block = source.inputs[0].dtype, source.attributes.get("block_size")  # type: ignore[union-attr]  # weights
    return "int8" if block is None else "w4-block32" if kind == ir.DataType.INT4 else "w8-block32"


def searched(
    name: str,
    folder: Path,
    budget: float,
    held_back: Sequence[Mapping[str, object]] | None = None,
    **changes: Any,
) -> tuple[Found, Samples]:
    model = models.plain(name, folder)
    found = sites(model)
    held_back = models.inputs(name, 3, seed=8) if held_back is None else held_back
    given = Samples(tuple(models.inputs(name, 3)), tuple(held_back), "given", ())
    pretended = replace(Pretended(folder, given.held_back, tuple(s.name for s in found)), **changes)
    simulation = Simulation(model, found, folder, 1)
    return Search(model, found, given, "max", simulation, pretended.machine()).run(budget), given


@pytest.mark.parametrize("name", models.TEXTS)
@pytest.mark.parametrize("budget", [0.3, 0.02, 0.008, 0.002])
def test_the_choice_is_within_the_budget_by_a_run_of_the_model(
    name: str, budget: float, tmp_path: Path
) -> None:
    found, given = searched(name, tmp_path, budget)
    if found.chosen is None:
        assert all(point.error > MARGIN * budget for point in found.front if point.assignment)
        return
    assert found.model is not None
    export(found.model, tmp_path / "chosen.onnx")
    export(models.plain(name, tmp_path), tmp_path / "float32.onnx")
    own, exact = (runtime(tmp_path / f"{f}.onnx", threads=1, optimized=False) for f in ("chosen", "float32"))
    errors = []
    for sample in given.held_back:
        (a,), (b,) = exact(sample).values(), own(sample).values()
        errors.append(np.abs(np.asarray(b) - np.asarray(a)).max() / np.abs(np.asarray(a)).max())
    assert max(errors) == pytest.approx(found.chosen.error, rel=0.02)
    assert max(errors) <= budget


def test_the_points_of_the_front_are_those_of_brute_force_under_their_noise(tmp_path: Path) -> None:
    found, *_ = searched("mlp", tmp_path, 0.02)
    names = [s.name for s in found.sites]
    options = [[FLOAT32, *(r.name for r in ROWS if (n, r.name) in found.noise)] for n in names]
    known = [
        (
            math.fsum(found.seconds[n][c] for n, c in zip(names, choice)) + found.rest,
            math.fsum(found.noise.get((n, c), 0.0) for n, c in zip(names, choice)),
        )
        for choice in itertools.product(*options)
    ]
    whole = [point.assignment for point in found.whole.values()]  # chosen by no bound on noise
    bounded = [point for point in found.front if point.assignment not in whole]
    assert len(bounded) > 1
    for point in bounded:
        noise = math.fsum(found.noise[n, c] for n, c in point.assignment.items())
        assert point.seconds == pytest.approx(min(s for s, n in known if n <= noise * (1 + 1e-9)))


def test_with_a_wide_budget_all_is_as_fast_as_can_be(tmp_path: Path) -> None:
    found, *_ = searched("cnn", tmp_path, 1.0)
    assert found.chosen is not None
    assert set(found.chosen.point.assignment.values()) == {"int8"}
    assert len(found.chosen.point.assignment) == len(found.sites)


def test_with_no_room_all_stays_float32_and_why_is_told(tmp_path: Path) -> None:
    found, given = searched("cnn", tmp_path, 1e-7)
    assert found.chosen is None
    told = precision_json(found, Budget(1e-7, "max"), given, {}, measured=True)
    assert told["reason"] == "no choice of shorter precisions that saves time is within the budget"
    assert all("the budget is 1e-07" in node["reason"] for node in told["nodes"])


@pytest.mark.parametrize("slowdown", [0.999, 1.1])
def test_a_choice_that_is_no_faster_in_turns_with_float32_is_not_taken(
    slowdown: float, tmp_path: Path
) -> None:
    found, given = searched("cnn", tmp_path, 0.5, slowdown=slowdown)
    assert found.chosen is None
    told = precision_json(found, Budget(0.5, "max"), given, {}, measured=True)
    assert f"taking {slowdown:.3f} times as long" in told["reason"]


def test_a_program_that_errs_more_than_simulated_is_not_taken(tmp_path: Path) -> None:
    found, *_ = searched("cnn", tmp_path, 0.05, moved=1.0)
    assert found.chosen is None
    assert all(str(c.rejection).startswith("its program has an error of") for c in found.tried)
    assert found.tried


def test_a_precision_that_saves_nothing_is_not_offered(tmp_path: Path) -> None:
    found, given = searched("mlp", tmp_path, 0.5, times={"int8": 1.0, "w8-block32": 1.2, "w4-block32": 0.99})
    assert found.chosen is None
    assert not found.noise
    told = precision_json(found, Budget(0.5, "max"), given, {}, measured=True)
    assert told["reason"] == "no product is faster in a shorter precision"
    (node, *_) = told["nodes"]
    reasons = {a["name"]: a["rejection"] for a in node["alternatives"]}
    assert reasons["int8"].startswith("not faster than float32: 1e+06 us")


def test_rows_must_beat_more_exact_ones_that_round_activations_alike() -> None:
    seconds = {FLOAT32: 1.0, "int8": 0.5, "w8-block32": 0.4, "w4-block32": 0.4}
    assert [row.name for row in worth(ROWS, seconds)] == ["int8", "w8-block32"]


def test_results_of_convolutions_are_rounded_where_the_budget_allows_it(tmp_path: Path) -> None:
    wide, narrow = (searched("cnn", tmp_path, budget)[0] for budget in (1.0, 0.02))
    assert wide.chosen is not None
    assert wide.chosen.results
    assert narrow.chosen is not None
    for found in (wide, narrow):
        assert found.model is not None
        assert found.chosen is not None
        (added,) = (node for node in found.model.graph if node.op_type == "Add")
        (source, *_) = (value.producer() for value in added.inputs if value is not None)
        assert source is not None
        assert (source.op_type == "DequantizeLinear") is found.chosen.results


def test_a_search_under_one_budget_after_another_finds_what_new_ones_find(tmp_path: Path) -> None:
    model = models.plain("cnn", tmp_path)
    found, held_back = sites(model), models.inputs("cnn", 3, seed=8)
    given = Samples(tuple(models.inputs("cnn", 3)), tuple(held_back), "given", ())
    pretended = Pretended(tmp_path, held_back, tuple(s.name for s in found))
    search = Search(model, found, given, "max", Simulation(model, found, tmp_path, 1), pretended.machine())
    for budget in (0.5, 0.02, 0.008, 0.5):
        again, (alone, _) = search.run(budget), searched("cnn", tmp_path, budget)
        chosen = [
            f.chosen and (f.chosen.point.assignment, f.chosen.error, f.chosen.results) for f in (again, alone)
        ]
        assert chosen[0] == chosen[1]


def test_the_same_search_finds_the_same(tmp_path: Path) -> None:
    first, second = (searched("cnn", tmp_path, 0.01)[0] for _ in range(2))
    assert first.front == second.front
    assert first.noise == second.noise
    assert (first.chosen is None) == (second.chosen is None)


@pytest.mark.parametrize("name", models.TEXTS)
def test_a_sample_that_errs_more_than_the_first_ones_is_seen_before_a_plan_is_made(
    name: str, tmp_path: Path
) -> None:
    held_back = models.inputs(name, 9, seed=8)
    held_back[7] = {"x": 4 * held_back[7]["x"]}  # beyond the levels of 8-bit activations
    found, _ = searched(name, tmp_path, 0.02, held_back)
    assert found.tried
    for checked in found.tried:
        assert checked.point.error <= MARGIN * 0.02
        assert checked.error == pytest.approx(checked.point.error, rel=0.05)


def test_a_precision_of_products_that_take_no_time_is_not_tried(tmp_path: Path) -> None:
    found, given = searched("cnn", tmp_path, 0.5, matmul=1e-3)
    assert set(found.seconds[found.sites[-1].name]) == {FLOAT32, "int8"}
    told = precision_json(found, Budget(0.5, "max"), given, {}, measured=True)
    (*_, gemm) = told["nodes"]
    reasons = {a["name"]: a["rejection"] for a in gemm["alternatives"]}
    assert "of the time in float32" in reasons["w4-block32"]


def test_a_front_has_no_point_that_another_beats(tmp_path: Path) -> None:
    points = searched("cnn", tmp_path, 0.01)[0].front
    assert pareto(reversed(points)) == points
    for a, b in itertools.pairwise(points):
        assert a.seconds < b.seconds
        assert a.error > b.error


def test_metrics_by_hand() -> None:
    a, b = (
        {"y": np.array([[1.0, -4.0], [2.0, 3.0]], np.float32)},
        {"y": np.array([[1.0, -3.0], [3.5, 3.0]], np.float32)},
    )
    assert metrics.error("max", a, b) == pytest.approx(1.5 / 4)
    assert metrics.error("top1", a, b) == 0.5
    assert metrics.error("cosine", a, b) == pytest.approx(1 - 29 / (30**0.5 * (1 + 9 + 12.25 + 9) ** 0.5))
    assert metrics.noise(a, b) == pytest.approx((1 + 2.25) / 30)
    assert metrics.error("max", a, {"y": np.full((2, 2), np.nan, np.float32)}) == math.inf
    assert metrics.error("max", {"i": np.array([1, 2])}, {"i": np.array([1, 3])}) == 0.5
    assert metrics.noise({"i": np.array([1, 2])}, {"i": np.array([1, 3])}) == 0.5
