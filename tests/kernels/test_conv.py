"""Convolutions against a direct sum in double precision."""

import itertools
from typing import Any

import numpy as np
import pytest

from app.engine.registry import load
from app.kernels.cpu.compiler import Compiler
from tests import harness

REGISTRY = load()
Array = np.ndarray[Any, Any]


def convolve(x: Array, w: Array, strides: tuple, pads: tuple, dilations: tuple, groups: int) -> Array:
    """The definition: a loop over taps, in float64."""
    rank = x.ndim - 2
    wide = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    out = [
        (i - (k - 1) * d - 1) // s + 1 for i, k, d, s in zip(wide.shape[2:], w.shape[2:], dilations, strides)
    ]
    filters = w.shape[0] // groups
    y = np.zeros((x.shape[0], groups, filters, *out))
    xs = wide.reshape(x.shape[0], groups, w.shape[1], *wide.shape[2:])
    ws = w.astype(np.float64).reshape(groups, filters, w.shape[1], *w.shape[2:])
    for tap in itertools.product(*(range(k) for k in w.shape[2:])):
        part = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in zip(tap, dilations, out, strides)
        )
        y += np.einsum("ngc...,gfc->ngf...", xs[(..., *part)], ws[(..., *tap)])
    return y.reshape(x.shape[0], w.shape[0], *out)


CASES = [
    # x, w, strides, pads, dilations, groups
    ((1, 5, 9), (7, 5, 3), (1,), (1, 1), (1,), 1),
    ((2, 6, 31), (4, 3, 4), (3,), (2, 0), (2,), 2),
    ((1, 3, 30, 29), (10, 3, 7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    ((1, 16, 14, 14), (16, 16, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((2, 33, 7, 7), (65, 33, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    ((1, 20, 28, 28), (31, 20, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 20, 15, 13), (31, 20, 1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    ((1, 512, 7, 7), (40, 512, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((1, 60, 10, 11), (70, 60, 3, 3), (2, 1), (1, 0, 2, 3), (1, 1), 1),
    ((1, 12, 17, 19), (18, 4, 3, 3), (1, 1), (2, 2, 2, 2), (2, 3), 3),
    ((1, 4, 6, 40), (9, 4, 1, 5), (1, 2), (0, 4, 0, 4), (1, 2), 1),
    ((1, 2, 3, 3), (3, 2, 3, 3), (1, 1), (4, 4, 4, 4), (1, 1), 1),
    ((1, 3, 5, 6, 7), (4, 3, 3, 2, 3), (1, 2, 1), (1, 0, 1, 1, 0, 1), (1, 1, 2), 1),
    ((1, 8, 12, 12), (8, 8, 3, 3), (3, 3), (1, 1, 1, 1), (1, 1), 1),
    ((0, 3, 5, 5), (4, 3, 3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1),
]


def declaration(name: str, shape: tuple[int, ...], dtype: str = "float") -> str:
    return f"{dtype}[{','.join(map(str, shape))}] {name}"


def attributes(case: tuple) -> str:
    _, w, strides, pads, dilations, groups = case
    rows = {"kernel_shape": w[2:], "strides": strides, "pads": pads, "dilations": dilations}
    return ", ".join(f"{k} = [{', '.join(map(str, v))}]" for k, v in rows.items()) + f", group = {groups}"


def close(found: Array, expected: Array, depth: int) -> None:
    harness.assert_close(found, expected.astype(found.dtype), 1e-6 * max(depth, 16) ** 0.5)


DEPTHWISE = [
    ((1, 5, 14, 14), (5, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5),
    ((2, 3, 7, 7), (3, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
    ((1, 3, 30, 29), (6, 1, 5, 3), (2, 2), (2, 1, 2, 0), (1, 1), 3),
    ((1, 2, 61, 70), (2, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((1, 2, 20, 17), (2, 1, 3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 2),
    ((1, 2, 9, 40), (4, 1, 2, 4), (3, 3), (0, 1, 2, 3), (2, 1), 2),
    ((2, 4, 50), (4, 1, 5), (2,), (2, 1), (1,), 4),
    ((1, 2, 1, 3), (2, 1, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 2),
    ((1, 2, 3, 2), (2, 1, 3, 3), (2, 2), (1, 5, 1, 5), (1, 1), 2),
]


def run(
    compiler: Compiler, name: str, node: str, values: dict[str, Array], shape: tuple, **options: Any
) -> Array:
    """The output of one node; every operand but x is constant, unless `options` say otherwise."""
    fixed = options.pop("constants", [n for n in values if n != "x"])
    declared = ", ".join(declaration(n, v.shape, options.get("dtype", "float")) for n, v in values.items())
    options.pop("dtype", None)
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g ({declared}) => ({declaration("y", shape)}) {{ {node} }}"""
    model = harness.model_of(text, {n: values[n] for n in fixed})
    (found,) = harness.run_group(
        harness.implementation(name, REGISTRY),
        harness.group_of(model, REGISTRY),
        {n: v for n, v in values.items() if n not in fixed},
        compiler,
        **options,
    )
    return found


def operands(case: tuple) -> tuple[dict[str, Array], Array]:
    """Random x, weights and bias, and the output by definition."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in case[:2])
    b = rng.standard_normal(w.shape[0]).astype(np.float32)
    expected = convolve(x, w, *case[2:]) + b.reshape(-1, *[1] * (x.ndim - 2))
    return {"x": x, "w": w, "b": b}, expected


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", [*CASES, *DEPTHWISE], ids=str)
def test_conv_equals_its_definition(compiler: Compiler, case: tuple, threads: int) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    found = run(compiler, "conv.implicit_gemm", node, values, expected.shape, threads=threads)
    close(found, expected, values["w"][0].size)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_depthwise_conv_equals_its_definition(compiler: Compiler, case: tuple, threads: int) -> None:
    values, expected = operands(case)
    node = f"y = Conv <{attributes(case)}> (x, w, b)"
    found = run(compiler, "conv.depthwise", node, values, expected.shape, threads=threads)
    close(found, expected, values["w"][0].size)
