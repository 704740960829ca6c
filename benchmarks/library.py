"""`make bench-library`: the program as a library beside the executor of the service and onnxruntime.

Every model and thread count has a process of its own, in which all take turns on the same cores.
`executor` and the library run on memory that holds the inputs already, its weights `mapped` or `copied`;
`wheel`, `service`, `operator` (the library in a session of onnxruntime) and `onnxruntime` (on the original)
are whole calls from Python with arrays in and out. Milliseconds are the tenth percentile over the rounds, the
first two ratios those of these percentiles, the other two medians of round by round. `create` is what loading
the library and making an instance takes in a new process, weights mapped; `first` what importing the module
and the first result take there, beyond numpy's import: medians in milliseconds. `export` is what writing the
archive for C takes of a planned program whose kernels are compiled, in seconds. `bytes` says whether every
output of the library and of the operator has the executor's bytes.
"""

import argparse
import ctypes
import importlib.util
import io
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table

from app.engine.core.registry import load as load_registry
from app.engine.export.artifacts import write_libraries
from app.engine.export.custom_operator import graph
from app.engine.export.library import Library, library
from app.engine.export.wheel import module_name, wheel
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.benchmark import keep_to, pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import tensors
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.latency import in_own_process
from benchmarks.paired import SAMPLE, SETTLING, in_turn
from benchmarks.peers import onnxruntime_peer
from benchmarks.row import Request, recorded_inputs

COLUMNS = ("executor", "mapped", "copied", "service", "wheel", "operator", "onnxruntime")
STARTS = 5  # processes of which `create` and `first` are the medians
_CREATE = """
import ctypes, sys, time
path, threads, _ = sys.argv[1:]
start = time.perf_counter()
handle = ctypes.c_void_p()
status = ctypes.CDLL(path).stowplan_create(ctypes.byref(handle), int(threads), 0)
print(time.perf_counter() - start)
sys.exit(status)
"""
_FIRST = """
import importlib, pathlib, sys, time
import numpy as np
path, threads, given = sys.argv[1:]
inputs = dict(np.load(given))
sys.path.insert(0, str(pathlib.Path(path).parent))
start = time.perf_counter()
module = importlib.import_module(pathlib.Path(path).name)
module.InferenceSession(int(threads)).run(None, inputs)
print(time.perf_counter() - start)
"""
RATIOS = ("mapped / executor", "copied / executor", "onnxruntime / wheel", "onnxruntime / operator")
STARTING = ("create", "first", "export")
MAPPED, COPIED = 0, 1


def measure(request: Request) -> dict[str, Any]:
    """Milliseconds of each column, and whether bytes are equal."""
    options = replace(request.options, threads=request.threads, backends=("numba-cpu",), export=("c",))
    case = recorded_inputs(request.path)
    bindings = models.bindings_of(case) if case else Bindings()
    compilation = session.canonical(load(request.path), host(), options, bindings, load_registry())
    inputs = case or {k: np.asarray(v) for k, v in tensors(compilation, bindings, seed=0).items()}
    fed = {v.name or "": inputs[v.name or ""] for v in compilation.graph.inputs}
    compiler = Compiler(request.kernels)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cores = stack.enter_context(pinned(request.threads))
        program = session.planned(session.tuned(compilation, options, compiler), options)
        executor = stack.enter_context(closing(Executor(program, compiler, cores=cores)))
        start = time.perf_counter()
        write_libraries(program, compiler, scratch, request.path.stem)
        export = time.perf_counter() - start
        made = library(program, compiler, request.path.stem)
        module = _module(made, scratch)
        (scratch / "model.so").write_bytes(made.shared.content)
        native = ctypes.CDLL(str(scratch / "model.so"))
        handles = [_created(native, request.threads, flags) for flags in (MAPPED, COPIED)]
        wheel_session = stack.enter_context(closing(module.InferenceSession(request.threads)))
        operator = _session(made, scratch, request.threads)
        peer = onnxruntime_peer(request.path, request.threads)
        expected = executor.run(fed)
        equal = [_equal(native, handle, fed, expected) for handle in handles]
        answers = zip(operator.run(None, fed), expected.values(), strict=True)
        equal += [a.tobytes() == np.asarray(b).tobytes() for a, b in answers]
        executor.feed(fed)
        works: list[Callable[[], object]] = [
            executor.step,
            *(partial(native.stowplan_run, handle) for handle in handles),
            lambda: executor.run(fed),
            lambda: wheel_session.run(None, fed),
            lambda: operator.run(None, fed),
            lambda: peer.run(inputs),
        ]
        keep = partial(keep_to, cores[:1])
        # Two columns share the executor's memory, so that caches hold it more often than the others': each
        # turn begins with some runs outside the clock.
        settling = SETTLING if request.threads > 1 else 10 * SAMPLE
        samples = in_turn(works, request.seconds, before=keep, settling=settling)
        for handle in handles:
            native.stowplan_destroy(handle)
        np.savez(scratch / "given.npz", **fed)
        numbers = (str(request.threads), str(scratch / "given.npz"))
        create = _seconds(_CREATE, str(scratch / "model.so"), *numbers)
        first = _seconds(_FIRST, str(scratch / module.__name__), *numbers)
    best = np.percentile(samples, 10, axis=0) * 1e3
    return {
        "milliseconds": dict(zip(COLUMNS, map(float, best), strict=True)),
        "mapped / executor": float(best[1] / best[0]),
        "copied / executor": float(best[2] / best[0]),
        "onnxruntime / wheel": _ratio(samples, "onnxruntime", "wheel"),
        "onnxruntime / operator": _ratio(samples, "onnxruntime", "operator"),
        "create": create * 1e3,
        "first": first * 1e3,
        "export": export,
        "bytes": all(equal),
        "size": len(made.shared.content),
    }


