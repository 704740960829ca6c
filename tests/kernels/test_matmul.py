"""Matrix products against NumPy in double precision."""

import numpy as np
import pytest

from app.engine.registry import load
from app.kernels.cpu.compiler import Compiler
from tests import harness

REGISTRY = load()
SHAPES = [
    ((1,), (1,)),
    ((7,), (7, 5)),
    ((6, 9), (9,)),
    ((1, 64), (64, 1000)),
    ((6, 16), (16, 16)),
    ((13, 31), (31, 50)),
    ((200, 17), (17, 33)),
    ((5, 900), (900, 70)),
    ((2, 3, 7, 11), (11, 19)),
    ((4, 9, 8), (4, 8, 17)),
    ((2, 1, 9, 8), (1, 3, 8, 17)),
    ((9, 8), (3, 8, 5)),
    ((3, 0, 4), (4, 5)),
    ((3, 0), (0, 5)),
]
NAMES = {"float32": "float", "float64": "double"}


def _declaration(dtype: str, name: str, shape: tuple[int, ...]) -> str:
    return f"{NAMES.get(dtype, dtype)}[{','.join(map(str, shape))}] {name}"


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 50, shape).astype(dtype)


@pytest.mark.parametrize("constant", ["none", "a", "b"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul_equals_numpy(compiler: Compiler, shapes: tuple, constant: str) -> None:
    rng = np.random.default_rng(0)
    dtype = "float32"
    a, b = (_random(rng, dtype, s) for s in shapes)
    expected = np.asarray(a.astype(np.float64) @ b.astype(np.float64))
    inputs = ", ".join(_declaration(dtype, n, x.shape) for n, x in (("a", a), ("b", b)))
    output = _declaration(dtype, "y", expected.shape)
    fixed = {constant: {"a": a, "b": b}[constant]} if constant != "none" else {}
    model = harness.model_of(
        f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({output}) {{ y = MatMul(a, b) }}', fixed
    )
    group = harness.group_of(model, REGISTRY)
    for threads in (1, 2):
        (found,) = harness.run_group(
            harness.implementation("matmul.blocked", REGISTRY),
            group,
            {"a": a, "b": b},
            compiler,
            threads=threads,
        )
        harness.assert_close(found, expected.astype(dtype))
