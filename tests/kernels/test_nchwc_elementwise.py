"""Elementwise chains over images that are blocked or have channels last, against NumPy."""

from typing import Any

import numpy as np
import pytest

from app.engine.core.group import Group
from app.engine.core.registry import Implementation, load
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

Array = np.ndarray[Any, Any]
REGISTRY = load()
ROW, LAST = (harness.implementation(f"elementwise.{name}", REGISTRY) for name in ("blocked", "last"))
BOTH = pytest.mark.parametrize("row", [ROW, LAST], ids=lambda row: row.name)


def group_of(
    operands: dict[str, tuple[int, ...]], body: str, outputs: str = "y", **constants: Array
) -> Group:
    extents = {name: f"[{','.join(map(str, shape))}]" if shape else "" for name, shape in operands.items()}
    given = ", ".join(f"float{extents[name]} {name}" for name in operands)
    made = ", ".join(f"float[] {name}" for name in outputs.split())
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({given}) => ({made}) {{ {body} }}'
    return harness.group_of(harness.model_of(text, constants), REGISTRY)


def random(operands: dict[str, tuple[int, ...]]) -> dict[str, Array]:
    generator = np.random.default_rng(3)
    return {n: generator.standard_normal(shape).astype(np.float32) for n, shape in operands.items()}


# Shapes of a, b, c in a * b + c.
CASES = [
    ((2, 20, 5, 7), (2, 20, 5, 7), ()),
    ((2, 20, 5, 7), (2, 20, 1, 1), (20, 1, 1)),
    ((1, 33, 16, 17), (1, 33, 1, 1), (1, 33, 16, 17)),
    ((2, 20, 5, 7), (2, 1, 5, 7), (20, 1, 1)),
    ((3, 8, 1, 1), (1, 8, 1, 1), (1,)),
    ((1, 1, 6, 5), (1, 1, 6, 5), (6, 1)),
    ((2, 3, 4, 5), (3, 4, 5), (2, 3, 1, 5)),
]


@BOTH
@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("shapes", CASES)
def test_operands_are_read_in_every_way(
    compiler: Compiler, row: Implementation, shapes: Any, lanes: int
) -> None:
    operands = dict(zip("abc", shapes))
    arrays = random(operands)
    fixed = {n: arrays[n] for n in "bc" if len(operands[n]) < 4}
    group = group_of(operands, "t = Mul(a, b) y = Add(t, c)", **fixed)
    (y,) = harness.run_group(row, group, arrays, compiler, threads=2, lanes=lanes)
    np.testing.assert_allclose(y, arrays["a"] * arrays["b"] + arrays["c"], rtol=1e-6, atol=1e-6)


@BOTH
def test_several_results_and_a_slope_per_channel(compiler: Compiler, row: Implementation) -> None:
    operands = {"a": (2, 20, 9, 9), "slope": (20, 1, 1), "low": ()}
    arrays = random(operands)
    body = "t = PRelu(a, slope) s = Max(t, low) y = HardSwish(s)"
    group = group_of(operands, body, "s y", slope=arrays["slope"])
    s, y = harness.run_group(row, group, arrays, compiler, threads=2)
    a = arrays["a"]
    expected = np.maximum(np.where(a < 0, a * arrays["slope"], a), arrays["low"])
    np.testing.assert_allclose(s, expected, rtol=1e-6)
    np.testing.assert_allclose(y, expected * np.clip(expected / 6 + 0.5, 0, 1), rtol=1e-5, atol=1e-6)


@BOTH
@pytest.mark.parametrize("shape", [(2, 20, 9, 9), (1, 1, 3, 3)])
def test_results_may_overwrite_images_of_their_shape_only(
    compiler: Compiler, row: Implementation, shape: Any
) -> None:
    operands = {"a": shape, "gate": (*shape[:2], 1, 1), "b": shape}
    arrays = random(operands)
    group = group_of(operands, "t = Mul(a, gate) y = Add(t, b)")
    pairs = row.inplace(group, harness.context())
    assert [(source.name, output.name) for source, output in pairs] == [("a", "y"), ("b", "y")]
    for pair in pairs:
        (y,) = harness.run_group(row, group, arrays, compiler, alias=[pair])
        np.testing.assert_allclose(y, arrays["a"] * arrays["gate"] + arrays["b"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("operands", "reason"),
    [
        ({"a": (2, 20, 5), "b": (2, 20, 5)}, "has 3 axes"),
        ({"a": (2, 20, 5, 7), "b": (20, 5, 7)}, "is no image and changes between runs"),
        ({"a": (1, 1, 5, 7), "b": ()}, None),
    ],
)
def test_what_is_no_image_is_refused(operands: dict[str, tuple[int, ...]], reason: str | None) -> None:
    found = ROW.rejection(group_of(operands, "y = Add(a, b)"), harness.context())
    assert found is None if reason is None else reason in str(found)


def test_bytes_have_channels_last_but_no_blocks(compiler: Compiler) -> None:
    random = np.random.default_rng(3)
    a, b = (random.integers(0, 255, (2, 20, 5, 7)).astype(np.uint8) for _ in range(2))
    text = """<ir_version: 10, opset_import: ["": 21]> g (uint8[2,20,5,7] a, uint8[2,20,5,7] b, float s, uint8 z)
        => (uint8[2,20,5,7] y) {
        c = DequantizeLinear(a, s, z)
        d = DequantizeLinear(b, s, z)
        e = Mul(c, d)
        y = QuantizeLinear(e, s, z) }"""
    constants = {"s": np.float32(0.25).reshape(()), "z": np.uint8(9).reshape(())}
    group = harness.group_of(harness.model_of(text, constants), REGISTRY)
    (y,) = harness.run_group(LAST, group, {"a": a, "b": b}, compiler, threads=2)
    e = (a.astype(np.float32) - 9) * (b.astype(np.float32) - 9) * 0.25
    np.testing.assert_array_equal(y, np.clip(np.rint(e) + 9, 0, 255).astype(np.uint8))
    assert "is for float32" in str(ROW.rejection(group, harness.context()))
    assert [(x.name, y.name) for x, y in LAST.inplace(group, harness.context())] == [("a", "y"), ("b", "y")]


def test_bytes_do_not_overwrite_floats() -> None:
    """A thread would write where another has yet to read: at a quarter of the address."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,20,5,7] a, float[2,20,1,1] gate, float s, uint8 z)
        => (uint8[2,20,5,7] y) {
        e = Mul(a, gate)
        y = QuantizeLinear(e, s, z) }"""
    constants = {"s": np.float32(0.25).reshape(()), "z": np.uint8(9).reshape(())}
    group = harness.group_of(harness.model_of(text, constants), REGISTRY)
    assert LAST.rejection(group, harness.context()) is None
    assert LAST.inplace(group, harness.context()) == ()
