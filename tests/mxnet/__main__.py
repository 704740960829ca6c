"""Compare outputs of symbols with those that MXNet wrote beside them: python -m tests.mxnet FOLDER.

Every symbol is read, written as ONNX and computed by onnxruntime. The exit code is 1 if an output differs by more than 1e-4 of its maximum.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from app.engine.model.load import load
from app.engine.model.mxnet import params_file
from app.engine.planning.expansion import expanded
from app.engine.report.onnx import export
from app.engine.runtime import oracle
from app.engine.types.limits import Limits

TOLERANCE = 1e-4


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
    parameters = symbol.with_name(symbol.name.replace("-symbol.json", "-0000.params"))
    loaded = expanded(load(symbol, external={"parameters": parameters} if parameters.exists() else {}))
    export(loaded.model, folder / "model.onnx")
    run = oracle.runtime(folder / "model.onnx", threads=1, optimized=False)
    taken = {v.name for v in loaded.model.graph.inputs}  # labels, and weights that a gradient does not read
    return [np.asarray(v) for v in run({k: v for k, v in inputs.items() if k in taken}).values()]


def compare(folder: Path, name: str) -> float:
    """The largest difference of the outputs of a case."""
    with np.load(folder / f"{name}.npz") as arrays:
        given = dict(arrays)
    expected = [given.pop(f"output{i}") for i in range(sum(k.startswith("output") for k in given))]
    with tempfile.TemporaryDirectory() as scratch:
        found = outputs_of(folder / f"{name}-symbol.json", given, Path(scratch))
    if len(found) != len(expected):
        return np.inf
    return max(difference(e, f) for e, f in zip(expected, found))


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
    for name in names:
        try:
            found, text = compare(folder, name), ""
        except Exception as error:  # a case that fails is counted, and the others go on
            found, text = np.inf, f"  {type(error).__name__}: {str(error)[:300]}"
        if found > TOLERANCE:
            failed += 1
            print(f"{name}: differs by {found:.3g}{text}")
        elif name.startswith(("zoo", "gluon", "mlp", "transformer")):
            print(f"{name}: {found:.3g}")
    if (folder / "storage.params").exists():
        found = compare_storage(folder)
        failed += found > 0
        print(f"arrays of three storage types: differ by {found:.3g}")
    print(f"{len(names) - failed} of {len(names)} symbols give MXNet's outputs within {TOLERANCE:g}")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
