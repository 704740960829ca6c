"""Data movement between images that are blocked or have channels last, against the reference evaluator."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.core.registry import load
from app.kernels.cpu.runtime.compiler import Compiler
from tests import harness

Array = np.ndarray[Any, Any]
REGISTRY = load()


# Row, shapes of the inputs, body, outputs; constants are integers by name.
CASES = [
    ("concat.blocked", {"a": (2, 16, 3, 5), "b": (2, 20, 3, 5)}, "y = Concat <axis = 1> (a, b)", {}),
    ("concat.blocked", {"a": (1, 32, 3, 5)}, "y = Concat <axis = -3> (a, a, a)", {}),
    ("concat.blocked", {"a": (1, 20, 3, 5), "b": (1, 20, 3, 2)}, "y = Concat <axis = 3> (a, b)", {}),
    ("split.blocked", {"a": (2, 52, 3, 5)}, "y, z = Split <axis = 1> (a, s)", {"s": [32, 20]}),
    ("split.blocked", {"a": (2, 20, 6, 5)}, "y, z = Split <axis = 2> (a, s)", {"s": [1, 5]}),
    ("slice.blocked", {"a": (1, 20, 7, 6)}, "y = Slice (a, s, e, x)", {"s": [1, 1], "e": [9, 9], "x": [2, 3]}),
    (
        "slice.blocked", {"a": (2, 52, 7, 6)}, "y = Slice (a, s, e, x, p)",
        {"s": [16, 5], "e": [36, -9], "x": [1, 2], "p": [1, -2]},
    ),
    ("pad.blocked", {"a": (2, 20, 5, 6), "v": ()}, "y = Pad (a, p, v)", {"p": [0, 0, 1, 2, 0, 0, 3, 0]}),
    ("pad.blocked", {"a": (1, 3, 5, 6)}, 'y = Pad <mode = "reflect"> (a, p)', {"p": [0, 0, 1, 2, 0, 0, 3, 4]}),
    ("concat.last", {"a": (2, 5, 3, 5), "b": (2, 20, 3, 5)}, "y = Concat <axis = 1> (a, b)", {}),
    ("concat.last", {"a": (1, 20, 3, 5), "b": (1, 20, 3, 2)}, "y = Concat <axis = 3> (a, b)", {}),
    ("split.last", {"a": (2, 7, 3, 5)}, "y, z = Split <axis = 1> (a, s)", {"s": [3, 4]}),
    (
        "slice.last", {"a": (2, 11, 7, 6)}, "y = Slice (a, s, e, x, p)",
        {"s": [9, 5], "e": [1, -9], "x": [1, 2], "p": [-3, -2]},
    ),
    ("pad.last", {"a": (2, 5, 5, 6), "v": ()}, "y = Pad (a, p, v)", {"p": [0, 2, 1, 2, 0, 0, 3, 0]}),
]  # fmt: skip


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("row", "operands", "body", "integers"), CASES)
def test_every_element_arrives(
    compiler: Compiler, row: str, operands: Any, body: str, integers: dict[str, list[int]], lanes: int
) -> None:
    given = [f"float{[*shape] if shape else ''} {name}" for name, shape in operands.items()]
    given += [f"int64[{len(v)}] {name}" for name, v in integers.items()]
    made = ", ".join(f"float[] {name}" for name in body.split(" = ")[0].split(", "))
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({", ".join(given)}) => ({made}) {{ {body} }}'
    fixed = {name: np.array(v, np.int64) for name, v in integers.items()}
    arrays = {
        n: np.random.default_rng(4).standard_normal(s).astype(np.float32).reshape(s)
        for n, s in operands.items()
    }
    group = harness.group_of(harness.model_of(text, fixed), REGISTRY)
    implementation = harness.implementation(row, REGISTRY)
    found = harness.run_group(implementation, group, arrays, compiler, threads=2, lanes=lanes)
    expected = ReferenceEvaluator(onnx.parser.parse_model(text)).run(None, {**arrays, **fixed})
    for y, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(y, e)


@pytest.mark.parametrize("row", ["concat.blocked", "concat.last"])
def test_a_constant_is_moved_as_the_layout_has_it(compiler: Compiler, row: str) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[2,16,3,5] a, float[2,20,3,5] b) => (float[2,36,3,5] y) { y = Concat <axis = 1> (a, b) }"""
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((2, c, 3, 5)).astype(np.float32) for c in (16, 20))
    group = harness.group_of(harness.model_of(text, {"b": b}), REGISTRY)
    (found,) = harness.run_group(harness.implementation(row, REGISTRY), group, {"a": a}, compiler, lanes=8)
    np.testing.assert_array_equal(found, np.concatenate([a, b], axis=1))


@pytest.mark.parametrize(
    ("row", "shapes", "body", "reason"),
    [
        (
            "concat.blocked",
            [(1, 12, 3, 3), (1, 8, 3, 3)],
            "y = Concat <axis = 1> (a, b)",
            "channels 0:8:1 of 'b'",
        ),
        ("concat.blocked", [(1, 8, 3), (1, 8, 3)], "y = Concat <axis = 1> (a, b)", "has 3 axes"),
    ],
)
def test_blocks_that_would_not_stay_whole_are_refused(row: str, shapes: Any, body: str, reason: str) -> None:
    given = ", ".join(f"float{[*shape]} {name}" for name, shape in zip("ab", shapes))
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({given}) => (float[] y) {{ {body} }}'
    group = harness.group_of(harness.model_of(text), REGISTRY)
    assert reason in str(harness.implementation(row, REGISTRY).rejection(group, harness.context(lanes=8)))
