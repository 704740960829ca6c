"""`make bench-narrow-weights`: weights of 4 and 8 bits, and caches, beside other runtimes and the memory.

A model is a chain of MatMulNBits of one size, as many as hold `--megabytes` of weights, so that decode,
which is one row, reads them from memory; or a file (`--models`) with recorded inputs beside it. Bandwidth
counts the bytes of weights, scales and zero points, once a run. A copy counts what it reads and writes, a
sum what it reads; both are of 128 MiB, by as many threads. Inputs are read where they are, by onnxruntime
too. Attention to a cache is one GroupQueryAttention whose past and present share memory in both runtimes; its
bytes are those of keys and values.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.benchmark import keep_to, pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.cpu.memory import placed
from app.engine.runtime.verify import compare
from app.engine.types.options import Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks import models
from benchmarks.paired import SETTLING, in_turn
from benchmarks.peers import onnxruntime_peer, openvino_peer
from benchmarks.row import recorded_inputs

Array = np.ndarray[Any, Any]
COPIED = 128 << 20  # bytes
QUANTILE = 0.1  # of the rounds
CAST = {"ck": "pk", "cv": "pv"}  # outputs of `cache` that take the place of an input


@dataclass(frozen=True, slots=True)
class Case:
    """A chain of products of [rows, size] with [size, size]."""

    rows: int
    size: int
    bits: int
    block: int
    level: int

    @property
    def nbytes(self) -> int:
        """Bytes of weights and scales of one product."""
        return self.size * self.size * self.bits // 8 + 4 * self.size * self.size // self.block


CASES = (
    *(Case(1, size, 4, 32, level) for size in (640, 2048, 4096) for level in (4, 0)),
    Case(1, 2048, 4, 128, 4),
    Case(1, 2048, 8, 32, 4),
    *(Case(64, 2048, 4, 32, level) for level in (4, 0)),
)


def chain(case: Case, megabytes: int) -> tuple[onnx.ModelProto, dict[str, Array], int]:
    """The model, its input and the bytes of its weights."""
    count = max(megabytes * 1_000_000 // case.nbytes, 1)
    rng, blocks = np.random.default_rng(0), case.size // case.block
    sizes = f"K = {case.size}, N = {case.size}, bits = {case.bits}, block_size = {case.block}"
    nodes, name = [], "x"
    tensors = []
    for i in range(count):
        out = "y" if i == count - 1 else f"v{i}"
        nodes.append(
            f"{out} = com.microsoft.MatMulNBits<{sizes}, accuracy_level = {case.level}>({name}, b{i}, s{i})"
        )
        q = rng.integers(0, 256, (case.size, blocks, case.block * case.bits // 8), np.uint8)
        scales = rng.choice((-1, 1), (case.size, blocks)) / (0.29 * 2**case.bits * case.size**0.5)
        tensors.append(onnx.numpy_helper.from_array(q, f"b{i}"))
        tensors.append(onnx.numpy_helper.from_array(scales.astype(np.float32), f"s{i}"))
        name = out
    shape = f"[{case.rows},{case.size}]"
    head = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    body = "\n".join(nodes)
    model = onnx.parser.parse_model(f"{head} g (float{shape} x) => (float{shape} y) {{ {body} }}")
    model.graph.initializer.extend(tensors)
    x = rng.standard_normal((case.rows, case.size)).astype(np.float32)
    return model, {"x": x}, count * case.nbytes


def cache(past: int) -> tuple[onnx.ModelProto, dict[str, Array], int]:
    """A decode step of attention with so much past, its inputs, and the bytes of keys and values."""
    heads, groups, width = 32, 8, 128
    rng = np.random.default_rng(0)
    shape = f"[1,{groups},{past + 1},{width}]"
    head = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
    angles = np.outer(np.arange(past + 1), 1e-4 ** (np.arange(width // 2) / (width // 2)))
    queries, fresh = (f"float[1,1,{count * width}]" for count in (heads, groups))
    text = f"""{head} g ({queries} q, {fresh} k, {fresh} v, float{shape} pk, float{shape} pv, int32[1] last)
        => ({queries} y, float{shape} ck, float{shape} cv) {{
        y, ck, cv = com.microsoft.GroupQueryAttention<num_heads = {heads}, kv_num_heads = {groups},
            do_rotary = 1>(q, k, v, pk, pv, last, total, cos, sin) }}"""
    model = onnx.parser.parse_model(text)
    fixed = {"total": np.array(past + 1, np.int32), "cos": np.cos(angles), "sin": np.sin(angles)}
    for name, array in fixed.items():
        kept = array if array.dtype == np.int32 else array.astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(kept, name))
    sizes = {"q": (1, 1, heads * width), "k": (1, 1, groups * width), "v": (1, 1, groups * width)}
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in sizes.items()}
    kv = {n: rng.standard_normal((1, groups, past + 1, width)).astype(np.float32) for n in ("pk", "pv")}
    return model, {**inputs, **kv, "last": np.array([past], np.int32)}, 8 * groups * (past + 1) * width


def recorded(path: Path) -> tuple[onnx.ModelProto, dict[str, Array], int]:
    """A file, its recorded inputs, and the bytes of its weights in blocks."""
    model, inputs = onnx.load(path), recorded_inputs(path)
    assert inputs is not None, f"no recorded inputs of {path}"
    sizes = {t.name: len(t.raw_data) for t in model.graph.initializer}
    read = {name for n in model.graph.node if n.op_type == "MatMulNBits" for name in n.input[1:4]}
    return model, inputs, sum(sizes.get(name, 0) for name in read)


def bound(path: Path, inputs: dict[str, Array], threads: int) -> Callable[[], object]:
    """Onnxruntime on inputs and outputs that stay where they are, present over past."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    peer = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = peer.io_binding()
    held = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in inputs.items()}
    for name, value in held.items():
        binding.bind_ortvalue_input(name, value)
    for output in peer.get_outputs():
        past = CAST.get(output.name)
        if past is None:
            binding.bind_output(output.name, "cpu")
        else:
            binding.bind_ortvalue_output(output.name, held[past])
    return lambda: peer.run_with_iobinding(binding)


