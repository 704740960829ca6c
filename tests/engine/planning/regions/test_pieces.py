"""Plans of a region by made-up times: which is chosen, where the region is split, and that it stays so."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.memory.region_peak import peak_at
from app.engine.model.load import load
from app.engine.planning.regions.entry import region_of_model
from app.engine.planning.regions.memory import memory_formulas
from app.engine.planning.regions.pieces import LOSS, MOST, RegionPlan
from app.engine.types.errors import CapacityError, RegionError
from app.engine.types.options import Bindings, Options
from app.engine.types.regions.region import Piece, Point, WeightedPoint, bound, piece_json, piece_of
from app.engine.types.target import PRESETS
from tests.engine.planning.regions.networks import images
from tests.harness import OWN

Line = tuple[float, float]  # microseconds of a kernel: at no rows, and for each row of an image
AVX2 = next(t for t in PRESETS if t.name == "cpu-avx2")
NEGLIGIBLE = 1e-12  # seconds of everything that is no convolution
TEXT = """<ir_version: 10, opset_import: ["": 21]>
net (float[1, 16, H, 16] x, float[16, 16, 3, 3] w) => (float[1, 16, H, 16] y) {
    y = Conv <pads = [1, 1, 1, 1]> (x, w)
}"""


class Times(dict[str, float]):
    """Times of the rows of convolutions by a name and of all others, linear in the rows of an image."""

    def __init__(self, named: Line, other: Line, name: str = "implicit_gemm") -> None:
        super().__init__()
        self.lines = named, other
        self.name = name

    def __bool__(self) -> bool:
        return True

    def get(self, key: str, _default: object = None) -> float:
        if '"Conv"' not in key:
            return NEGLIGIBLE
        found = re.search(r"float32\[1, 16, (\d+), 16\]", key)
        assert found is not None, key
        start, slope = self.lines[self.name not in key.split(" ")[0]]
        return (start + slope * int(found[1])) * 1e-6

    def best(self, rows: int) -> float:
        """Least seconds at a height."""
        return min(start + slope * rows for start, slope in self.lines) * 1e-6


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    del proto.graph.input[1:]
    onnx.save(proto, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def plan_of(model: Path, times: Times, **given: tuple[Piece, ...] | tuple[WeightedPoint, ...]) -> RegionPlan:
    shapes, region = bound({"x": [1, 16, "H:4..128%4", 16]})

    def timed(compilation: Compilation) -> Compilation:
        return dataclasses.replace(compilation, timings=times)

    bindings = Bindings(shapes, region=region, **given)  # type: ignore[arg-type]
    options = Options(autotune=False, backends=OWN)
    return region_of_model(load(model), AVX2, options, bindings, load_registry(), timed)


def row_of(plan: RegionPlan, point: Point) -> str:
    """The row that computes the convolution at a point."""
    (found,) = (s.choice.implementation.name for s in plan.at(point).steps if s.group.op == "Conv")
    return found


# Equal at H=10; each loses over 100 % where the other is best. Both are of other layouts, or of the same.
CROSSING = Times((20.0, 1.0), (0.0, 3.0))
ALIKE = Times((20.0, 1.0), (0.0, 3.0), "winograd")


def test_a_region_is_split_where_one_plan_loses_too_much(model: Path) -> None:
    plan = plan_of(model, CROSSING)
    assert 2 <= len(plan.pieces) <= MOST
    assert "implicit_gemm" not in row_of(plan, {"H": 4})
    assert "implicit_gemm" in row_of(plan, {"H": 128})
    for point in plan.region.points():
        assert [p.region.contains(point) for p in plan.pieces].count(True) == 1
    for sample in plan.curve:
        height = sample.point["H"]
        named = "implicit_gemm" in row_of(plan, sample.point)
        start, slope = CROSSING.lines[not named]
        assert sample.chosen.total == pytest.approx((start + slope * height) * 1e-6)
        assert sample.own.total == pytest.approx(CROSSING.best(height))
        assert sample.chosen.measured == pytest.approx(sample.chosen.total)
    assert len(plan.pieces) == MOST or max(s.loss for s in plan.curve) <= LOSS


def test_a_row_of_the_same_layouts_stands_in_where_it_is_faster(model: Path) -> None:
    """No split: at each shape the plan has the row that was faster at the nearest one that was looked at."""
    plan = plan_of(model, ALIKE)
    (piece,) = plan.pieces
    assert piece.region == plan.region
    assert "winograd" not in row_of(plan, {"H": 4})
    assert "winograd" in row_of(plan, {"H": 128})
    for sample in plan.curve:
        assert sample.chosen.total == pytest.approx(ALIKE.best(sample.point["H"]))
        assert sample.loss == pytest.approx(1.0)
    kernels = set(piece.kernels)
    for point in plan.region.points():
        assert kernels.issuperset(plan.at(point).kernels), "all kernels are known before the first run"


@pytest.mark.parametrize(("times", "named"), [((9.0, 1.0), True), ((11.0, 9.0), False)])
def test_a_plan_that_is_best_everywhere_serves_the_whole_region(
    model: Path, times: Line, named: bool
) -> None:
    plan = plan_of(model, Times(times, (10.0, 2.0)))
    (piece,) = plan.pieces
    assert piece.region == plan.region
    assert ("implicit_gemm" in row_of(plan, {"H": 64})) == named
    assert {s.loss for s in plan.curve} == {1.0}


@pytest.mark.parametrize(("height", "named"), [(4, False), (128, True)])
def test_expected_shapes_decide_between_plans_that_lose_little(model: Path, height: int, named: bool) -> None:
    times = Times((103.0, 0.95), (100.0, 1.0))  # equal at H=60, 3 % apart at the ends
    plan = plan_of(model, times, shape_histogram=(WeightedPoint({"H": height}, 0.5),))
    (piece,) = plan.pieces
    assert ("implicit_gemm" in row_of(plan, {"H": height})) == named
    assert ("implicit_gemm" in row_of(plan, {"H": 132 - height})) == named
    assert piece.anchor["H"] in {s.point["H"] for s in plan.curve}


def test_given_pieces_are_planned_as_they_were(model: Path) -> None:
    plan = plan_of(model, CROSSING)
    table = tuple(piece_of(json.loads(json.dumps(piece_json(p)))) for p in plan.table)
    again = plan_of(model, CROSSING, pieces=table)
    assert again.table == plan.table == table
    for point in plan.region.points():
        assert row_of(again, point) == row_of(plan, point)
        assert again.at(point).arena_bytes == plan.at(point).arena_bytes
    part = table[:1]
    twice = (*table[:-1], dataclasses.replace(table[-1], symbols=table[0].symbols))
    for other in (part, twice):
        with pytest.raises(RegionError, match="not those of the region"):
            plan_of(model, CROSSING, pieces=other)


def test_the_document_of_a_split_region_has_the_peak_of_every_piece(model: Path) -> None:
    plan = plan_of(model, CROSSING)
    document = json.loads(json.dumps(memory_formulas(plan)))
    assert len(document["pieces"]) == len(plan.pieces)
    assert len(document["curve"]) == len(plan.curve)
    assert document["proof"]
    for point in plan.region.points():
        peak = peak_at(document, plan.region.shapes(point))
        placed = plan.at(point).arena_bytes
        assert (peak.nbytes == placed) if peak.exact else (peak.nbytes >= placed)
        assert placed <= document["worst_bytes"]


def test_a_budget_holds_at_every_shape_of_a_region(tmp_path: Path) -> None:
    path = images(np.random.default_rng(5), 14).save(tmp_path / "net.onnx")
    shapes, region = bound({"x": ["n:1..3", 3, "h:16..96%16", "w:16..80%16"]})
    bindings = Bindings(shapes, region=region)

    def most(**given: Any) -> int:
        options = Options(autotune=False, backends=OWN, **given)
        plan = region_of_model(load(path), AVX2, options, bindings, load_registry())
        return max(plan.at(point).arena_bytes for point in plan.region.points())

    free, least = most(), most(prefer="memory")
    assert least < free
    budget = (least + free) // 2
    assert most(memory_budget=budget) <= budget
    with pytest.raises(CapacityError):
        most(memory_budget=least // 2)
