"""Libraries of all models on disk: every output byte is the executor's, or the model is refused by name.

`make library-models`. Each model has a process of its own and eight inputs: the recorded ones, and others of the
same shapes. The shared library is planned for two threads and run with one and two; the static program, in a
binary without a C library, is planned for one. Targets are this machine and `cpu-avx2`.
"""

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np

from app.engine.core.registry import load as load_registry
from app.engine.export.library import library
from app.engine.export.static_program import static_program
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import ExportError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from benchmarks.models import FOLDERS, bindings_of, recorded
from tests.conftest import KERNELS
from tests.engine.export.test_library import Array, instance, ran
from tests.engine.export.test_static_program import built
from tests.engine.export.test_static_program import ran as ran_alone

INPUTS, TARGETS, THREADS = 8, ("host", "cpu-avx2"), (1, 2)
LARGEST = 500_000_000  # byte of a file that is exported


def varied(case: Mapping[str, Array], number: int) -> dict[str, Array]:
    """The recorded inputs, or others that the model takes: floats drawn anew, other numbers in another order."""
    random = np.random.default_rng(number)

    def other(array: Array) -> Array:
        if array.dtype.kind == "f":
            return np.asarray(random.standard_normal(array.shape), array.dtype)
        return np.roll(array, number)

    return {k: other(a) if number else np.asarray(a) for k, a in case.items()}


def check(path: Path, target: str) -> str:
    """Description of the libraries of a model.

    Raises:
        AssertionError: a byte differs.
    """
    case, bindings = recorded(path.parent, path.stem)[0][0], Bindings()
    bindings = bindings_of(case)
    compiler = Compiler(KERNELS)
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for threads, form in ((2, "shared"), (1, "static")):
            options = Options(threads=threads, backends=("numba-cpu",), autotune=False)
            canonical = session.canonical(load(path), find(target), options, bindings, load_registry())
            program = session.planned(canonical, options)
            names = [v.name or "" for v in program.compilation.graph.inputs]
            cases = [{n: c[n] for n in names} for c in (varied(case, i) for i in range(INPUTS))]
            start = time.monotonic()
            try:
                if form == "shared":
                    made = library(program, compiler, path.stem)
                else:
                    alone = static_program(program, compiler, path.stem)
            except ExportError as refused:
                return f"refused: {refused.message[:300]}"
            seconds = time.monotonic() - start
            with closing(Executor(program, compiler)) as executor:
                expected = [
                    {k: np.array(a) for k, a in executor.run(dict(inputs)).items()} for inputs in cases
                ]
            if form == "shared":
                (Path(scratch) / "model.so").write_bytes(made.shared)
                native = ctypes.CDLL(str(Path(scratch) / "model.so"))
                for count in THREADS:
                    with instance(native, count) as handle:
                        for inputs, outputs in zip(cases, expected):
                            given = {k: np.ascontiguousarray(a) for k, a in inputs.items()}
                            compare(
                                b"".join(a.tobytes() for a in ran(native, handle, given, outputs)), outputs
                            )
                found.append(f"{len(made.shared)} byte shared, made in {seconds:.1f} s")
            else:
                binary = built(alone, Path(scratch))
                for inputs, outputs in zip(cases, expected):
                    compare(ran_alone(binary, inputs)[0], outputs)
                sizes = alone.metadata["bytes"]
                assert isinstance(sizes, dict)
                found.append(", ".join(f"{k} {sizes[k]}" for k in ("flash", "ram", "stack at most")))
    return f"equal on {INPUTS} inputs; {'; '.join(found)}"


def compare(found: bytes, outputs: Mapping[str, Array]) -> None:
    """Fails where bytes of outputs, one after another, are others."""
    assert found == b"".join(a.tobytes() for a in outputs.values())


def main() -> int:
    """Check all models; 1 if one fails."""
    folders = (*FOLDERS, FOLDERS[0].parent / "zoo" / "small")
    paths = {p.stem: p for folder in folders for p in sorted(folder.glob("*.onnx"))}
    failures = runs = refused = 0
    for path in (p for p in paths.values() if p.stat().st_size <= LARGEST):
        for target in TARGETS:
            command = [sys.executable, "-m", __spec__.name, str(path), target]
            done = subprocess.run(command, capture_output=True, text=True)
            told = done.stdout.strip() or done.stderr.strip().rpartition("\n")[2]
            runs, failures, refused = (
                runs + 1,
                failures + bool(done.returncode),
                refused + ("refused" in told),
            )
            print(f"{path.stem}, {target}: {'FAILED: ' * bool(done.returncode)}{told}", flush=True)
    print(f"{runs} exports: {runs - failures - refused} equal, {refused} refused, {failures} failed")
    return min(failures, 1)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(check(Path(sys.argv[1]), sys.argv[2]))
    else:
        sys.exit(main())
