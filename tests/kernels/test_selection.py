"""Operators that find out the size of their results, as models, against the reference evaluator and NumPy."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.core.calls import HostCall
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import OWN, Array
from tests.kernels.single_node import kind_of, node_text, reference
from tests.session import Session


def selected(
    compiler: Compiler,
    folder: Path,
    body: str,
    inputs: Mapping[str, Array],
    outputs: Mapping[str, type],
    runs: int = 2,
) -> list[Array]:
    """Outputs of a node on our own kernels, several times: they take the sizes of each run."""
    text = node_text(body, inputs, outputs, opset=20)
    for name, kind in outputs.items():
        text = text.replace(f"{kind_of(kind)}[] {name}", f"{kind_of(kind)} {name}")
    model = onnx.parser.parse_model(text)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    path = folder / "model.onnx"
    onnx.save(model, path)
    target = dataclasses.replace(host(), backends=OWN)
    session = Session(path, compiler, target=target, poison=True)
    calls = [c for s in session.program.steps for c in s.calls]
    assert all(isinstance(c, HostCall) and c.is_compiled for c in calls), calls
    assert not any(s.is_fallback for s in session.program.steps)
    none = {name: np.zeros_like(array) for name, array in inputs.items()}
    for _ in range(runs - 1):
        session.run(none)
    found = session.run(inputs)
    session.run(none)  # what a caller got does not change
    session.close()
    return [np.asarray(found[name]) for name in outputs]


@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.int8])
@pytest.mark.parametrize("shape", [(7,), (5, 9), (3, 1, 4, 5), (40, 3, 700), (2, 0)])
def test_places_of_what_is_not_zero(
    compiler: Compiler, tmp_path: Path, shape: tuple[int, ...], dtype: type
) -> None:
    x = (np.random.default_rng(1).uniform(-1, 1, shape) * 3).astype(np.int64).astype(dtype)
    (found,) = selected(compiler, tmp_path, "NonZero (x)", {"x": x}, {"y": np.int64})
    np.testing.assert_array_equal(found, np.array(np.nonzero(x)))


@pytest.mark.parametrize(("axis", "count"), [(None, 50), (0, 5), (1, 3), (-1, 2)])
def test_slices_where_a_condition_holds(
    compiler: Compiler, tmp_path: Path, axis: int | None, count: int
) -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal((5, 4, 3)).astype(np.float32)
    inputs = {"x": x, "c": random.uniform(size=count) < 0.5}
    body = "Compress (x, c)" if axis is None else f"Compress <axis = {axis}> (x, c)"
    (found,) = selected(compiler, tmp_path, body, inputs, {"y": np.float32})
    np.testing.assert_array_equal(found, np.compress(inputs["c"], x, axis))


def test_many_slices(compiler: Compiler, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    inputs = {"x": random.integers(0, 9, (3000, 30)), "c": random.uniform(size=3000) < 0.5}
    (found,) = selected(compiler, tmp_path, "Compress <axis = 0> (x, c)", inputs, {"y": np.int64})
    np.testing.assert_array_equal(found, inputs["x"][inputs["c"]])


def test_memory_for_many_slices_grows_with_what_a_run_needs(compiler: Compiler, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 3000, 30)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> agraph (float[2,3000,30] x, bool[3000] c) => (float[2,n,30] y) '
        "{ y = Compress <axis = 1> (x, c) }"
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    session = Session(path, compiler, target=dataclasses.replace(host(), backends=OWN), poison=True)
    for share in (0.0, 0.2, 0.9, 0.5, 1.0, 0.1):
        condition = random.uniform(size=3000) < share
        np.testing.assert_array_equal(session.run({"x": x, "c": condition})["y"], x[:, condition])
    session.close()


@pytest.mark.parametrize(("dtype", "spread"), [(np.int64, 2**62), (np.int64, 100), (np.int32, 2**31 - 1)])
@pytest.mark.parametrize("n", [0, 1, 300, 5000])
def test_different_numbers_of_any_spread(
    compiler: Compiler, tmp_path: Path, n: int, dtype: type, spread: int
) -> None:
    x = np.random.default_rng(6).integers(-spread, spread, n).astype(dtype)
    x[n // 2 :] = x[: n - n // 2]
    (found,) = selected(compiler, tmp_path, "Unique (x)", {"x": x}, {"y": dtype})
    np.testing.assert_array_equal(found, np.unique(x))


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int8, np.uint8])
def test_different_elements_and_slices(
    compiler: Compiler, tmp_path: Path, dtype: type, axis: int | None, is_sorted: int
) -> None:
    random = np.random.default_rng(4)
    x = (random.integers(-2, 2, (23, 3, 2)) * (1 if axis is None else 50)).astype(dtype)
    outputs = {"y": dtype, "i": np.int64, "r": np.int64, "c": np.int64}
    along = "" if axis is None else f"axis = {axis}, "
    body = f"Unique <{along}sorted = {is_sorted}> (x)"
    found = selected(compiler, tmp_path, body, {"x": x}, outputs)
    y, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    order = np.arange(len(first)) if is_sorted else np.argsort(first)
    np.testing.assert_array_equal(found[0], np.take(y, order, 0 if axis is None else axis))
    np.testing.assert_array_equal(found[1], first[order])
    np.testing.assert_array_equal(found[2], np.argsort(order)[inverse.reshape(-1)])
    np.testing.assert_array_equal(found[3], counts[order])


def test_numbers_that_are_none_come_last_and_zeros_are_equal(compiler: Compiler, tmp_path: Path) -> None:
    x = np.array([np.nan, -0.0, 3, np.inf, 0.0, -np.inf, -np.nan, -5e-42], np.float32)
    (found,) = selected(compiler, tmp_path, "Unique (x)", {"x": x}, {"y": np.float32})
    np.testing.assert_array_equal(found, np.array([-np.inf, -5e-42, 0, 3, np.inf, np.nan], np.float32))


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("most", "least"), [(3, None), (100, 0.4), (0, None), (7, 0.9)])
def test_boxes_that_overlap_are_left_out(
    compiler: Compiler, tmp_path: Path, most: int, least: float | None, center: int
) -> None:
    random = np.random.default_rng(5)
    corner = random.uniform(0, 10, (2, 45, 2))
    boxes = np.concatenate([corner, corner + random.uniform(-4, 4, (2, 45, 2))], -1)
    if center:
        boxes[..., 2:] = np.abs(boxes[..., 2:]) / 3
    inputs = {
        "boxes": boxes.astype(np.float32),
        "scores": random.integers(0, 20, (2, 3, 45)).astype(np.float32) / 20,  # some are equal
        "most": np.array([most]),
        "limit": np.array([0.3], np.float32),
    }
    if least is not None:
        inputs["least"] = np.array([least], np.float32)
    body = f"NonMaxSuppression <center_point_box = {center}> ({', '.join(inputs)})"
    (found,) = selected(compiler, tmp_path, body, inputs, {"y": np.int64})
    expected = chosen(inputs["boxes"], inputs["scores"], most, 0.3, least, center)
    np.testing.assert_array_equal(found, expected)
    if most and not center:
        assert len(found) == len(reference(body, inputs, opset=20)[0])


def chosen(boxes: Array, scores: Array, most: int, limit: float, least: float | None, center: int) -> Array:
    """Greedy choice in float64."""
    found = []
    for image, kind in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        line = scores[image, kind]
        for i in np.argsort(-line, kind="stable"):
            if (least is not None and not line[i] > np.float32(least)) or len(kept) == most:
                continue
            if all(shared(boxes[image, i], boxes[image, k], center) <= limit for k in kept):
                kept.append(int(i))
        found += [(image, kind, i) for i in kept]
    return np.array(found, np.int64).reshape(-1, 3)


def shared(a: Array, b: Array, center: int) -> float:
    """Intersection over union."""
    spans, areas = [], [1.0, 1.0]
    for axis in range(2):
        ends = []
        for k, box in enumerate((a.astype(float), b.astype(float))):
            low, high = box[axis], box[axis + 2]
            if center:
                low, high = low - high / 2, low + high / 2
            ends.append((min(low, high), max(low, high)))
            areas[k] *= abs(high - low)
        spans.append(max(min(e[1] for e in ends) - max(e[0] for e in ends), 0.0))
    both = spans[0] * spans[1]
    union = sum(areas) - both
    return both / union if min(areas) > 0 and union > 0 else 0.0
