"""A long short-term memory against NumPy, in the simulator: units in turns, 16 bits, sequences that end."""

import numpy as np
import pytest

from app.kernels.cuda import recurrent as kernels
from app.kernels.cuda.kernel import KernelError
from app.kernels.cuda.recurrent import Recurrent, packed_weights, recurrent
from tests.kernels.cuda.values import close, encoded, normal, poisoned, run

pytestmark = pytest.mark.simulated

STEPS, BATCH, H = 3, 2, 40
LENGTHS = (3, 1)


def _layer(dtype, **more):
    return Recurrent(
        "LSTM", STEPS, BATCH, H, 1, (BATCH, 1), (BATCH * H, BATCH * H, H), (BATCH * H, H), dtype,
        lengths=True, wants=("y", "y_h", "y_c"), **more,
    )  # fmt: skip


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _lstm(gates, r):
    """[steps, batch, H] of gates i, o, f, c [steps, batch, 4 H] and r[4 H, H]; zeros behind a sequence's end."""
    y, last, cells = np.zeros((STEPS, BATCH, H)), np.zeros((BATCH, H)), np.zeros((BATCH, H))
    for b in range(BATCH):
        h, c = np.zeros(H), np.zeros(H)
        for t in range(LENGTHS[b]):
            i, o, f, new = np.split(gates[t, b] + r @ h, 4)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(new)
            h = y[t, b] = _sigmoid(o) * np.tanh(c)
        last[b], cells[b] = h, c
    return y, last, cells


@pytest.mark.parametrize(("dtype", "threads"), [("float32", 32), ("bfloat16", 256), ("float16", 1024)])
def test_units_are_computed_in_turns_or_by_several_threads(dtype, threads, monkeypatch):
    monkeypatch.setattr(kernels, "MOST_THREADS", threads)
    layer = _layer(dtype)
    assert (layer.lanes < H) == (threads < H)
    gates = np.random.default_rng(0).standard_normal((STEPS, BATCH, 4 * H)).astype(np.float32)
    bits, r = normal(1, (1, 4 * H, H), dtype)
    found = {"y": poisoned((STEPS, BATCH, H), dtype)}
    found |= {role: poisoned((BATCH, H), dtype) for role in ("y_h", "y_c")}
    given = {"gates": gates, "w": packed_weights(bits, 4), "lengths": np.array(LENGTHS, np.int32)}
    run(recurrent(layer), seed=1, **given, **found)
    for array, expected in zip(found.values(), _lstm(gates.astype(np.float64), r[0]), strict=True):
        close(array, expected, dtype, 16)
    np.testing.assert_array_equal(found["y"][1:, 1], encoded(np.zeros((2, H)), dtype))


def test_a_state_that_shared_memory_does_not_hold_is_refused():
    layer = Recurrent("RNN", 1, 1, 20000, 1, (1, 1), (1, 1, 1), (1, 1))
    with pytest.raises(KernelError, match="20000 elements needs 324096 byte of shared memory"):
        recurrent(layer)
