"""Which tile a product gets, and how many blocks share its reduction; which rows apply, and why not."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.backends.cuda import dispatch
from app.engine.core.registry import PlanningContext, load
from app.engine.types.target import find
from app.kernels.cuda.tiles import SIMT_TILES, TENSOR_TILES, WARPGROUP_TILES
from tests.engine.runtime.cuda.bench import context
from tests.engine.runtime.cuda.test_inplace import ROWS, Case, f, grouped

SIZES = st.integers(1, 4096)


TARGET = find("cuda-sm90")
TILES = {**WARPGROUP_TILES, **TENSOR_TILES}


@given(SIZES, SIZES, SIZES, st.integers(1, 8), st.sampled_from([1, 108, 132]))
def test_a_cut_covers_the_product_and_no_block_is_idle(m: int, n: int, k: int, batch: int, sms: int) -> None:
    for precision, tiles in (("bf16", TILES), ("f32", SIMT_TILES)):
        found = dispatch.cut(precision, tiles, m, n, k, batch, dataclasses.replace(TARGET, cores=sms))
        covering = dispatch.tiles_of(tiles[found.tile], m, n) * batch
        assert found.blocks == covering * found.splits
        assert 1 <= found.splits <= max(k // dispatch.SHORTEST, 1)
        # Every share has work, so none writes what nobody computed.
        assert (found.splits - 1) * -(-k // found.splits) < k
        # A reduction is shared only where tiles leave processors without work.
        assert found.splits == 1 or covering < sms


@pytest.mark.parametrize(
    ("m", "n", "k", "tiles", "shares"),
    [
        (8192, 8192, 8192, "128x256wg", False),
        (4096, 4096, 4096, "128x256wg", False),
        (2048, 2048, 2048, "128x256wg", False),
        (1024, 1024, 1024, "64x128wg", False),
        # Layers of ResNet-50 at batch 64: three by three at 28, 14 and 7, one by one at 14 and 7.
        (50176, 128, 1152, "128x128wg", False),
        (12544, 256, 2304, "128x256wg", False),
        (3136, 512, 4608, "64x256wg 64x128wg", False),
        (12544, 256, 1024, "128x256wg", False),
        (3136, 2048, 512, "128x256wg 128x128wg 64x256wg 64x128wg", False),
        # At batch 1: pixels are few, and reductions shared where they are long.
        (196, 256, 2304, "32x64 64x64wg 64x128wg", True),
        (49, 512, 4608, "32x64 64x64 64x64wg 64x128wg", True),
        (784, 128, 1152, "32x64 64x64wg", False),
        (784, 512, 128, "64x64wg 64x64", False),
    ],
)
def test_what_is_chosen_was_among_the_fastest(m: int, n: int, k: int, tiles: str, shares: bool) -> None:
    """On an H200, bf16: of all tiles those that took at most a fifth longer than the fastest."""
    found = dispatch.cut("bf16", TILES, m, n, k, 1, TARGET)
    assert found.tile in tiles.split()
    assert (found.splits > 1) == shares


def test_a_launch_that_costs_nothing_is_worth_any_share() -> None:
    ways = [
        dispatch.cut("bf16", TENSOR_TILES, 20, 68, 130, 1, dataclasses.replace(TARGET, launch=launch))
        for launch in (TARGET.launch, 0.0)
    ]
    assert [way.splits for way in ways] == [1, 2]


REASONS = [
    (
        "cuda.matmul_bf16",
        "y = MatMul(x, w)",
        {"w": f(8, 8)},
        "elements are float32; this one multiplies bf16",
    ),
    ("cuda.matmul_tf32", "y = MatMul(x, w)", {"w": f(8, 8)}, "the job computes in f32"),
    ("cuda.matmul_of_few_rows", "y = MatMul(x, w)", {"w": f(8, 8)}, "9 rows, at most 8"),
    (
        "cuda.matmul_f32",
        "h = MatMul(x, w) y = Round(h)",
        {"w": f(8, 8)},
        "no activation that contractions know",
    ),
]


@pytest.mark.parametrize(("row", "text", "weights", "reason"), REASONS)
def test_a_row_that_does_not_apply_says_why(row: str, text: str, weights: dict, reason: str) -> None:
    case = Case((row,), text, "float[9,8] x", "float[9,8] y", weights)
    told = ROWS[row].rejection(grouped(case), context())
    assert told is not None
    assert reason in told


def test_exactness_can_be_asked_for() -> None:
    case = Case((), "y = MatMul(x, w)", "float[9,8] x", "float[9,8] y", {"w": f(8, 8)})
    exact = dataclasses.replace(context(), fast_algorithms=False)
    assert ROWS["cuda.matmul_3xtf32"].rejection(grouped(case), context()) is None
    assert "fast_algorithms is off" in (ROWS["cuda.matmul_3xtf32"].rejection(grouped(case), exact) or "")


def test_a_smaller_device_is_predicted_to_take_longer() -> None:
    case = Case((), "y = MatMul(x, w)", "float[2048,1024] x", "float[2048,1024] y", {"w": f(1024, 1024)})
    whole = PlanningContext(find("cuda-sm90"))
    half = PlanningContext(dataclasses.replace(whole.target, cores=66))
    row = ROWS["cuda.matmul_f32"]
    assert row.cost(grouped(case), half) > 1.5 * row.cost(grouped(case), whole)


def test_every_row_has_a_cost() -> None:
    rows = [r for rows in load().implementations.values() for r in rows if r.backend == "cuda"]
    assert all(r.cost.__name__ != "unknown_cost" or r.views.__name__ != "no_views" for r in rows)


def test_tiles_that_spill_are_not_offered() -> None:
    """What is offered is compiled in `tests/kernels/cuda/test_compiler.py`."""
    assert "128x128w4" not in dispatch.offered("3xtf32", 64)
    assert set(dispatch.offered("3xtf32", 63)) == {"64x64", "32x64"}
    assert "128x256" in dispatch.offered("tf32", 64)
    assert "128x256" not in dispatch.offered("tf32", 63)
    assert list(dispatch.offered("bf16", 63)) == list(TENSOR_TILES)


def test_every_tile_that_is_offered_has_a_speed() -> None:
    for precision in dispatch.PRECISIONS:
        for depth in (63, 64):
            assert set(dispatch.offered(precision, depth, TARGET.isa)) <= set(dispatch.SPEEDS[precision])


def test_only_sm_90_multiplies_by_warpgroups() -> None:
    assert set(dispatch.offered("bf16", 64, ("sm_90",))) == set(TILES)
    for isa, precision in (((), "bf16"), (("sm_80",), "fp16"), (("sm_100",), "bf16"), (("sm_90",), "tf32")):
        assert not set(dispatch.offered(precision, 64, isa)) & set(WARPGROUP_TILES)
