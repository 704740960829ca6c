"""Libraries of all models on disk and of the samples: every output byte is the executor's, or it is refused.

`make library-models`. Each model has a process of its own and eight inputs: the recorded ones, and others of the
same shapes. The shared library is planned for two threads and run with one and two; the static program, in a
binary without a C library, is planned for one. Targets are this machine and `cpu-avx2`; libraries for 64-bit ARM
run with two threads in an emulator. Models that need few bytes come first; names, `--targets`, `--forms` and
`--inputs` choose some, `--models` takes other folders. The difference told is that from the recorded outputs.
"""

import argparse
import ctypes
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path

import numpy as np

from app import samples
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.export.image import described, rejections
from app.engine.export.library import library
from app.engine.export.static_program import static_program
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import tensors
from app.engine.types.errors import EngineError, ExportError
from app.engine.types.map_type import ScoreMaps
from app.engine.types.options import Bindings, Options
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from benchmarks.models import FOLDERS, bindings_of, recorded
from tests.conftest import KERNELS
from tests.engine.export.test_arm_library import emulated, together, unpacked_in
from tests.engine.export.test_library import Array, check_needs, instance, ran
from tests.engine.export.test_static_program import built
from tests.engine.export.test_static_program import ran as ran_alone

INPUTS, THREADS = 8, (1, 2)
TARGETS, FORMS = ("host", "cpu-avx2"), ("shared", "static")
PROCESSORS = {"cpu-neon": "cortex-a72", "cpu-neon-dotprod": "max"}  # as the emulator knows them
LARGEST = 700_000_000  # byte of a file that is exported


def varied(case: Mapping[str, Array], number: int) -> dict[str, Array]:
    """The recorded inputs, or others that the model takes: floats drawn anew, other numbers in another order."""
    random = np.random.default_rng(number)

    def other(array: Array) -> Array:
        if array.dtype.kind == "f":
            return np.asarray(random.standard_normal(array.shape), array.dtype)
        return np.roll(array, number)

    return {k: other(a) if number else np.asarray(a) for k, a in case.items()}


def check(path: Path, target: str, form: str, count: int) -> tuple[str, str]:
    """State of a model, and the description of its library or why there is none.

    Raises:
        AssertionError: a byte differs.
    """
    case, recorded_outputs, bindings = given(path)
    threads = 2 if form == "shared" else 1
    options = Options(threads=threads, backends=("numba-cpu",), autotune=False, export=("c",))
    canonical = session.canonical(load(path), find(target), options, bindings, load_registry())
    program = session.planned(canonical, options)
    if found := rejections(program):
        return "refused", "; ".join(found)
    compiler = Compiler(KERNELS)
    try:
        with closing(Executor(program, compiler)) as executor, tempfile.TemporaryDirectory() as scratch:
            names = [v.name or "" for v in program.compilation.graph.inputs]
            first = case or {k: np.asarray(v) for k, v in tensors(canonical, bindings, seed=0).items()}
            cases = [{n: c[n] for n in names} for c in (varied(first, i) for i in range(count))]
            told_of = {v.name or "": described(v) for v in program.compilation.graph.outputs}
            expected = [
                {k: np.array(numbers(a, told_of[k])) for k, a in executor.run(dict(inputs)).items()}
                for inputs in cases
            ]
            told = COMPARED[form](program, compiler, list(zip(cases, expected)), Path(scratch))
            return "equal", f"{told}, difference {difference(expected[0], recorded_outputs)}"
    except ExportError as refused:
        return "refused", refused.message


def numbers(output: object, told: Mapping[str, object]) -> Array:
    """Numbers that a library gives of an output: scores of maps, indices of names."""
    if isinstance(output, ScoreMaps):
        return output.scores
    names = told.get("names")
    if isinstance(names, list):
        return np.vectorize(names.index, otypes=[np.int64])(np.asarray(output)).astype(str(told["dtype"]))
    return np.asarray(output)


def given(path: Path) -> tuple[dict[str, Array], dict[str, Array], Bindings]:
    """The first recorded inputs and outputs, none of a sample, and the shapes that a model is planned for."""
    if not path.with_suffix(".io.npz").exists():
        return {}, {}, Bindings()
    case, outputs = recorded(path.parent, path.stem)[0]
    return case, outputs, bindings_of(case)


