"""From ONNX text or a file to a canonical graph; onnxruntime, unoptimized, as the oracle."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from app.engine.core import pipeline
from app.engine.core.plan import Compilation
from app.engine.core.registry import Registry
from app.engine.core.rewriter import RewriteRule
from app.engine.model.load import load
from app.engine.passes.canonicalize import Canonicalize
from app.engine.passes.infer_types import InferTypes
from app.engine.passes.rewrite_operators import RewriteOperators
from app.engine.report.onnx import export
from app.engine.types.options import Bindings
from app.engine.types.target import PRESETS, Target

Array = np.ndarray[Any, Any]


def saved(text: str, folder: Path, weights: Mapping[str, Array] | None = None) -> Path:
    """A file of the model in the text; `weights` are initializers besides those it states."""
    proto = onnx.parser.parse_model(text)
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def canonical(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, float] | None = None,
    growth: int = 2**30,
    target: Target = PRESETS[0],
    rewrites: tuple[RewriteRule, ...] = (),
) -> Compilation:
    """The canonical graph of a file, rewritten by those rows that are for the target."""
    bindings = Bindings(shapes=shapes or {}, values=values or {})
    registry = Registry({}, {}, rewrites=rewrites)
    started = Compilation(load(path).model, target, registry, bindings=bindings)
    return pipeline.run(started, (InferTypes(), Canonicalize(growth), RewriteOperators(growth)))


def operators(graph: ir.Graph) -> list[str]:
    """Operators in order of execution."""
    return [n.op_type for n in graph]


def runtime(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of a file in onnxruntime, none of its optimizations applied."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def exported(model: ir.Model, folder: Path) -> Path:
    """A file of the model."""
    path = folder / "exported.onnx"
    export(model, path)
    return path


def drawn(path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, Array]:
    """Random values for the float inputs of a file."""
    random = np.random.default_rng(0)
    graph = onnx.load(path).graph
    weights = {t.name for t in graph.initializer}
    found = {}
    for value in graph.input:
        if value.name in weights:
            continue
        declared = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)  # noqa: TID251
        shape = (shapes or {}).get(value.name, declared)
        found[value.name] = random.standard_normal(shape).astype(kind)
    return found


def assert_same_outputs(
    path: Path, compilation: Compilation, tolerance: float = 1e-5, **given: Array
) -> None:
    """The canonical graph computes what the file does, within a fraction of each output's maximum."""
    shapes = dict(compilation.bindings.shapes)
    inputs = {**drawn(path, shapes), **given}
    expected = runtime(path, inputs)
    found = runtime(exported(compilation.model, path.parent), inputs)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        scale = float(np.max(np.abs(array), initial=0)) or 1.0
        np.testing.assert_allclose(found[name], array, rtol=0, atol=tolerance * scale, err_msg=name)
