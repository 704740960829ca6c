"""Outputs whose size a run finds out: their bytes and shapes from C, a wheel, onnxruntime and a device; maps.

Other sizes than those of the run before, none among them; the original in onnxruntime says what is right.
"""

import ctypes
import json
import subprocess
import sys
import zipfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from app.engine.core.graph import element_type, static_shape
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.export.custom_operator import graph
from app.engine.export.image import rejections
from app.engine.export.library import Library, library
from app.engine.export.package import read_me
from app.engine.export.static_program import static_program
from app.engine.export.wheel import module_name, wheel
from app.engine.model.load import load
from app.engine.planning import session as session_of
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.map_type import ScoreMaps
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.export.files import written
from tests.engine.export.test_custom_operator import session
from tests.engine.export.test_library import instance, model, planned, planned_of, pytestmark  # noqa: F401
from tests.engine.export.test_static_program import built, needs_linker, ran

Array = np.ndarray[Any, Any]
BOXES = 24
# Boxes that overlap little and their scores; `columns` has the boxes along its second axis.
DETECTOR = """<ir_version: 10, opset_import: ["" : 21]>
net (float[1,24,4] boxes, float[1,1,24] scores) => (float[n,4] kept, float[n] score, float[4,n] columns)
{
  many = Constant <value_ints = [9]> ()
  overlap = Constant <value_floats = [0.4]> ()
  least = Constant <value_floats = [0.5]> ()
  chosen = NonMaxSuppression (boxes, scores, many, overlap, least)
  two = Constant <value_ints = [2]> ()
  one = Constant <value_ints = [1]> ()
  nil = Constant <value_ints = [0]> ()
  column = Gather <axis = 1> (chosen, two)
  place = Squeeze (column, one)
  flat = Squeeze (boxes, nil)
  kept = Gather <axis = 0> (flat, place)
  row = Squeeze (scores)
  score = Gather <axis = 0> (row, place)
  columns = Transpose (kept)
}"""


