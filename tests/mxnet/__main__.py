"""Compare outputs of symbols with those that MXNet wrote beside them: python -m tests.mxnet FOLDER.

Every symbol is read, written as ONNX and computed by onnxruntime; then it is planned for this machine, with our storage
types and with those of MXNet, and run by our executor. The exit code is 1 if an output differs by more than 1e-4 of its
maximum.
"""

import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np

from app.cli.submit import beside
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.model.mxnet import params_file
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.report.onnx import export
from app.engine.runtime import oracle
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.limits import Limits
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler

KERNELS = Path(__file__).resolve().parents[2] / "build" / "kernels"
TOLERANCE = 1e-4
SHOWN = ("zoo", "gluon", "mlp", "transformer", "quantized_net", "embedding_")
PLANS = (
    Options(autotune=False, choose="first"),
    Options(autotune=False, choose="first", semantics="mxnet-1.9"),
)
STEPS: Counter[str] = Counter()  # of all programs, by the backend


def difference(expected: np.ndarray, found: np.ndarray) -> float:
    """The largest difference, or infinity where shapes or places that are no numbers differ."""
    if expected.shape != found.shape:
        return np.inf
    expected, found = expected.astype(np.float64), found.astype(np.float64)
    if not np.array_equal(np.isfinite(expected), np.isfinite(found)):
        return np.inf
    finite = np.isfinite(expected)
    largest = float(np.abs(expected[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(expected - found)[finite].max(initial=0.0)) / largest


def outputs_of(symbol: Path, inputs: dict[str, np.ndarray], folder: Path) -> list[np.ndarray]:
    """The outputs of a symbol by onnxruntime, in their order."""
    loaded = expanded(load(symbol, external=beside(symbol)))
    export(loaded.model, folder / "model.onnx")
    run = oracle.runtime(folder / "model.onnx", threads=1, optimized=False)
    taken = {v.name for v in loaded.model.graph.inputs}  # labels, and weights that a gradient does not read
    return [np.asarray(v) for v in run({k: v for k, v in inputs.items() if k in taken}).values()]


def planned_outputs(
    symbol: Path, inputs: dict[str, np.ndarray], options: Options, compiler: Compiler
) -> list[np.ndarray]:
    """The outputs of a symbol by our executor, in their order."""
    loaded = expanded(load(symbol, external=beside(symbol)))
    bindings = Bindings(
        {k: v.shape for k, v in inputs.items() if k in {i.name for i in loaded.model.graph.inputs}}
    )
    compilation = session.canonical(loaded, host(), options, bindings, load_registry())
    names = [v.name for v in compilation.model.graph.outputs]
    program = session.planned(compilation, options)
    STEPS.update(step.choice.implementation.backend for step in program.steps)
    with closing(Executor(program, compiler)) as executor:
        found = executor.run({k: inputs[k] for k in bindings.shapes})
        return [np.array(found[name]) for name in names]


def compare(folder: Path, name: str, compiler: Compiler) -> tuple[float, float]:
    """The largest differences of the outputs of a case: of onnxruntime and of our executor."""
    with np.load(folder / f"{name}.npz") as arrays:
        given = dict(arrays)
    expected = [given.pop(f"output{i}") for i in range(sum(k.startswith("output") for k in given))]
    symbol = folder / f"{name}-symbol.json"
    with tempfile.TemporaryDirectory() as scratch:
        found = outputs_of(symbol, given, Path(scratch))
    ours = [planned_outputs(symbol, given, options, compiler) for options in PLANS]
    if any(len(others) != len(expected) for others in (found, *ours)):
        return np.inf, np.inf
    by_runtime, *by_plan = (
        max(difference(e, f) for e, f in zip(expected, others)) for others in (found, *ours)
    )
    return by_runtime, max(by_plan)


def compare_storage(folder: Path) -> float:
    """The difference of arrays of all storage types."""
    found = params_file.read(folder / "storage.params", "storage", Limits())
    with np.load(folder / "storage-arrays.npz") as arrays:
        assert {n: p.storage.replace("default", "dense") for n, p in found.items()} == {n: n for n in arrays}
        return max(difference(arrays[n], found[n].array) for n in arrays)


def main(folder: Path) -> int:
    """Compare all cases in a folder."""
    names = sorted(p.name.removesuffix("-symbol.json") for p in folder.glob("*-symbol.json"))
    failed = 0
    compiler = Compiler(KERNELS, processes=1)
    for name in names:
        try:
            found, text = compare(folder, name, compiler), ""
        except Exception as error:  # a case that fails is counted, and the others go on
            found, text = (np.inf, np.inf), f"  {type(error).__name__}: {str(error)[:300]}"
        failed += max(found) > TOLERANCE
        if max(found) > TOLERANCE or name.startswith(SHOWN):
            print(
                f"{name}: onnxruntime differs by {found[0]:.3g}, our executor by {found[1]:.3g}{text}",
                flush=True,
            )
    if (folder / "storage.params").exists():
        found = compare_storage(folder)
        failed += found > 0
        print(f"arrays of three storage types: differ by {found:.3g}")
    steps = ", ".join(f"{count} {backend}" for backend, count in STEPS.most_common())
    print(f"steps of our executor: {steps}")
    print(f"{len(names) - failed} of {len(names)} symbols give MXNet's outputs within {TOLERANCE:g}")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