def difference(found: Mapping[str, Array], exact: Mapping[str, Array]) -> str:
    """Largest difference of outputs from those recorded, in parts of each one's largest number."""
    pairs = [(np.asarray(a, float), np.asarray(exact[k], float)) for k, a in found.items() if k in exact]
    told = [float(np.abs(a - b).max() / (np.abs(b).max() or 1)) for a, b in pairs if b.size]
    return f"{max(told):.1e}" if told else "not recorded"


Pairs = Sequence[tuple[dict[str, Array], dict[str, Array]]]


def compared_shared(program: Program, compiler: Compiler, pairs: Pairs, scratch: Path) -> str:
    """Compare a shared library with what the executor gives; the description of it."""
    start = time.monotonic()
    made = library(program, compiler, "model")
    seconds = time.monotonic() - start
    told = f"{len(pairs)} inputs, {len(made.shared.content)} byte, made in {seconds:.1f} s"
    if made.metadata["architecture"] == "aarch64":
        at = unpacked_in(scratch, made)
        for inputs, outputs in pairs:
            compare(emulated(at, inputs, PROCESSORS[program.compilation.target.name]), outputs)
        return told
    (scratch / "model.so").write_bytes(made.shared.content)
    check_needs(scratch / "model.so")
    native = ctypes.CDLL(str(scratch / "model.so"))
    for count in THREADS:
        with instance(native, count) as handle:
            for inputs, outputs in pairs:
                contiguous = {k: np.ascontiguousarray(a) for k, a in inputs.items()}
                found = ran(native, handle, contiguous, outputs)
                compare(b"".join(a.tobytes() for a in found), outputs)
    return told


def compared_static(program: Program, compiler: Compiler, pairs: Pairs, scratch: Path) -> str:
    """The same of a static program."""
    alone = static_program(program, compiler, "model")
    binary = built(alone, scratch)
    for inputs, outputs in pairs:
        compare(ran_alone(binary, inputs)[0], outputs)
    sizes = alone.metadata["bytes"]
    assert isinstance(sizes, dict)
    told = ", ".join(f"{k} {sizes[k]}" for k in ("flash", "ram", "stack at most"))
    return f"{len(pairs)} inputs, {told}"


COMPARED = {"shared": compared_shared, "static": compared_static}


def compare(found: bytes, outputs: Mapping[str, Array]) -> None:
    """Fails where bytes of outputs, one after another, are others."""
    assert found == together(outputs), "a byte differs"


def paths(folder: Path, held_out: Sequence[Path]) -> list[Path]:
    """Files, small ones first: those of the folders held out, else ours; samples are built in a folder."""
    if not held_out:
        folder.mkdir()
        for name in samples.SAMPLES:
            (folder / f"{name}.onnx").write_bytes(samples.build(name))
    folders = held_out or (folder, FOLDERS[0].parent / "zoo" / "small", *FOLDERS)
    found = [p for each in folders for p in each.glob("*.onnx") if p.stat().st_size <= LARGEST]
    return sorted(found, key=lambda p: p.stat().st_size)


def main(line: Sequence[str] | None = None) -> int:
    """Check the models; 1 if one fails."""
    parser = argparse.ArgumentParser(
        prog="tests.engine.export.every_model", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--targets", nargs="*", default=TARGETS)
    parser.add_argument("--models", type=Path, nargs="*", default=(), help="folders instead of ours")
    parser.add_argument("--forms", nargs="*", default=FORMS)
    parser.add_argument("--inputs", type=int, default=INPUTS)
    arguments = parser.parse_args(line)
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        found = paths(Path(folder) / "samples", arguments.models)
        chosen = [p for p in found if p.stem in arguments.names or not arguments.names]
        for path, form, target in itertools.product(chosen, arguments.forms, arguments.targets):
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                try:
                    state, told = pool.submit(check, path, target, form, arguments.inputs).result()
                except (AssertionError, EngineError, BrokenProcessPool) as cause:
                    state, told = "FAILED", f"{type(cause).__name__}: {cause}"
            counts[state] += 1
            print(f"{path.parent.name}/{path.stem}, {target}, {form}: {state}: {told}", flush=True)
    print(", ".join(f"{n} {state}" for state, n in counts.items()))
    return min(counts["FAILED"], 1)


if __name__ == "__main__":
    sys.exit(main())