@dataclass(frozen=True)
class Made:
    """A program that finds boxes, its library, and inputs with what the original gives for them."""

    program: Program
    library: Library
    runs: list[tuple[dict[str, Array], list[Array]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, compiler: Compiler) -> Made:
    program = planned(DETECTOR, tmp_path_factory.mktemp("detector"))
    original = onnxruntime.InferenceSession(model(DETECTOR).SerializeToString())
    runs = []
    for seed, scale in enumerate((1.0, 0.1, 0.7, 1.0)):
        random = np.random.default_rng(seed)
        corner = random.uniform(0, 8, (1, BOXES, 2))
        boxes = np.concatenate([corner, corner + random.uniform(0.5, 2, corner.shape)], axis=2)
        scores = random.uniform(0, scale, (1, 1, BOXES))
        inputs = {"boxes": boxes.astype(np.float32), "scores": scores.astype(np.float32)}
        runs.append((inputs, original.run(None, inputs)))
    assert len({tuple(a.shape for a in outputs) for _, outputs in runs}) > 2
    assert any(outputs[0].size == 0 for _, outputs in runs)
    return Made(program, library(program, compiler, "detector"), runs)


def same(found: list[Array], expected: list[Array]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.fixture
def native(made: Made, tmp_path: Path) -> ctypes.CDLL:
    (tmp_path / "model.so").write_bytes(made.library.shared.content)
    found = ctypes.CDLL(str(tmp_path / "model.so"))
    found.stowplan_output_shape.restype = ctypes.POINTER(ctypes.c_int64)
    found.stowplan_output_bytes.restype = ctypes.c_uint64
    return found


def test_a_c_program_is_told_shape_and_bytes_of_the_last_run(made: Made, native: ctypes.CDLL) -> None:
    assert not rejections(made.program)
    with instance(native) as handle:
        for inputs, outputs in made.runs:
            taken = [
                np.full(9 * 4, 77, np.float32),
                np.full(9, 77, np.float32),
                np.full(4 * 9, 77, np.float32),
            ]
            pointers = [
                (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
                for arrays in (list(inputs.values()), taken)
            ]
            assert native.stowplan_run_buffers(handle, *pointers) == 0
            for index, (array, output) in enumerate(zip(taken, outputs, strict=True)):
                shape = native.stowplan_output_shape(handle, index)[: output.ndim]
                assert tuple(shape) == output.shape
                assert native.stowplan_output_bytes(handle, index) == output.nbytes
                assert array[: output.size].tobytes() == output.tobytes()
                assert set(array[output.size :]) <= {77}  # no byte behind the output is written
        assert not native.stowplan_output_shape(handle, 3)


def test_the_operator_of_onnxruntime_gives_arrays_of_that_shape(made: Made, native: ctypes.CDLL) -> None:
    opened = session(Path(native._name), graph(made.library))
    assert [o.shape for o in opened.get_outputs()] == [["kept_0", 4], ["score_0"], [4, "columns_1"]]
    for inputs, outputs in made.runs:
        assert same(opened.run(None, inputs), outputs)


def test_the_wheel_gives_arrays_of_that_shape(made: Made, tmp_path: Path) -> None:
    with zipfile.ZipFile(written(wheel, made.library, "")) as file:
        file.extractall(tmp_path)
    for n, (inputs, _) in enumerate(made.runs):
        np.savez(tmp_path / f"given{n}.npz", **inputs)
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np
import {module_name(made.library)} as model
session = model.InferenceSession()
assert [o.shape for o in session.get_outputs()] == [["kept_0", 4], ["score_0"], [4, "columns_1"]]
for n in range({len(made.runs)}):
    np.savez(f"found{{n}}.npz", *session.run(None, dict(np.load(f"given{{n}}.npz"))))
"""
    subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, check=True)
    for n, (_, outputs) in enumerate(made.runs):
        assert same(list(np.load(tmp_path / f"found{n}.npz").values()), outputs)


@needs_linker
def test_a_device_reads_the_shape_beside_the_output(made: Made, compiler: Compiler, tmp_path: Path) -> None:
    binary = built(static_program(made.program, compiler, "detector"), tmp_path)
    for inputs, outputs in made.runs:
        assert ran(binary, inputs)[0] == b"".join(a.tobytes() for a in outputs)


HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
# Operators whose results are outputs of the graph themselves.
OUTPUTS = {
    "boxes": """net (float[2,24,4] boxes, float[2,3,24] scores, int64[1] most) => (int64[n,3] y)
    {
      overlap = Constant <value_floats = [0.4]> ()
      least = Constant <value_floats = [0.5]> ()
      y = NonMaxSuppression (boxes, scores, most, overlap, least)
    }""",
    "places": "net (float[4,6] x) => (int64[2,n] y) { y = NonZero (x) }",
    "slices": "net (float[4,6] x, bool[6] held) => (float[4,n] y) { y = Compress <axis = 1> (x, held) }",
    "largest": "net (float[3,9] x, int64[1] k) => (float[3,n] y, int64[3,n] z) { y, z = TopK (x, k) }",
    "first": """net (float[9,2] x, int64[1] end) => (float[n,2] y)
    {
      nil = Constant <value_ints = [0]> ()
      y = Slice (x, nil, end)
    }""",
}


def some(value: ir.Value, random: np.random.Generator, run: int) -> Array:
    """Elements some of which are 0; every second time most are, numbers are 0, 2, 4 and on."""
    kind, shape = element_type(value), static_shape(value)
    if kind.kind == "i":
        return np.full(shape, 2 * run, kind)
    floats = random.uniform(0, 1, shape)
    return np.asarray(np.where(floats < (0.9 if run % 2 else 0.3), 0, floats), kind)


@pytest.mark.parametrize("text", OUTPUTS.values(), ids=OUTPUTS)
def test_an_output_of_unknown_size_leaves_by_itself(text: str, compiler: Compiler, tmp_path: Path) -> None:
    program = planned(HEAD + text, tmp_path)
    assert not rejections(program)
    made = library(program, compiler, "net")
    (tmp_path / "model.so").write_bytes(made.shared.content)
    opened = session(tmp_path / "model.so", graph(made))
    original = onnxruntime.InferenceSession(model(HEAD + text).SerializeToString())
    random, sizes = np.random.default_rng(5), set()
    for run in range(4):
        values = program.compilation.graph.inputs
        inputs = {v.name or "": some(v, random, run) for v in values}
        expected = original.run(None, inputs)
        assert same(opened.run(None, inputs), expected)
        sizes.add(expected[0].shape)
    assert len(sizes) > 1


def test_a_program_that_stays_finds_places_with_the_kernel_of_nonzero(tmp_path: Path) -> None:
    text = HEAD + OUTPUTS["places"]
    (tmp_path / "net.onnx").write_bytes(model(text).SerializeToString())
    options = Options(autotune=False)
    loaded, registry = load(tmp_path / "net.onnx"), load_registry()
    program = session_of.planned(session_of.canonical(loaded, host(), options, Bindings(), registry), options)
    assert [step.group.op for step in program.steps] == ["NonZero"]


# Classifiers as the exporter of scikit-learn writes them: a label and maps of scores.
CLASSIFIER = """<ir_version: 8, opset_import: ["": 15, "ai.onnx.ml": 1]>
net (float[4,3] x) => (int64[4] label, float p)
{
  label, scores = ai.onnx.ml.LinearClassifier <
      coefficients = [1.0, -1.0, 0.5, 0.25, 1.0, -2.0], intercepts = [0.1, -0.1],
      classlabels_ints = [3, 8], post_transform = "SOFTMAX"> (x)
  p = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 8]> (scores)
}"""
NAMED = CLASSIFIER.replace("[3, 8]", '["cat", "dog"]').replace("ls_ints", "ls_strings").replace(
    "ls_int64s", "ls_strings").replace("int64[4] label", "string[4] label")  # fmt: skip


@pytest.mark.parametrize(
    ("text", "key"), [(CLASSIFIER, onnx.TensorProto.INT64), (NAMED, onnx.TensorProto.STRING)]
)
def test_maps_and_names_leave_as_numbers_of_which_a_wheel_makes_them_again(
    text: str, key: int, compiler: Compiler, tmp_path: Path
) -> None:
    proto = onnx.parser.parse_model(text)
    proto.graph.output[1].ClearField("type")
    kind = proto.graph.output[1].type.sequence_type.elem_type.map_type
    kind.key_type, kind.value_type.tensor_type.elem_type = key, onnx.TensorProto.FLOAT
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    program = planned_of(tmp_path / "net.onnx")
    made = library(program, compiler, "classifier")
    with zipfile.ZipFile(written(wheel, made, "")) as file:
        file.extractall(tmp_path)
    original = onnxruntime.InferenceSession(proto.SerializeToString())
    x = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import json, numpy as np
import {module_name(made)} as model
session = model.InferenceSession()
label, maps = session.run(None, {{"x": np.load("x.npy")}})
pairs = [list(each.items()) for each in maps]
print(json.dumps([label.tolist(), pairs, [o.type for o in session.get_outputs()]]))
"""
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=tmp_path, check=True, capture_output=True)
    label, pairs, types = json.loads(done.stdout)
    exact_label, exact = original.run(None, {"x": x})
    assert label == exact_label.tolist()
    assert len(set(label)) == 2
    assert [[k for k, _ in row] for row in pairs] == [list(each) for each in exact]
    scores = np.array([[v for _, v in row] for row in pairs], np.float32)
    np.testing.assert_allclose(scores, [list(each.values()) for each in exact], rtol=1e-5)
    assert types == [o.type for o in original.get_outputs()]
    with closing(Executor(program, compiler)) as executor:
        maps = executor.run({"x": x})["p"]
    assert isinstance(maps, ScoreMaps)
    assert maps.scores.tobytes() == scores.tobytes()


def test_a_read_me_says_which_extent_a_run_tells() -> None:
    kept = {"dtype": "int64", "shape": [40], "name": "kept", "prefix_axis": 0}
    told = read_me("{outputs}", {"inputs": [], "outputs": [kept]})
    assert told == "    0  int64[40]  kept  (axis 0: at most, a run tells)"
