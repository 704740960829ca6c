"""Regions of models whose runs find out the size of outputs: equal to onnxruntime at every shape."""

from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from app.engine.planning.regions.memory import memory_formulas
from app.engine.planning.regions.runner import RegionRunner
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import RegionError
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.planning.regions.networks import Network
from tests.fuzzing.regions import SHAPES, check_plan, drawn, planned, points_of

DETECTOR = """
    features = Conv <strides = [4, 4], kernel_shape = [4, 4]> (x, stem)
    raw = Conv (features, head)
    cells = Reshape (raw, flat)
    turned = Transpose <perm = [0, 2, 1]> (cells)
    positive = Exp (turned)
    boxes = Slice (positive, zero, four, two)
    ranked = Slice (turned, four, six, two)
    scores = Transpose <perm = [0, 2, 1]> (ranked)
    kept = NonMaxSuppression (boxes, scores, most, overlap, least)
"""
ROWS = """
    column = Gather <axis = 1> (kept, last)
    places = Squeeze (column, one)
    row = Squeeze (boxes, zero)
    y = Gather <axis = 0> (row, places)
    class = Gather <axis = 1> (kept, middle)
    z = Squeeze (class, one)
"""
IMAGE = "float[1, 3, h, w] x", {"x": [1, 3, "h:16..96%16", "w:16..80%16"]}


def detector(tail: str, outputs: str) -> Network:
    rng = np.random.default_rng(5)
    found = Network(IMAGE[0], IMAGE[1], outputs=outputs.split())
    found.weights = {
        "stem": rng.standard_normal((8, 3, 4, 4)).astype(np.float32) / 4,
        "head": rng.standard_normal((6, 8, 1, 1)).astype(np.float32) / 2,
        "overlap": np.array([0.3], np.float32),
        "least": np.array([0.1], np.float32),
        "flat": np.array([1, 6, -1]),
        **{n: np.array([v]) for v, n in enumerate(("zero", "one", "two"))},
        "four": np.array([4]),
        "six": np.array([6]),
        "most": np.array([100]),
        "last": np.array([2]),
        "middle": np.array([1]),
    }
    found.lines = [line for line in (DETECTOR + tail).splitlines() if line.strip()]
    return found


def mask(body: str, outputs: str) -> Network:
    return Network(
        "float[h, w] x", {"x": ["h:2..9", "w:3..17"]}, lines=body.splitlines(), outputs=outputs.split()
    )


NETWORKS = {
    "boxes": detector(ROWS, "y z"),
    "suppression": detector("", "kept"),
    "places": mask("zero = Constant <value_float = 0.5> ()\nb = Greater (x, zero)\nat = NonZero (b)", "at"),
    "elements": mask(
        "limit = Constant <value_float = 0.5> ()\nb = Greater (x, limit)\nat = NonZero (b)\n"
        "t = Transpose (at)\nv = GatherND (x, t)\ny = Exp (v)\nm = ReduceSum <keepdims = 0> (v)",
        "y v at m",
    ),
    "least of one": Network(
        "float[n] x",
        {"x": ["n<=9"]},
        lines=["at = NonZero (x)", "t = Transpose (at)", "v = GatherND (x, t)", "y = Exp (v)"],
        outputs=["y", "at"],
    ),
    "input": mask(
        "axes = Constant <value_ints = [0, 1]> ()\nzero = Constant <value_ints = [0]> ()\n"
        "sum = ReduceSum <keepdims = 0> (x, axes)\nn = Cast <to = 7> (sum)\n"
        "many = Reshape (n, one)\ny = Slice (x, zero, many, zero)",
        "y",
    ),
}
NETWORKS["input"].weights["one"] = np.array([1])
INTEGERS = ("kept", "at", "z")


def saved(name: str, folder: Path) -> Path:
    path = NETWORKS[name].save(folder / "net.onnx")
    model = onnx.load(path)
    for output in model.graph.output:
        if output.name in INTEGERS:
            output.type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_have_as_many_elements_as_a_run_finds(name: str, tmp_path: Path, compiler: Compiler) -> None:
    path, spelled = saved(name, tmp_path), NETWORKS[name].spelled
    plan = planned(path, spelled)
    theirs = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [v.name for v in theirs.get_outputs()]
    worst = memory_formulas(plan)["worst_bytes"]
    rng = np.random.default_rng(2)
    sizes = set()
    with closing(RegionRunner(plan, compiler)) as runner:
        points = points_of(plan, SHAPES, rng)
        for point, filled in zip(points, [runner.filled(p) for p in points], strict=True):
            program = plan.at(point)
            check_plan(program)
            assert program.arena_bytes <= worst
            inputs = drawn(spelled, point, rng)
            wanted = dict(zip(names, theirs.run(None, inputs)))
            found = filled.run(inputs)
            assert found.keys() == wanted.keys()
            with closing(Executor(program, compiler, poison=True)) as executor:
                alone = executor.run(inputs)
            for output, expected in wanted.items():
                result = found[output]
                np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5, strict=True)
                bounded = plan.outputs.get(output)
                whole = np.asarray(alone[output])
                taken = whole if bounded is None else bounded.taken(whole, np.asarray(alone[bounded.count]))
                np.testing.assert_array_equal(taken, result)
                sizes.add(expected.shape)
    assert plan.outputs.keys() == set(wanted) - {"m"}
    assert len(sizes) > len(wanted)  # they do differ


def test_a_reader_without_a_rule_is_named(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
        net (float[n] x) => (int64[1, k] y, int64[1, k] z) {
            y = NonZero (x)
            axis = Constant <value_int = 1> ()
            z = CumSum (y, axis)
        }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    with pytest.raises(RegionError, match="CumSum 'CumSum z' reads 'y', whose size a run finds out"):
        planned(tmp_path / "net.onnx", {"x": ["n<=8"]})
