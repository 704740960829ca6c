"""Small models as programs for `cuda-sm90`, run by the simulator and by the reference."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from app.engine import session
from app.engine.cuda.execute import DeviceExecutor
from app.engine.load import load
from app.engine.options import Bindings, Options
from app.engine.oracle import runtime
from app.engine.program import Program
from app.engine.registry import load as load_registry
from app.engine.target import Target, find
from tests.engine.cuda.devices import SimulatedDevice

Array = np.ndarray[Any, Any]
REGISTRY = load_registry()
OPTIONS, BINDINGS = Options(), Bindings()


def saved(folder: Path, text: str, inputs: str, output: str, constants: Mapping[str, Array]) -> Path:
    """A model of ONNX text: `inputs` and `output` as in a signature."""
    head = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({output})'
    proto = onnx.parser.parse_model(f"{head} {{ {text} }}")
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


def planned(
    path: Path, options: Options = OPTIONS, bindings: Bindings = BINDINGS, target: Target | None = None
) -> Program:
    """The program of a model for `cuda-sm90`."""
    target = target or find("cuda-sm90")
    compilation = session.canonical(load(path), target, options, bindings, REGISTRY)
    return session.planned(compilation, options)


def fallbacks(program: Program) -> list[str]:
    """Steps that run on the host, and why."""
    return [
        f"{s.group.op} {s.group.name}: {program.compilation.passed_over.get(s.group.name)}"
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
) -> Program:
    """A model has no fallback on `cuda-sm90`, and computes there what onnxruntime computes."""
    program = planned(path, options, bindings)
    assert fallbacks(program) == []
    names = {v.name for v in program.compilation.graph.inputs}
    found = simulated(program, {k: v for k, v in inputs.items() if k in names})
    for name, expected in runtime(path, threads=1, optimized=False)(inputs).items():
        scale = max(float(np.max(np.abs(expected), initial=0)), 1e-30)
        np.testing.assert_allclose(
            found[name].astype(np.float64), expected, rtol=0, atol=tolerance * scale, err_msg=name
        )
    return program
