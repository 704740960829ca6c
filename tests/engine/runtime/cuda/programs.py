"""Small models as programs for `cuda-sm90`, run by the simulator and by the reference."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from app.engine.core.program import Program
from app.engine.core.registry import Registry
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cuda.executor import DeviceExecutor
from app.engine.runtime.oracle import runtime
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, find
from tests.engine.runtime.cuda.devices import SimulatedDevice

Array = np.ndarray[Any, Any]
REGISTRY = load_registry()
OPTIONS, BINDINGS = Options(), Bindings()


def saved(
    folder: Path, text: str, inputs: str, output: str, constants: Mapping[str, Array], opset: int = 21
) -> Path:
    """A model of ONNX text: `inputs` and `output` as in a signature."""
    head = f'<ir_version: 11, opset_import: ["": {opset}]> g ({inputs}) => ({output})'
    proto = onnx.parser.parse_model(f"{head} {{ {text} }}")
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def offering(rows: Iterable[str]) -> Registry:
    """A registry that offers, of the operators of these CUDA rows, no other rows of that backend."""
    names = set(rows)
    known = [r for found in REGISTRY.implementations.values() for r in found if r.name in names]
    ops = {r.op for r in known}
    assert {r.name for r in known} == names, names - {r.name for r in known}
    offered = {
        op: tuple(r for r in found if r.backend != "cuda" or r.op not in ops or r.name in names)
        for op, found in REGISTRY.implementations.items()
    }
    return replace(REGISTRY, implementations=offered)


def planned(
    path: Path,
    options: Options = OPTIONS,
    bindings: Bindings = BINDINGS,
    target: Target | None = None,
    registry: Registry = REGISTRY,
) -> Program:
    """The program of a model for `cuda-sm90`."""
    target = target or find("cuda-sm90")
    compilation = session.canonical(load(path), target, options, bindings, registry)
    return session.planned(compilation, options)


def fallbacks(program: Program) -> list[str]:
    """Steps that run on the host, and why."""
    return [
        f"{s.group.op} {s.group.name}: {program.compilation.plan.require('passed_over').get(s.group.name)}"
        for s in program.steps
        if s.is_host
    ]


def simulated(program: Program, inputs: Mapping[str, Array], *, poison: bool = True) -> dict[str, Any]:
    """Outputs of a program, every kernel simulated; memory that no live value owns is NaN."""
    executor = DeviceExecutor(program, SimulatedDevice(), poison=poison)
    try:
        return executor.run(inputs)
    finally:
        executor.close()


def check(
    path: Path,
    inputs: Mapping[str, Array],
    options: Options = OPTIONS,
    tolerance: float = 1e-5,
    bindings: Bindings = BINDINGS,
    registry: Registry = REGISTRY,
) -> Program:
    """A model has no fallback on `cuda-sm90`, and computes there what onnxruntime computes.

    `tolerance` is a fraction of an output's maximum.
    """
    program = planned(path, options, bindings, registry=registry)
    assert fallbacks(program) == []
    names = {v.name for v in program.compilation.graph.inputs}
    found = simulated(program, {k: v for k, v in inputs.items() if k in names})
    for name, expected in runtime(path, threads=1, optimized=False)(inputs).items():
        scale = max(float(np.max(np.abs(expected), initial=0)), 1e-30)
        np.testing.assert_allclose(
            found[name].astype(np.float64), expected, rtol=0, atol=tolerance * scale, err_msg=name
        )
    return program
