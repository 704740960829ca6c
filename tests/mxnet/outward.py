"""Write models as symbols, and compare what MXNet computes of them: make test-mxnet.

    python -m tests.mxnet.outward write FOLDER MODELS...
    (in MXNet's environment) python tests/mxnet/run.py FOLDER
    python -m tests.mxnet.outward check FOLDER [all]

Of each model FOLDER gets NAME-symbol.json, NAME-0000.params, NAME.npz with the inputs and NAME.expected.npz with
the outputs of onnxruntime; MXNet adds NAME.found.npz. The check is of those, and of the symbol read back and
run by onnxruntime. Models that have no spelling are listed with the reasons. Those that round activations to 8 bits
are compared from one rounding to the next, see `tests.mxnet.rounded`: FOLDER also has NAME.onnx and the names of
what is rounded, NAME.rounded.json.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from app.engine.entry.symbols import to_symbol
from app.engine.runtime import oracle
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings
from tests.mxnet import rounded
from tests.mxnet.__main__ import TOLERANCE, difference, outputs_of
from tests.mxnet.graphs import graphs

HALF = 1e-5  # of the largest number: how far from a half one may be that is rounded to the next step


def models(places: list[str]) -> Iterator[tuple[Path, dict[str, np.ndarray]]]:
    """ONNX files, those of folders too, with the inputs beside them; without any, the small graphs of the suite."""
    for place in map(Path, places):
        for path in sorted(place.glob("*.onnx")) if place.is_dir() else [place]:
            if path.with_suffix(".io.npz").exists():
                yield path, inputs_of(path)
    with tempfile.TemporaryDirectory() as folder:
        for name, model, inputs in () if places else graphs():
            onnx.save(model, Path(folder) / f"{name}.onnx")
            yield Path(folder) / f"{name}.onnx", inputs


def inputs_of(path: Path) -> dict[str, np.ndarray]:
    """Inputs beside a model, of its first case."""
    with np.load(path.with_suffix(".io.npz"), allow_pickle=False) as arrays:
        found = {
            k.removeprefix("case0__"): arrays[k] for k in arrays if not k.startswith("case") or "case0__" in k
        }
    return {k.removeprefix("in__"): v for k, v in found.items() if k.startswith("in__")}


def write(path: Path, inputs: dict[str, np.ndarray], folder: Path) -> str:
    """Write one model; the reason where it has no spelling."""
    name = path.stem
    bindings = Bindings(shapes={k: v.shape for k, v in inputs.items()})
    try:
        written = to_symbol(path, {}, bindings)
    except EngineError as error:
        return f"{error.code}: {error.message}"
    expected = oracle.runtime(path, threads=1, optimized=False)(inputs)
    written.save(folder / f"{name}-symbol.json", folder / f"{name}-0000.params")
    kept = {k: v if v.shape else v.reshape(1) for k, v in inputs.items()}
    np.savez(folder / f"{name}.npz", **kept)
    np.savez(folder / f"{name}.expected.npz", **{f"output{i}": v for i, v in enumerate(expected.values())})
    model = onnx.load(path)
    if names := rounded.values(model, folder / f"{name}-symbol.json"):
        (folder / f"{name}.rounded.json").write_text(json.dumps(names))
        onnx.save(model, folder / f"{name}.onnx")
    return ""


def arrays_of(path: Path) -> list[np.ndarray]:
    """Numbered outputs; a scalar is a list of one, as MXNet has it."""
    with np.load(path) as arrays:
        return [
            np.atleast_1d(arrays[f"output{i}"]) for i in range(sum(k.startswith("output") for k in arrays))
        ]


def check(folder: Path, name: str) -> tuple[float, float, str]:
    """The largest differences of MXNet, and of the symbol read back, from onnxruntime on the model; remarks."""
    expected, found = arrays_of(folder / f"{name}.expected.npz"), arrays_of(folder / f"{name}.found.npz")
    with np.load(folder / f"{name}.npz") as arrays, tempfile.TemporaryDirectory() as scratch:
        back = outputs_of(folder / f"{name}-symbol.json", dict(arrays), Path(scratch))
    after, returned = difference_of(expected, found), difference_of(expected, back)
    if not (folder / f"{name}.rounded.json").exists():
        return after, returned, ""
    between, expected = check_rounded(folder, name)
    text = (
        f"  ({after:.3g} and {returned:.3g} end to end; {between.next_step} of {between.count} numbers are rounded "
        f"to the next step, at most {between.farthest:.3g} off)"
    )
    # The symbol read back rounds where MXNet does, so it may be as far from onnxruntime, and no farther.
    excess = returned if returned > after else 0.0
    return (difference_of(expected, found) if between.farthest <= HALF else np.inf), excess, text


def check_rounded(folder: Path, name: str) -> tuple[rounded.Rounded, list[np.ndarray]]:
    """What MXNet rounded, and the outputs that follow from it."""
    names = json.loads((folder / f"{name}.rounded.json").read_text())
    with np.load(folder / f"{name}.found.npz") as arrays:
        given = {n: arrays[f"rounded{i}"] for i, n in enumerate(names)}
    # The canonical graph keeps float32 where a value of float16 is only read again.
    given = {n: a for n, a in given.items() if a.dtype != np.float32}
    with np.load(folder / f"{name}.npz") as arrays:
        found = rounded.compared(onnx.load(folder / f"{name}.onnx"), dict(arrays), given)
    return found, [np.atleast_1d(a) for a in found.outputs]


def difference_of(expected: list[np.ndarray], found: list[np.ndarray]) -> float:
    """The largest difference of any output; infinity where there are others."""
    if len(expected) != len(found):
        return np.inf
    return max(difference(e, f) for e, f in zip(expected, found))


def main(command: str, folder: Path, places: list[str]) -> int:
    """Carry out a command; the exit code."""
    failed = 0
    if command == "write":
        folder.mkdir(parents=True, exist_ok=True)
        for path, inputs in models(places):
            reason = write(path, inputs, folder)
            if reason or places:
                print(f"{path.stem}: {reason or 'written'}", flush=True)
        return 0
    names = sorted(p.name.removesuffix("-symbol.json") for p in folder.glob("*-symbol.json"))
    for name in names:
        try:
            *found, text = check(folder, name)
        except (EngineError, OSError) as error:  # a model that fails is counted, and the others go on
            found, text = [np.inf, np.inf], f"  {type(error).__name__}: {str(error)[:300]}"
        failed += max(found) > TOLERANCE
        if max(found) > TOLERANCE or places:
            print(f"{name}: MXNet differs by {found[0]:.3g}, the round trip by {found[1]:.3g}{text}")
    print(f"{len(names) - failed} of {len(names)} models give their outputs in MXNet and read back")
    return 1 if failed or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
