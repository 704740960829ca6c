"""BatchNormalization in training mode on own kernels, against float64."""

from pathlib import Path

import numpy as np
import pytest

from app.kernels.cpu.runtime.compiler import Compiler
from tests.session import on_own_kernels


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (6, 3), (1, 3, 50)])
@pytest.mark.parametrize(
    ("kind", "dtype", "bound"), [("float", np.float32, 1e-5), ("double", np.float64, 1e-12)]
)
def test_statistics_of_the_batch_normalize_and_are_averaged(
    compiler: Compiler, tmp_path: Path, shape: tuple[int, ...], kind: str, dtype: type, bound: float
) -> None:
    random = np.random.default_rng(8)
    x = (random.standard_normal(shape) * 3 + 5).astype(dtype)
    s, b, m, v = (random.uniform(0.5, 2, 3).astype(dtype) for _ in range(4))
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({kind}[{",".join(map(str, shape))}] x, {kind}[3] s, {kind}[3] b, {kind}[3] m, {kind}[3] v)
        => ({kind} y, {kind} mean, {kind} variance) {{
        y, mean, variance = BatchNormalization <training_mode = 1, momentum = 0.75, epsilon = 0.0078125> (x, s, b, m, v) }}"""
    session = on_own_kernels(compiler, tmp_path, text)
    found = session.run({"x": x, "s": s, "b": b, "m": m, "v": v})
    session.close()
    axes = tuple(a for a in range(len(shape)) if a != 1)
    wide = x.astype(np.float64)
    mean, variance = wide.mean(axes), wide.var(axes)
    along = (3, *(1,) * (len(shape) - 2))
    y = (wide - mean.reshape(along)) / np.sqrt(variance.reshape(along) + 0.0078125) * s.reshape(
        along
    ) + b.reshape(along)
    for name, expected in (
        ("y", y),
        ("mean", 0.75 * m + 0.25 * mean),
        ("variance", 0.75 * v + 0.25 * variance),
    ):
        np.testing.assert_allclose(found[name], expected, rtol=bound, atol=bound)
