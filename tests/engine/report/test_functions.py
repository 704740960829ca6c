"""Plans over blocked tensors as ONNX: local functions and their inlined form, in onnxruntime and OpenVINO."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from app.engine.core import pipeline
from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.layouts.choice import Policy
from app.engine.model.load import load
from app.engine.passes.infer_layouts import InferLayouts
from app.engine.planning import session
from app.engine.report.functions import DOMAIN, inlined, with_functions
from app.engine.report.onnx import export, proto_of, write
from app.engine.rewrites.float_widening import CONVERTS
from app.engine.runtime.oracle import runtime
from app.engine.types.layout import Layout
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from benchmarks.models import bindings_of, recorded
from tests.harness import assert_close

Array = np.ndarray[Any, Any]
REGISTRY = load_registry()
MODELS = (
    "basic_pitch", "darts_v2", "gcn", "mnist_8", "mtcnn_pnet", "ppocr_cls_v2", "ppocrv4_det",
    "super_resolution_10", "ultraface_rfb320",
)  # fmt: skip


def planned(path: Path, bindings: Bindings, policy: Policy, lanes: int = 8) -> Compilation:
    """The plan of a file; whatever can be is blocked when the policy says so."""
    options = Options()
    target = dataclasses.replace(host(), vector_lanes=lanes)
    compilation = session.canonical(load(path), target, options, bindings, REGISTRY)
    compilation = dataclasses.replace(compilation, model=compilation.model.clone())
    passes = (
        InferLayouts(policy) if isinstance(p, InferLayouts) else p for p in session.backend_passes(options)
    )
    return pipeline.run(compilation, passes)


def initializers(proto: onnx.ModelProto) -> dict[str, bytes]:
    return {t.name: t.SerializeToString(deterministic=True) for t in proto.graph.initializer}


def assert_equal_results(path: Path, found: Compilation, inputs: dict[str, Array], folder: Path) -> bool:
    """Both forms are valid, hold each weight once and compute what the file does; whether they differ."""
    functions = with_functions(found)
    flat = inlined(functions)
    onnx.checker.check_model(functions)
    onnx.checker.check_model(flat, full_check=True)
    assert {node.domain for node in flat.graph.node} <= {"", "ai.onnx", "ai.onnx.ml"}
    assert initializers(functions) == initializers(flat) == initializers(proto_of(found.model))
    assert all(
        len(node.attribute) < 1 or node.attribute[0].t.ByteSize() == 0
        for function in functions.functions for node in function.node if node.op_type == "Constant"
    ), "no tensors inside functions"  # fmt: skip
    expected = runtime(path, threads=1, optimized=False)(inputs)
    for name, proto in (("functions", functions), ("inlined", flat)):
        write(proto, folder / f"{name}.onnx")
        outputs = runtime(folder / f"{name}.onnx", threads=1, optimized=True)(inputs)
        assert list(outputs) == list(expected)
        for key, array in expected.items():
            assert_close(np.asarray(outputs[key]), np.asarray(array), 1e-4)
    return bool(functions.functions)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same_in_every_form(name: str, shared: Path, tmp_path: Path) -> None:
    path = shared / "models" / f"{name}.onnx"
    inputs, _ = recorded(shared / "models", name)[0]
    found = planned(path, bindings_of(inputs), "joint")
    if not assert_equal_results(path, found, inputs, tmp_path):
        export(found.model, tmp_path / "plain.onnx")
        files = [(tmp_path / f"{n}.onnx").read_bytes() for n in ("plain", "functions", "inlined")]
        assert files[0] == files[1] == files[2], "what has no blocked value is stored once"


C, H = 12, 6  # leaves padded lanes in blocks of 8 and of 16
SHAPE = f"float[1,{C},{H},{H}]"
BODIES = {
    "convolution": "y = Conv<pads = [1, 1, 1, 1]>(x, w)",
    "residual": "c = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(c) s = Add(r, x) y = Sigmoid(s)",
    "depthwise": "y = Conv<group = 12, pads = [1, 1, 1, 1]>(x, deep)",
    "transposed": "c = ConvTranspose<pads = [1, 1, 1, 1]>(x, w) y = Relu(c)",
    "per_channel": "c = Relu(x) m = Mul(c, channels) y = Conv<pads = [1, 1, 1, 1]>(m, w)",
    "rows": "e = Exp(x) m = Mul(e, row) y = Conv<pads = [1, 1, 1, 1]>(m, w)",
    "one_channel": "m = ReduceMax<keepdims = 1>(x, axis1) c = Relu(x) s = Mul(c, m) y = Neg(s)",
    "limits": "c = Clip(x, low, high) y = Conv<pads = [1, 1, 1, 1]>(c, w)",
    "maximum": "p = MaxPool<kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1]>(x) y = Relu(p)",
    "average": "p = AveragePool<kernel_shape = [2, 3], pads = [0, 1, 1, 1], count_include_pad = 1>(x) y = Relu(p)",
    "whole": "g = GlobalAveragePool(x) h = Sigmoid(g) y = Mul(x, h)",
    "whole_maximum": "g = GlobalMaxPool(x) h = Sigmoid(g) y = Mul(x, h)",
    "mean": "y = ReduceMean<keepdims = 0>(x, pixels)",
    "channels": "s = ReduceSum<keepdims = 1>(x, axis1) y = Mul(x, s)",
    "concat": "c = Conv<pads = [1, 1, 1, 1]>(x, wide) y = Concat<axis = 1>(c, x)",
    "concat_of_rows": "c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Concat<axis = 2>(c, x)",
    "split": "a, b = Split<axis = 1>(x, parts) r = Relu(a) t = Neg(b) y = Concat<axis = 1>(r, t)",
    "slice": "s = Slice(x, start, end, axis1) y = Relu(s)",
    "pad": "p = Pad(x, border) y = Conv(p, w)",
    "resize": "z = Resize<mode = \"nearest\">(x, , scales) y = Conv(z, w)",
    "channels_last": "c = Conv<pads = [1, 1, 1, 1]>(x, w) y = Transpose<perm = [0, 2, 3, 1]>(c)",
}  # fmt: skip
RANDOM = np.random.default_rng(3)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


WEIGHTS = {
    "w": normal(C, C, 3, 3), "wide": normal(16, C, 3, 3), "deep": normal(C, 1, 3, 3),
    "channels": normal(C, 1, 1), "row": normal(H), "low": np.array(-0.5, np.float32),
    "high": np.array(0.5, np.float32), "axis1": np.array([1]), "pixels": np.array([2, 3]),
    "parts": np.array([8, 4]), "start": np.array([0]), "end": np.array([8]),
    "border": np.array([0, 0, 1, 0, 0, 0, 1, 2]), "scales": np.array([1, 1, 2, 2], np.float32),
}  # fmt: skip


def saved(body: str, folder: Path) -> Path:
    """A file of the body between two convolutions, so that what is between them is blocked."""
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({SHAPE} x0) => (float y) '
    proto = onnx.parser.parse_model(f"{text} {{ x = Conv<pads = [1, 1, 1, 1]>(x0, w) {body} }}")
    used = {k: v for k, v in WEIGHTS.items() if k == "w" or k in re.findall(r"\w+", body)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(v, k) for k, v in used.items())
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    onnx.save(inferred, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("name", BODIES)
def test_an_operator_computes_the_same_over_blocked_tensors(name: str, lanes: int, tmp_path: Path) -> None:
    path = saved(BODIES[name], tmp_path)
    found = planned(path, Bindings(), "blocked", lanes)
    assert assert_equal_results(path, found, {"x0": normal(1, C, H, H)}, tmp_path)


HALF = (
    'r = Resize<mode = "linear">(x, , scales) h = Cast<to = 10>(r) g = Concat<axis = 1>(h, h)'
    " f = Cast<to = 1>(g) p = MaxPool<kernel_shape = [2, 2]>(f) y = Relu(p)"
)


def test_nodes_whose_kernels_convert_16_bit_floats_stand_between_casts(tmp_path: Path) -> None:
    path = saved(HALF, tmp_path)
    found = planned(path, Bindings(), "blocked", 8)
    converting = [node.op_type for node in found.graph if CONVERTS in node.meta]
    assert converting == ["Resize", "MaxPool"]
    inputs = {"x0": normal(1, C, H, H)}
    expected = runtime(path, threads=1, optimized=False)(inputs)["y"]
    functions = with_functions(found)
    for name, proto in (("functions", functions), ("inlined", inlined(functions))):
        write(proto, tmp_path / f"{name}.onnx")
        result = runtime(tmp_path / f"{name}.onnx", threads=1, optimized=True)(inputs)["y"]
        assert_close(np.asarray(result), np.asarray(expected), 1e-3)


def test_a_call_tells_the_layouts_and_a_value_its_logical_shape(tmp_path: Path) -> None:
    found = planned(saved(BODIES["residual"], tmp_path), Bindings(), "blocked")
    proto = with_functions(found)
    calls = [node for node in proto.graph.node if node.domain == DOMAIN]
    assert {function.name for function in proto.functions} == {call.op_type for call in calls}
    written = {v.name: at for v, at in (found.plan.layout or {}).items()}
    told = 0
    for call in calls:
        layouts = {a.name: [Layout.parse(s.decode()) for s in a.strings] for a in call.attribute}
        assert layouts["input_layouts"] == [written[n] for n in call.input]
        assert layouts["output_layouts"] == [written[n] for n in call.output]
        told += sum(bool(at.blocks) for at in layouts["output_layouts"])
    assert told >= 2
    values = {info.name: info for info in proto.graph.value_info}
    for name, layout in written.items():
        if layout.blocks and name in values:
            noted = {m.key: m.value for m in values[name].metadata_props}
            assert noted == {"stowplan.layout": "NCHW8c", "stowplan.shape": f"[1, {C}, {H}, {H}]"}
            dims = [d.dim_value for d in values[name].type.tensor_type.shape.dim]
            assert dims == [1, 2, H, H, 8]


def test_padded_lanes_of_an_exported_function_do_not_matter(tmp_path: Path) -> None:
    """The body of a function is its meaning: whatever its caller leaves in padded lanes."""
    found = planned(saved(BODIES["residual"], tmp_path), Bindings(), "blocked")
    proto = with_functions(found)
    function = next(f for f in proto.functions if f.name.startswith("Conv") and len(f.input) > 1)
    call = next(n for n in proto.graph.node if n.op_type == function.name)
    evaluator = ReferenceEvaluator(function)
    layouts = next(a.strings for a in call.attribute if a.name == "input_layouts")
    given, poisoned = [], []
    for name, layout in zip(call.input, layouts):
        if b"8c" not in layout:
            tensor = next((t for t in proto.graph.initializer if t.name == name), None)
            array = normal(1, C, H, H) if tensor is None else onnx.numpy_helper.to_array(tensor)
            given.append(array)
            poisoned.append(array)
            continue
        given.append(normal(1, 2, H, H, 8))
        poisoned.append(given[-1].copy())
        poisoned[-1][:, 1, :, :, C - 8 :] = np.nan
    results = [
        evaluator.run(None, dict(zip(function.input, fed)), attributes={})[0] for fed in (given, poisoned)
    ]
    np.testing.assert_array_equal(results[0][:, 0], results[1][:, 0])
    assert np.isfinite(results[1][:, 1, :, :, : C - 8]).all()


def test_the_same_plan_gives_the_same_bytes(shared: Path, tmp_path: Path) -> None:
    files = []
    inputs, _ = recorded(shared / "models", "ppocr_cls_v2")[0]
    for name in ("first", "second"):
        found = planned(shared / "models" / "ppocr_cls_v2.onnx", bindings_of(inputs), "joint")
        functions = with_functions(found)
        write(functions, tmp_path / f"{name}.functions")
        write(inlined(functions), tmp_path / f"{name}.inlined")
        files.append([(tmp_path / f"{name}.{form}").read_bytes() for form in ("functions", "inlined")])
    assert files[0] == files[1]


@pytest.mark.parametrize("name", ["mtcnn_pnet", "ppocr_cls_v2", "ultraface_rfb320"])
def test_the_inlined_form_runs_in_openvino(name: str, shared: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="OpenVINO is an extra of the benchmarks")
    path = shared / "models" / f"{name}.onnx"
    inputs, _ = recorded(shared / "models", name)[0]
    flat = inlined(with_functions(planned(path, bindings_of(inputs), "blocked")))
    write(flat, tmp_path / "inlined.onnx")
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(tmp_path / "inlined.onnx"), "CPU", settings)
    found = compiled({i.any_name: inputs[i.any_name] for i in compiled.inputs})
    expected = runtime(path, threads=1, optimized=False)(inputs)
    for output, (key, array) in zip(compiled.outputs, expected.items(), strict=True):
        assert key in output.names
        assert_close(np.asarray(found[output]), np.asarray(array), 1e-4)
