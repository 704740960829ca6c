"""Special functions, matrices, images and the NumPy interface of symbols against NumPy.

`make test-mxnet` compares them with MXNet itself (`tests/mxnet/operator_cases.py`).
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.model.load import load
from app.engine.model.mxnet.aliases import ALIASES
from app.engine.model.mxnet.operators import ROWS
from app.engine.model.mxnet.operators.refused import REFUSED
from app.engine.model.shape_inference.mxnet_rules import RULES
from app.engine.types.errors import UnknownOperatorError
from tests.engine.model.mxnet.test_operators import one
from tests.engine.model.mxnet.writing import Symbols, run
from tests.harness import assert_close

Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(7)
X = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
AWAY = (RANDOM.integers(-4, 5, (3, 40)) + 0.1 + 0.8 * RANDOM.random((3, 40))).astype(np.float32)
HOLES = np.where(RANDOM.random((3, 4, 5)) < 0.3, np.nan, RANDOM.random((3, 4, 5))).astype(np.float32)
SQUARE = (RANDOM.random((2, 4, 4)) + 0.1).astype(np.float32)

# (operator, operands, attributes, the same in NumPy)
CASES: list[tuple[str, tuple[Array, ...], dict[str, Any], Callable[..., Array]]] = [
    ("gammaln", (AWAY,), {}, np.vectorize(lambda x: math.lgamma(x))),
    ("gamma", (AWAY,), {}, np.vectorize(lambda x: math.gamma(x))),
    ("nansum", (HOLES,), {"axis": "(0, 2)"}, lambda x: np.nansum(x, (0, 2))),
    ("nanprod", (HOLES,), {}, lambda x: np.nanprod(x).reshape(1)),
    ("all_finite", (HOLES,), {}, lambda _: np.zeros(1, "f4")),
    ("all_finite", (X,), {}, lambda _: np.ones(1, "f4")),
    ("_linalg_trmm", (SQUARE, SQUARE), {"transpose": "True"}, lambda a, b: np.tril(a).swapaxes(1, 2) @ b),
    ("_linalg_syrk", (SQUARE,), {"alpha": "2"}, lambda a: 2 * a @ a.swapaxes(1, 2)),
    ("_linalg_extractdiag", (SQUARE,), {"offset": "-1"}, lambda a: np.diagonal(a, -1, 1, 2)),
    ("_linalg_sumlogdiag", (SQUARE,), {}, lambda a: np.log(np.diagonal(a, 0, 1, 2)).sum(-1)),
    ("diag", (X[0, 0],), {"k": "2"}, lambda x: np.diag(x, 2)),
    ("khatri_rao", (X[0], X[1]), {}, lambda a, b: np.vstack([np.kron(*c) for c in zip(a.T, b.T)]).T),
    ("_image_to_tensor", (X,), {}, lambda x: x.transpose(2, 0, 1) / 255),
    ("_slice_assign", (X[0], X[1, :2, :2]), {"begin": "(1, 0)", "end": "(3, 4)", "step": "(1, 2)"},
     lambda a, b: np.concatenate([a[:1], np.stack([b[:, 0], a[1:, 1], b[:, 1], a[1:, 3]], 1)])),
    ("_npi_true_divide", (X, X[0]), {}, lambda a, b: a / b),
    ("_npi_arctan2", (X, X[::-1].copy()), {}, np.arctan2),
    ("_npi_copysign", (X, X[::-1].copy()), {}, np.copysign),
    ("_npi_rsubtract_scalar", (X,), {"scalar": "2"}, lambda x: 2 - x),
    ("_npi_around", (X,), {"decimals": "1"}, lambda x: np.around(x, 1)),
    ("_npi_greater", (X, X[0]), {}, np.greater),
    ("_npi_var", (X,), {"axis": "1", "ddof": "1"}, lambda x: x.var(1, ddof=1)),
    ("_npi_argmax", (X,), {"axis": "2"}, lambda x: x.argmax(2)),
    ("_np_moveaxis", (X,), {"source": "(0, 1)", "destination": "(2, 0)"},
     lambda x: np.moveaxis(x, (0, 1), (2, 0))),
    ("_np_roll", (X,), {"shift": "(-1,)", "axis": "(2,)"}, lambda x: np.roll(x, -1, 2)),
    ("_npi_tensordot", (X, X), {"a_axes_summed": "(0, 2)", "b_axes_summed": "(0, 2)"},
     lambda a, b: np.tensordot(a, b, ((0, 2), (0, 2)))),
    ("_npi_pad", (X[0],), {"pad_width": "((1, 0), (0, 2))"}, lambda x: np.pad(x, ((1, 0), (0, 2)))),
    ("_npi_diff", (X,), {"n": "2", "axis": "2"}, lambda x: np.diff(x, 2, 2)),
    ("_np_trace", (X[0],), {"offset": "1"}, lambda x: np.trace(x, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "expected"), CASES, ids=[f"{r[0]}-{i}" for i, r in enumerate(CASES)]
)
def test_an_operator_is_that_of_numpy(
    op: str,
    arrays: tuple[Array, ...],
    attributes: dict[str, Any],
    expected: Callable[..., Array],
    tmp_path: Path,
) -> None:
    (found,) = one(tmp_path, op, *arrays, **attributes)
    wanted = np.asarray(expected(*(a.astype(np.float64) for a in arrays)))
    assert found.shape == wanted.shape
    assert_close(found.astype(np.float64), wanted.astype(np.float64), 2e-5)


def test_a_projected_lstm(tmp_path: Path) -> None:
    time, batch, width, hidden, size = 4, 2, 3, 5, 2
    shapes = ((4 * hidden, width), (4 * hidden, size), (size, hidden), (4 * hidden,), (4 * hidden,))
    weights = [RANDOM.standard_normal(shape).astype(np.float32) for shape in shapes]
    x = RANDOM.standard_normal((time, batch, width)).astype(np.float32)
    h, c = (RANDOM.standard_normal((1, batch, n)).astype(np.float32) for n in (size, hidden))
    s = Symbols()
    operands = [
        s.var("x", shape=str(x.shape)),
        s.var("p"),
        s.var("h", shape=str(h.shape)),
        s.var("c", shape=str(c.shape)),
    ]
    layer = s.add(
        "RNN", "rnn", *operands, mode="lstm", state_size=hidden, num_layers=1, projection_size=size,
        state_outputs="True",
    )  # fmt: skip
    flat = np.concatenate([w.reshape(-1) for w in weights])
    heads = [(layer, i) for i in range(3)]
    found = run(tmp_path, s, {"x": x, "h": h, "c": c}, *heads, p=flat)
    state, cell, every = h[0].astype(np.float64), c[0].astype(np.float64), []
    for step in x.astype(np.float64):
        gates = step @ weights[0].T + state @ weights[1].T + weights[3] + weights[4]
        i, f, g, o = np.split(gates, 4, axis=1)
        cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        state = (np.tanh(cell) / (1 + np.exp(-o))) @ weights[2].T
        every.append(state)
    for value, wanted in zip(found, (np.stack(every), state[None], cell[None])):
        assert_close(value.astype(np.float64), wanted, 1e-5)


def test_another_name_of_an_operator_is_read(tmp_path: Path) -> None:
    (found,) = one(tmp_path, "_npx_log_softmax", X)
    (expected,) = one(tmp_path, "log_softmax", X)
    np.testing.assert_array_equal(found, expected)


def test_an_operator_has_one_meaning_or_one_reason() -> None:
    assert not ROWS.keys() & ALIASES.keys()
    assert not (ROWS.keys() | RULES.keys()) & REFUSED.keys()
    assert not ROWS.keys() & RULES.keys()
    assert {op for op in ALIASES.values() if op not in ROWS and op not in RULES} <= REFUSED.keys()


def test_the_reason_of_a_refused_operator_is_told(tmp_path: Path) -> None:
    s = Symbols()
    s.add("_npi_unique", "u", s.var("x", shape="(3,)"))
    with pytest.raises(UnknownOperatorError, match=r"_npi_unique \(node 'u'\); .*depends on the data"):
        load(s.save(tmp_path))
