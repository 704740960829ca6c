"""One operator, run alone: a graph of one node, with inputs given and outputs in the default layout.

The request and the answer are JSON. A tensor is `{dtype, shape, data}`: elements row-major in one flat
list; numbers that are not finite are the strings `NaN`, `Infinity` and `-Infinity`.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from app.engine.core.registry import Implementation, Registry
from app.engine.core.registry import load as load_registry
from app.engine.model.load import FLOOR, load
from app.engine.planning import session
from app.engine.report import decisions
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.oracle import evaluate
from app.engine.runtime.verify import compare
from app.engine.types.errors import InputError, LibraryError, NumericsError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler

Json = dict[str, Any]
Array = np.ndarray[Any, Any]
REPEATS = 5
SAMPLE = 5e-3  # seconds of one sample

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


_NAMELESS = (ir.DataType.UNDEFINED, ir.DataType.STRING)
_DTYPES: Mapping[str, np.dtype[Any]] = {
    **{t.numpy().name: t.numpy() for t in ir.DataType if t not in _NAMELESS},
    "string": np.dtype(object),
}


def run_operator(request: Mapping[str, Any], options: Options, folder: Path, kernels: Path) -> Json:
    """Run the operator that a request describes; its outputs, and what computed them.

    Args:
        request: `op`, `domain`, `opset`, `attributes`, `inputs` (a tensor or null each, `constant` where
            it is a weight), `outputs` (how many) and `implementation` (a row to take, or null).
        options: see Options; `backends` says which may run it.
        folder: for the model in between.
        kernels: folder of compiled kernels.

    Raises:
        InputError: a tensor or attribute does not fit.
        GraphError: there is no such operator, or its operands do not fit.
    """
    arrays = [None if t is None else tensor(t, f"/inputs/{i}") for i, t in enumerate(request["inputs"])]
    model = _model(request, arrays)
    path = folder / "operator.onnx"
    path.write_bytes(model.SerializeToString())
    registry = _narrowed(load_registry(), request["op"], request.get("implementation"))
    compiler = Compiler(kernels)
    loaded = load(path)
    original = loaded.model.clone()
    if options.choose == "auto":  # one operator is no model: what is asked about is the first that has it
        options = replace(options, choose="first")
    compilation = session.canonical(loaded, host(), options, Bindings(), registry)
    given = {f"x{i}": a for i, a in enumerate(arrays) if a is not None and not _constant(request, i)}
    free = {v.name for v in compilation.graph.inputs}
    fed = {k: v for k, v in given.items() if k in free}
    compilation, program = session.runnable(
        session.tuned(compilation, options, compiler), options, compiler, fed
    )
    with closing(Executor(program, compiler)) as executor:
        outputs = executor.run(fed)
        executor.feed(fed)
        seconds = _seconds(executor)
    return {
        "outputs": [{"name": name, **tensor_json(value)} for name, value in outputs.items()],
        "seconds": seconds,
        "difference": _difference(original, given, outputs, options),
        "decisions": decisions.decisions_json(program.compilation)["decisions"],
        "notes": [*loaded.notes, *program.compilation.notes],
    }


def try_operator(op: str, *inputs: Any, kernels: Path | None = None, **attributes: Any) -> list[Any]:
    """Outputs of one operator of the default domain, computed by the first implementation that applies.

    Args:
        op: operator type, such as `Softmax`.
        inputs: arrays; None where an optional input is left out.
        kernels: folder of compiled kernels; a temporary one by default.
        attributes: of the node.

    Raises:
        EngineError: there is no such operator, or its operands do not fit.
    """
    arrays = [None if a is None else np.asarray(a) for a in inputs]
    request = {
        "op": op,
        "attributes": attributes,
        "inputs": [None if a is None else tensor_json(a) for a in arrays],
    }
    with tempfile.TemporaryDirectory() as folder:
        answer = run_operator(
            request, Options(autotune=False), Path(folder), kernels or Path(folder) / "kernels"
        )
    return [tensor(output, f"/outputs/{i}") for i, output in enumerate(answer["outputs"])]


def tensor(given: Mapping[str, Any], pointer: str) -> Array:
    """The array of a tensor in JSON.

    Raises:
        InputError: dtype, shape and data do not fit each other.
    """
    shape = tuple(given["shape"])
    data = given["data"]
    if given["dtype"] not in _DTYPES:
        raise InputError(
            f"dtype {given['dtype']!r} is unknown; there are {', '.join(_DTYPES)}", pointer=f"{pointer}/dtype"
        )
    kind = _DTYPES[given["dtype"]]
    if len(data) != math.prod(shape):
        raise InputError(
            f"shape {list(shape)} has {math.prod(shape)} elements, data has {len(data)}",
            pointer=f"{pointer}/data",
        )
    try:
        values = [_NOT_FINITE.get(v, v) if isinstance(v, str) and kind.kind != "O" else v for v in data]
        return np.array(values, kind).reshape(shape)
    except (ValueError, TypeError, OverflowError) as cause:
        raise InputError(f"data does not fit {given['dtype']}: {cause}", pointer=f"{pointer}/data") from cause


def _constant(request: Mapping[str, Any], i: int) -> bool:
    return bool(request["inputs"][i].get("constant", False))


def _model(request: Mapping[str, Any], arrays: Sequence[Array | None]) -> onnx.ModelProto:
    domain, op = request.get("domain", ""), request["op"]
    opset = request.get("opset") or FLOOR
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError as cause:
        raise InputError(
            f"operator {op!r} of domain {domain or 'ai.onnx'!r} is not in opset {opset}", pointer="/op"
        ) from cause
    values = [
        None if a is None else ir.Value(name=f"x{i}", shape=ir.Shape(a.shape), type=ir.TensorType(_type(a)))
        for i, a in enumerate(arrays)
    ]
    attributes = [_attribute(schema, name, value) for name, value in request.get("attributes", {}).items()]
    count = request.get("outputs") or max(schema.min_output, 1)
    node = ir.Node(domain, op, values, attributes, num_outputs=count, name=op, version=None)
    for i, value in enumerate(node.outputs):
        value.name = f"y{i}"
    weights = []
    for i, (given, array) in enumerate(zip(values, arrays)):
        if given is not None and array is not None and _constant(request, i):
            given.const_value = ir.tensor(array, name=given.name)
            weights.append(given)
    inputs = [v for v in values if v is not None and v not in weights]
    imports = {"": FLOOR, domain: opset}
    body = ir.Graph(inputs, node.outputs, nodes=[node], initializers=weights, opset_imports=imports, name=op)
    model = ir.Model(body, ir_version=10)
    proto = ir.to_proto(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True, strict_mode=True)
    except Exception as cause:  # the inference raises whatever its C++ code throws
        raise InputError(f"{op}: {' '.join(str(cause).split())[:300]}", pointer="/inputs") from cause
    return inferred


def _type(array: Array) -> ir.DataType:
    return ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype)


def _attribute(schema: Any, name: str, value: object) -> ir.Attr:
    """An attribute of the type that the operator's schema declares.

    Raises:
        InputError: the operator has no such attribute, or the value is of another type.
    """
    pointer = f"/attributes/{name}"
    if name not in schema.attributes:
        known = ", ".join(sorted(schema.attributes)) or "none"
        raise InputError(f"{schema.name} has no attribute {name!r}; it has {known}", pointer=pointer)
    kind = ir.AttributeType(int(schema.attributes[name].type.value))
    try:
        made: ir.Attr = _MAKERS[kind](name, value)
    except KeyError as cause:
        raise InputError(
            f"attribute {name!r}: a {kind.name} cannot be given here", pointer=pointer
        ) from cause
    except (TypeError, ValueError) as cause:
        raise InputError(
            f"attribute {name!r}: expected {kind.name}, found {value!r}", pointer=pointer
        ) from cause
    return made


def _integer(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return int(value)


_MAKERS: Mapping[ir.AttributeType, Any] = {
    ir.AttributeType.INT: lambda n, v: ir.AttrInt64(n, _integer(v)),
    ir.AttributeType.FLOAT: lambda n, v: ir.AttrFloat32(n, float(v)),
    ir.AttributeType.STRING: lambda n, v: ir.AttrString(n, str(v)),
    ir.AttributeType.INTS: lambda n, v: ir.AttrInt64s(n, [_integer(i) for i in v]),
    ir.AttributeType.FLOATS: lambda n, v: ir.AttrFloat32s(n, [float(i) for i in v]),
    ir.AttributeType.STRINGS: lambda n, v: ir.AttrStrings(n, [str(i) for i in v]),
    ir.AttributeType.TENSOR: lambda n, v: ir.AttrTensor(n, ir.tensor(tensor(v, f"/attributes/{n}"))),
}


def _narrowed(registry: Registry, op: str, name: str | None) -> Registry:
    """The registry without other rows of the operator than the named one, where one is named.

    Raises:
        InputError: there is no row of that name.
    """
    if name is None:
        return registry
    rows: tuple[Implementation, ...] = tuple(r for rs in registry.implementations.values() for r in rs)
    kept = [r for r in rows if r.name == name]
    if not kept:
        known = sorted(r.name for r in rows if r.op == op) or sorted(r.name for r in rows)
        raise InputError(
            f"no implementation is called {name!r}; of {op} there are {', '.join(known)}",
            pointer="/implementation",
        )
    table = {
        key: tuple(r for r in found if r.name == name or r.op not in (op, "*", kept[0].op))
        for key, found in registry.implementations.items()
    }
    return replace(registry, implementations=table)


def _seconds(executor: Executor) -> float:
    """Seconds of one run without copies of inputs and outputs: the least of several samples."""
    executor.step()
    found = []
    for _ in range(REPEATS):
        times, started = 0, time.perf_counter()
        while times == 0 or time.perf_counter() - started < SAMPLE:
            executor.step()
            times += 1
        found.append((time.perf_counter() - started) / times)
    return min(found)


def _difference(
    original: ir.Model, given: Mapping[str, object], outputs: Mapping[str, object], options: Options
) -> float | None:
    """The largest relative difference from the reference evaluator; None where it cannot tell."""
    try:
        rows = compare(evaluate(original, given), outputs, options.tolerance)
    except (NumericsError, LibraryError):
        return None
    found = max((row.max_rel for row in rows), default=0.0)
    return found if math.isfinite(found) else None


def tensor_json(value: object) -> Json:
    """A tensor in JSON, the inverse of `tensor`."""
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        return {"dtype": "string", "shape": list(array.shape), "data": [str(v) for v in array.reshape(-1)]}
    name = array.dtype.name
    data = array.astype(np.float64) if array.dtype.kind not in "biuf" else array
    return {
        "dtype": name,
        "shape": list(array.shape),
        "data": [_number(v) for v in data.reshape(-1).tolist()],
    }


def _number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