@numba.njit(nogil=True)  # type: ignore[untyped-decorator]  # numba has no types
def _sum(x: Array) -> Any:
    """Sum of integers, which LLVM computes in vectors."""
    total = np.int64(0)
    for i in range(x.size):
        total += x[i]
    return total


def memory(threads: int, pool: ThreadPoolExecutor) -> list[Callable[[], object]]:
    """A copy and a sum of COPIED bytes by so many threads."""
    source = np.split(np.ones(COPIED // 8, np.int64), threads)
    target = np.split(np.zeros(COPIED // 8, np.int64), threads)
    return [
        lambda: list(pool.map(np.copyto, target, source)),
        lambda: list(pool.map(_sum, source)),
    ]


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of ours, onnxruntime, OpenVINO (if it runs the model), a copy and a sum; largest difference."""

    ours: float
    onnxruntime: float
    openvino: float | None
    copy: float
    read: float
    difference: float


def measured(
    model: onnx.ModelProto, inputs: dict[str, Array], threads: int, seconds: float, compiler: Compiler
) -> Measured:
    """All runtimes and the memory, in turn."""
    options = Options(threads=threads, backends=("numba-cpu",))
    bindings = models.bindings_of(inputs)
    with tempfile.TemporaryDirectory() as folder, pinned(threads) as cores:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        loaded = session.canonical(load(path), host(), options, bindings, load_registry())
        program = session.planned(session.tuned(loaded, options, compiler), options)
        peer = onnxruntime_peer(path, threads)
        free = {v.name for v in program.compilation.graph.inputs}
        own = {name: array for name, array in inputs.items() if name in free}
        with closing(Executor(program, compiler, cores=cores)) as executor:
            worst = max(d.max_rel for d in compare(peer.run(inputs), executor.run(own), 0.0))
            there = executor.peek()
            lent = {name: placed(array) for name, array in own.items()}
            lent |= {p: np.asarray(there[c]) for c, p in CAST.items() if p in inputs}

            def step() -> object:
                executor.lend(lent)
                executor.step()
                return executor.peek()

            try:
                other = [partial(openvino_peer(path, threads, precision="f32").run, inputs)]
            except Exception as cause:  # whatever it raises where it has no such operator
                other, reason = [], str(cause).strip().splitlines()[:1]
                print(f"OpenVINO: {type(cause).__name__}: {reason}")
            with ThreadPoolExecutor(threads) as pool:
                works = [step, bound(path, inputs, threads), *memory(threads, pool), *other]
                samples = in_turn(
                    works,
                    seconds,
                    before=partial(keep_to, cores[:1]),
                    settling=SETTLING if threads > 1 else 0.0,
                )
    ours, theirs, copy, read, *rest = np.quantile(samples, QUANTILE, axis=0)
    return Measured(ours, theirs, rest[0] if rest else None, copy, read, worst)


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.narrow_weights", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=320, help="of weights of a model")
    parser.add_argument("--past", type=int, nargs="*", default=[1024, 4096], help="rows of caches")
    parser.add_argument("--sizes", type=int, nargs="*", help="of chains; by default all of them")
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="files with recorded inputs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="per model and runtime")
    arguments = parser.parse_args(line)
    compiler = Compiler(Settings.from_environment().data.absolute() / "kernels")
    table = Table(title=f"{arguments.threads} threads, tenth percentile")
    columns = ("rows", "size", "bits", "block", "level", "ms", "onnxruntime", "OpenVINO", "ratio")
    for heading in (*columns, "GB/s", "copy", "sum", "of copy", "of sum", "difference"):
        table.add_column(heading)

    def row(told: Sequence[object], made: tuple[onnx.ModelProto, dict[str, Array], int]) -> None:
        model, inputs, nbytes = made
        found = measured(model, inputs, arguments.threads, arguments.seconds, compiler)
        rate, copied, summed = nbytes / found.ours, 2 * COPIED / found.copy, COPIED / found.read
        best = min(found.onnxruntime, found.openvino or found.onnxruntime)
        milliseconds = (
            "-" if t is None else f"{t * 1e3:.3f}" for t in (found.ours, found.onnxruntime, found.openvino)
        )
        table.add_row(
            *map(str, told), *milliseconds, f"{best / found.ours:.2f}",
            *(f"{r / 1e9:.1f}" for r in (rate, copied, summed)),
            f"{rate / copied:.2f}", f"{rate / summed:.2f}", f"{found.difference:.1e}",
        )  # fmt: skip

    for path in arguments.models:
        row((1, path.stem, "", "", ""), recorded(path))
    for case in CASES:
        if arguments.sizes is None or case.size in arguments.sizes:
            row((case.rows, case.size, case.bits, case.block, case.level), chain(case, arguments.megabytes))
    for past in arguments.past:
        row((1, f"past {past}", 32, "", ""), cache(past))
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
