"""Which tile a product gets, and how many blocks share its reduction; which rows apply, and why not."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.backends.cuda import dispatch
from app.engine.core.registry import PlanningContext, load
from app.engine.types.target import find
from app.kernels.cuda.tiles import SIMT_TILES, TENSOR_TILES
from tests.engine.runtime.cuda.bench import context
from tests.engine.runtime.cuda.test_inplace import ROWS, Case, f, grouped

SIZES = st.integers(1, 4096)


@given(SIZES, SIZES, SIZES, st.integers(1, 8), st.sampled_from([1, 108, 132]))
def test_a_cut_covers_the_product_and_no_block_is_idle(m: int, n: int, k: int, batch: int, sms: int) -> None:
    for tiles in (TENSOR_TILES, SIMT_TILES):
        found = dispatch.cut(tiles, m, n, k, batch, sms)
        covering = dispatch.tiles_of(tiles[found.tile], m, n) * batch
        assert found.blocks == covering * found.splits
        assert 1 <= found.splits <= max(k // dispatch.SHORTEST, 1)
        # Every share has work, so none writes what nobody computed.
        assert (found.splits - 1) * -(-k // found.splits) < k
        # A reduction is shared only where tiles leave processors without work.
        assert found.splits == 1 or covering < sms


@pytest.mark.parametrize(
    ("m", "n", "k", "tile", "shares"),
    [
        (4096, 4096, 4096, "128x256", False),
        (3136, 256, 64, "64x64", False),  # the first bottlenecks of ResNet-50
        (49, 512, 4608, "", True),  # its last windows of three by three: few tiles, long reductions
        (16, 4096, 4096, "", True),
    ],
)
def test_large_products_get_large_tiles_and_small_ones_share(
    m: int, n: int, k: int, tile: str, shares: bool
) -> None:
    found = dispatch.cut(TENSOR_TILES, m, n, k, 1, 132)
    assert (found.splits > 1) == shares
    assert not tile or found.tile == tile
    assert not shares or found.blocks >= 66


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
    assert list(dispatch.offered("bf16", 63)) == list(dispatch.TENSOR_TILES)
