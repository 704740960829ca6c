"""Real models: canonical graphs are static, small, and compute in onnxruntime what the files do."""

from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import pytest

from app.engine.core import graph
from app.engine.core.plan import Compilation
from benchmarks.models import bindings_of, recorded
from tests.engine.canonical import assert_same_outputs, canonical, exported, runtime

TOLERANCE = 1e-4  # of each output's maximum
# The most nodes that the canonical graph may have: what a study of these files found possible.
MODELS = {
    "aecmos_gru": 37,
    "attacut_sc": 23,
    "basic_pitch": 241,
    "chars2vec_en300_loop": 7,
    "darts_v2": 261,
    "deepcut_thai": 148,
    "dlrm": 59,
    "dnsmos_sig_bak_ovr": 47,
    "gcn": 5,
    "magika_v3_3": 77,
    "mnist_8": 11,
    "mtcnn_pnet": 13,
    "mtcnn_rnet": 19,
    "ppocr_cls_v2": 199,
    "ppocrv4_det": 328,
    "ppocrv4_rec": 403,
    "randwire": 599,
    "silero_vad_16k_sequence": 27,
    "silero_vad_v6": 39,
    "super_resolution_10": 10,
    "tashkeel_rawi_v3_int8": 22,
    "ultraface_rfb320": 130,
}
LIGHT = {
    "light_bvlc_alexnet": 22,
    "light_densenet121": 609,
    "light_inception_v1": 142,
    "light_inception_v2": 302,
    "light_resnet50": 123,
    "light_shufflenet": 154,
    "light_squeezenet": 67,
    "light_vgg19": 44,
    "light_zfnet512": 22,
}
# onnxruntime multiplies unsigned by signed bytes with saturation on CPUs without VNNI: there it
# differs from its own recordings.
SATURATES = frozenset({"tashkeel_rawi_v3_int8"})
GONE = frozenset({"Constant", "Shape", "If", "Identity", "Dropout", "Sum", "BatchNormalization"})


def assert_canonical(compilation: Compilation, most: int) -> None:
    main = compilation.graph
    assert len(main) <= most
    assert not {n.op_type for n in main} & GONE
    inner = [v for n in main.all_nodes() for v in n.outputs if v.name]
    assert [v.name for v in (*graph.values(main), *inner) if graph.is_dynamic(v)] == []
    assert not [note for note in compilation.notes if "known only" in note]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_static_and_computes_the_same(name: str, shared: Path, tmp_path: Path) -> None:
    path = shared / "models" / f"{name}.onnx"
    for inputs, outputs in recorded(shared / "models", name):
        bindings = bindings_of(inputs)
        compilation = canonical(path, bindings.shapes, bindings.values)
        assert_canonical(compilation, MODELS[name])
        file = exported(compilation.model, tmp_path)
        expected, found = runtime(path, inputs), runtime(file, inputs)
        assert list(found) == list(expected) == list(outputs)
        for key in outputs:
            assert found[key].shape == outputs[key].shape
            for oracle in (expected,) if name in SATURATES else (expected, outputs):
                scale = max(float(np.max(np.abs(oracle[key]), initial=0)), 1e-30)
                np.testing.assert_allclose(
                    found[key], oracle[key], rtol=0, atol=TOLERANCE * scale, err_msg=key
                )


def light(name: str) -> Path:
    return Path(onnx.backend.test.__file__).parent / "data" / "light" / f"{name}.onnx"


@pytest.mark.parametrize("name", LIGHT)
def test_a_model_of_constant_weights_is_static(name: str) -> None:
    """These files make every weight by ConstantOfShape; the largest stay so within a small budget."""
    compilation = canonical(light(name), growth=2**27)
    assert_canonical(compilation, LIGHT[name] + 40)
    made = [n for n in compilation.graph if n.op_type == "ConstantOfShape"]
    assert len(compilation.graph) - len(made) <= LIGHT[name]


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet", "light_densenet121"])
def test_a_model_with_weights_of_all_kinds_computes_the_same(name: str, tmp_path: Path) -> None:
    """With its own weights, all equal, such a model tells nothing: random ones take their place."""
    proto = onnx.load(light(name))
    random = np.random.default_rng(0)
    shapes = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    variances = {n.input[4] for n in proto.graph.node if n.op_type == "BatchNormalization"}
    kept = []
    for node in proto.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(d) for d in shapes[node.input[0]])
        fan = max(int(np.prod(shape[1:])), 1)
        array = (
            random.standard_normal(shape) / np.sqrt(fan)
            if len(shape) > 1
            else random.uniform(0.5, 1.5, shape)
        )
        assert node.output[0] not in variances or array.min() > 0
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), node.output[0]))
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in kept]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    proto.ir_version = 8  # weights that are no inputs
    path = tmp_path / "random.onnx"
    path.write_bytes(proto.SerializeToString())
    assert_same_outputs(path, canonical(path), TOLERANCE)
