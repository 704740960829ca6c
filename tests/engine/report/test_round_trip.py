"""Models of every kind, loaded, canonicalized and written again: the same structure, the same numbers.

A sample in every run; `python -m tests.engine.report.test_round_trip` takes all and prints a line each.
"""

import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report.onnx import export
from app.engine.report.opset import at_opset
from app.engine.types.errors import OpsetError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS
from benchmarks.models import bindings_of, recorded
from tests.engine.canonical import runtime

SAMPLE = (
    "models/mnist_8", "models/gcn", "models/mtcnn_pnet", "models/silero_vad_v6",
    "models/chars2vec_en300_loop", "zoo/small/gcn_scatter", "zoo/small/stft_mel_cnn", "zoo/small/lama_ffc",
)  # fmt: skip
# Operators that are left beside the core operators, of the models that have any.
OUTSIDE = {
    "models/tashkeel_rawi_v3_int8": {"DynamicQuantizeLSTM"},
    "zoo/small/lightgbm_clf": {"TreeEnsembleClassifier"},
    "zoo/small/sk_rf": {"TreeEnsembleClassifier"},
    "zoo/small/sk_rf_zipmap": {"TreeEnsembleClassifier", "ZipMap"},
    "zoo/small/xgboost_reg": {"TreeEnsembleRegressor"},
}
TOLERANCE = 1e-4  # of an output's maximum; canonicalization folds constants


def canonical(path: Path, bindings: Bindings) -> Compilation:
    """The canonical graph, before any backend has a say: the only one rewrites nothing."""
    options = Options(timings="predicted", backends=("reference",))
    return session.canonical(load(path), PRESETS[0], options, bindings, load_registry())


def structure(compilation: Compilation) -> list[tuple[str, tuple[str, ...], tuple[str, ...], str]]:
    """Nodes with operands, results and attributes, whatever their order; the bytes of weights."""
    found = []
    for node in compilation.graph.all_nodes():
        attributes = {
            k: a.as_graph().name if a.type.name == "GRAPH" else str(a.value)
            for k, a in node.attributes.items()
        }
        read = tuple((v.name or "") if v is not None else "" for v in node.inputs)
        made = tuple(v.name or "" for v in node.outputs)
        found.append((node.op_type, read, made, str(sorted(attributes.items()))))
    found.sort()  # the order of two nodes that do not read each other is not in the graph
    for name, value in sorted(compilation.graph.initializers.items()):
        assert value.const_value is not None
        found.append(("", (name,), (), str(hash(value.const_value.tobytes()))))
    return found


def check(data: Path, name: str, folder: Path) -> str:
    """Assert that a model comes back; tells in which opset it could be written, too."""
    path = data / f"{name}.onnx"
    runs = recorded(path.parent, path.name.removesuffix(".onnx"))
    inputs, _ = next(iter(runs))
    bindings = bindings_of(inputs)
    first = canonical(path, bindings)
    assert {node.op for node in first.outside_core} == OUTSIDE.get(name, set())
    written = folder / "written.onnx"
    export(first.model, written)
    onnx.checker.check_model(str(written), full_check=True)
    open_inputs = {k: v for k, v in inputs.items() if k not in bindings.values}
    second = canonical(written, Bindings({k: v.shape for k, v in open_inputs.items()}, bindings.values))
    assert structure(second) == structure(first)
    compare(path, written, inputs)
    version = {e.domain: e.version for e in onnx.load(path, load_external_data=False).opset_import}.get("")
    if version is None or version < 7:
        return "has no opset of its own"
    try:
        export(at_opset(first.model, version), folder / "original.onnx")
    except OpsetError as error:
        return f"refused in its own opset: {error.message}"
    onnx.checker.check_model(str(folder / "original.onnx"), full_check=True)
    compare(path, folder / "original.onnx", inputs)
    return f"also in its own opset {version}"


def compare(original: Path, written: Path, inputs: dict[str, np.ndarray]) -> None:  # type: ignore[type-arg]
    expected, found = runtime(original, inputs), runtime(written, inputs)
    assert list(found) == list(expected)
    for name, array in expected.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fc":
            np.testing.assert_equal(found[name], array)
            continue
        scale = float(np.max(np.abs(array[np.isfinite(array)]), initial=0)) or 1.0
        np.testing.assert_allclose(found[name], array, rtol=0, atol=TOLERANCE * scale, err_msg=name)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_model_comes_back(shared: Path, tmp_path: Path, name: str) -> None:
    check(shared, name, tmp_path)


def main(data: Path) -> int:
    """Check all models; the number of failures."""
    failures = 0
    for path in sorted([*data.glob("models/*.onnx"), *data.glob("zoo/small/*.onnx")]):
        name = str(path.relative_to(data)).removesuffix(".onnx")
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{name}: the same, {check(data, name, Path(folder))}", flush=True)
            except Exception as error:
                failures += 1
                print(f"{name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
                traceback.print_exc(limit=-2)
    return failures


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