def _seconds(program: str, *arguments: str) -> float:
    """Median of what a program prints, each time in a new process."""
    command = [sys.executable, "-c", program, *arguments]
    told = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(STARTS)]
    return statistics.median(map(float, told))


def _ratio(samples: np.ndarray[Any, Any], a: str, b: str) -> float:
    return float(np.median(samples[:, COLUMNS.index(a)] / samples[:, COLUMNS.index(b)]))


def _session(made: Library, folder: Path, threads: int) -> Any:
    """A session of onnxruntime in which the library is the only operator."""
    path = folder / "operator.so"
    path.write_bytes(made.shared.content)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the operator has threads of its own
    options.add_session_config_entry("stowplan.threads", str(threads))
    options.register_custom_ops_library(str(path))
    return onnxruntime.InferenceSession(graph(made), options, providers=["CPUExecutionProvider"])


def _module(made: Library, folder: Path) -> Any:
    """The module of a wheel, imported from where it is unpacked."""
    name, content = module_name(made), io.BytesIO()
    wheel(made, "", content)
    with zipfile.ZipFile(content) as file:
        file.extractall(folder)
    spec = importlib.util.spec_from_file_location(name, folder / name / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _created(native: ctypes.CDLL, threads: int, flags: int) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    status = native.stowplan_create(ctypes.byref(handle), threads, flags)
    if status:
        raise RuntimeError(f"stowplan_create: status {status}")
    return handle


def _equal(
    native: ctypes.CDLL, handle: ctypes.c_void_p, fed: dict[str, Any], expected: dict[str, object]
) -> bool:
    """Whether the library gives the executor's bytes; afterwards its memory holds these inputs."""
    given = [np.ascontiguousarray(a) for a in fed.values()]
    taken = [np.empty_like(np.asarray(a)) for a in expected.values()]
    pointers = [
        (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)) for arrays in (given, taken)
    ]
    status = native.stowplan_run_buffers(handle, *pointers)
    same = (a.tobytes() == np.asarray(b).tobytes() for a, b in zip(taken, expected.values(), strict=True))
    return status == 0 and all(same)


def main(line: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.library", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", default=models.DEFAULT)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=2.0, help="per model, thread count and column")
    parser.add_argument("--untuned", action="store_true", help="plan by predicted times alone")
    parser.add_argument("--kernels", type=Path, default=Settings().data / "kernels")
    arguments = parser.parse_args(line)
    table = Table("model", "threads", *COLUMNS, *RATIOS, *STARTING, "bytes")
    console = Console(width=170)
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names:
            found = models.find(name, models.FOLDERS, Path(scratch))
            for threads in arguments.threads:
                if found.path is None:
                    console.print(f"{name}: {found.reason}", highlight=False)
                    continue
                options = Options(autotune=not arguments.untuned)
                request = Request(found.path, threads, arguments.seconds, arguments.kernels, options)
                row = in_own_process(request, measure)
                if isinstance(row, str):
                    console.print(f"{name}, {threads}: {row}", highlight=False)
                    continue
                times = [f"{row['milliseconds'][column]:.3f}" for column in COLUMNS]
                told = [f"{row[ratio]:.3f}" for ratio in RATIOS]
                told += [f"{row[column]:.1f}" for column in STARTING]
                table.add_row(name, str(threads), *times, *told, "equal" if row["bytes"] else "DIFFERENT")
    console.print(table)


if __name__ == "__main__":
    main()
