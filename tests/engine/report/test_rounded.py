"""The comparison of models that round to 8 bits (`tests.mxnet.rounded`) tells a wrong rounding from one at a half."""

import numpy as np
import onnx
import onnx.parser
import pytest

from tests.mxnet import rounded

TEXT = """
<ir_version: 10, opset_import: ["": 21]>
g (float[8] x) => (float[8] y) <float s = {0.5}, uint8 z = {3}> {
    a = Mul(x, x)
    q = QuantizeLinear(a, s, z)
    d = DequantizeLinear(q, s, z)
    y = Exp(d)
}
"""
# a = x * x; a / s is 0.5 (to even: 0), 2, 4.5 (4), 8, 12.5 (12), 18, 24.5 (24), 32
X = np.arange(1, 9, dtype=np.float32) / 2
STEPS = np.array([0, 2, 4, 8, 12, 18, 24, 32], np.uint8) + 3


def compared(steps: np.ndarray) -> rounded.Rounded:
    return rounded.compared(onnx.parser.parse_model(TEXT), {"x": X}, {"q": steps})


def test_equal_roundings_give_the_outputs() -> None:
    found = compared(STEPS)
    assert (found.count, found.next_step, found.farthest) == (8, 0, 0.0)
    np.testing.assert_allclose(found.outputs[0], np.exp((STEPS - 3.0) * 0.5), rtol=1e-6)


def test_the_next_step_of_a_half_is_counted_and_the_outputs_follow_from_it() -> None:
    steps = STEPS + np.array([1, 0, 0, 0, 0, 0, 0, 0], np.uint8)
    found = compared(steps)
    assert (found.next_step, found.farthest) == (1, 0.0)
    assert found.outputs[0][0] == pytest.approx(np.exp(0.5))


def test_the_next_step_of_another_number_is_as_far_off_as_it_is() -> None:
    steps = STEPS + np.array([0, 1, 0, 0, 0, 0, 0, 0], np.uint8)
    assert compared(steps).farthest == pytest.approx(0.5 * 0.5 / 16)


def test_two_steps_are_none_that_rounding_makes() -> None:
    steps = STEPS + np.array([2, 0, 0, 0, 0, 0, 0, 0], np.uint8)
    assert compared(steps).farthest == np.inf
