"""Blocks that threads share, beside every unit counted one by one."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from app.engine.backends.cpu import blocking, matmul, nhwc_conv
from app.engine.core.registry import PlanningContext, load
from app.engine.operators import conv_geometry
from app.engine.types.target import host
from tests import harness

REGISTRY = load()
PRODUCTS = [(16, 256), (32, 1024), (49, 64), (197, 320), (300, 48), (25, 7)]
CONVOLUTIONS = [(1, 40, 7, 232), (1, 16, 14, 48), (2, 24, 5, 20), (1, 96, 1, 200)]


def context(threads: int, lanes: int) -> PlanningContext:
    return PlanningContext(replace(host(), vector_lanes=lanes), threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_busiest_thread_is_that_of_the_driver(threads: int) -> None:
    units = np.random.default_rng(0).integers(1, 9, 7).astype(float)
    edges = [len(units) * share // threads for share in range(threads + 1)]
    shares = [sum(units[i] for i in range(a, b)) for a, b in itertools.pairwise(edges)]
    assert blocking.busiest(units, threads) == max(shares)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_threads_share_a_product_about_evenly(size: tuple[int, int], lanes: int) -> None:
    rows, columns = size
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[{rows},64] a, float[64,{columns}] b) => (float[{rows},{columns}] y) {{ y = MatMul(a, b) }}'
    model = harness.model_of(text, {"b": np.ones((64, columns), np.float32)})
    product = matmul.product_of(harness.group_of(model, REGISTRY))
    cut = matmul.tiling(product, "float32", context(2, lanes), packed=True)
    units = [
        (i, j, min(i + cut.m, rows) - i, min(j + cut.n, columns) - j)
        for i in range(0, rows, cut.m)
        for j in range(0, columns, cut.n)
    ]
    units.sort(key=lambda u: u if cut.by_rows else (u[1], u[0]))
    shares = [
        sum(h * w for _, _, h, w in part) for part in (units[: len(units) // 2], units[len(units) // 2 :])
    ]
    tile = (
        cut.rows * cut.width
    )  # what a thread may have more than another: a tile of each row, or each column
    assert abs(shares[0] - shares[1]) <= max(tile, cut.rows * columns, cut.width * rows)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_units_of_a_convolution_with_channels_last_are_those_of_its_cut(
    case: tuple[int, int, int, int], threads: int
) -> None:
    batch, channels, size, outputs = case
    shape = f"{batch},{channels},{size},{size}"
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[{shape}] x, float[{outputs},{channels},1,1] w) => (float[{batch},{outputs},{size},{size}] y) {{ y = Conv(x, w) }}'
    model = harness.model_of(text, {"w": np.ones((outputs, channels, 1, 1), np.float32)})
    group = harness.group_of(model, REGISTRY)
    call = harness.implementation("conv.last", REGISTRY).lower(group, context(threads, 16))[0]
    window = conv_geometry.of_conv(group)
    cut = nhwc_conv.cut_of(group, context(threads, 16))
    assert call.units == len(nhwc_conv.units_of(cut, window, context(threads, 16)))
    assert call.units >= threads
