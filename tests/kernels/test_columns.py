"""Col2Im and MaxUnpool against the reference evaluator."""

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import assert_close
from tests.kernels.single_node import node_group, reference, run_node, run_text


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
@pytest.mark.parametrize(
    ("image", "block", "strides", "pads", "dilations"),
    [
        ((7,), (3,), (2,), (1, 0), (1,)),
        ((9, 8), (3, 2), (2, 3), (1, 2, 0, 1), (2, 1)),
        ((5, 6), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
        ((4, 5, 6), (2, 2, 3), (1, 2, 1), (0, 1, 1, 0, 1, 1), (1, 1, 2)),
        ((12,), (4,), (4,), (0, 0), (1,)),
        ((6, 20), (3, 2), (3, 2), (0, 0, 0, 0), (1, 1)),
        ((4, 6, 6), (2, 1, 3), (2, 1, 3), (0, 0, 0, 0, 0, 0), (1, 1, 1)),
    ],
)
def test_windows_are_summed_up(
    compiler: Compiler,
    image: tuple[int, ...],
    block: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    dtype: type,
) -> None:
    rank = len(image)
    windows = [
        (n + pads[a] + pads[a + rank] - (block[a] - 1) * dilations[a] - 1) // strides[a] + 1
        for a, n in enumerate(image)
    ]
    shape = (2, 3 * int(np.prod(block)), int(np.prod(windows)))
    x = (10 * np.random.default_rng(1).standard_normal(shape)).astype(dtype)
    constants = {"image": np.array(image, np.int64), "block": np.array(block, np.int64)}
    body = f"Col2Im <strides = {list(strides)}, pads = {list(pads)}, dilations = {list(dilations)}> (x, image, block)"
    (found,) = run_text(compiler, "col2im.windows", body, {"x": x}, constants, threads=2)
    assert_close(found, reference(body, {"x": x, **constants})[0], 1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 9, 7)])
def test_maxima_return_to_their_places(compiler: Compiler, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(2)
    inputs = {
        "x": random.standard_normal((2, 3, 4, 3)).astype(np.float32),
        "places": random.choice(2 * 3 * 8 * 6, (2, 3, 4, 3), replace=False),
        "shape": np.array(shape),
    }
    like = np.zeros(shape, np.float32)
    group = node_group(
        "MaxUnpool", inputs, {"y": like}, constants=("shape",), opset=22, kernel_shape=[2, 2], strides=[2, 2]
    )
    (found,) = run_node(compiler, "max_unpool.places", group, inputs, threads=2)
    body = "MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, places, shape)"
    np.testing.assert_array_equal(found, reference(body, inputs, opset=22)[0])


def test_a_place_outside_is_dropped(compiler: Compiler) -> None:
    inputs = {"x": np.ones((1, 1, 1, 2), np.float32), "places": np.array([[[[-1, 8]]]])}
    like = np.zeros((1, 1, 2, 4), np.float32)
    group = node_group("MaxUnpool", inputs, {"y": like}, opset=22, kernel_shape=[2, 2], strides=[2, 2])
    (found,) = run_node(compiler, "max_unpool.places", group, inputs)
    assert not found.any()
