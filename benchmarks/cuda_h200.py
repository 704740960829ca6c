"""CUDA kernels and whole programs on a real GPU, checked against float64 and timed beside torch.

    python -m benchmarks.cuda_h200 [--seconds 570] [--json FILE] [--kernels FOLDER] [MODEL.onnx ...]
    python -m benchmarks.cuda_h200 --compile-only --kernels FOLDER     on a machine without a GPU
    python -m benchmarks.cuda_h200 --trust --kernels FOLDER            with what that one compiled

Figures of an H200: docs/cuda-programs.md; the tests run it on a driver that is made up. One call ends
within ten minutes: what does not fit any more is named as left out. Versions come first, because a driver,
a toolkit or a numba that is newer or older than the pinned one is what fails most often. Kernels are
compiled by a process per core before they are needed. What fails is a line of the table, and the rest goes
on: rows are measured by a process of their own. One that loses the device (an illegal address) or hangs is
followed by another, which runs the row once more and waits after each launch to name the kernel, then by
one for the rows that are left. The JSON is written after every row. Peers are torch eager (cuBLAS, cuDNN),
compiled, and compiled with CUDA graphs for whole models, where torch is importable; both of its tf32
switches are off for float32.

Times are medians on the device's own clock, of work that was sent before the device began it: those of steps
within one graph, those of whole models and of torch, which launches to the same stream, between calls that
wait behind other work. `hot` repeats on the same memory, `cold` writes more than the second cache holds in
between.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import itertools
import json
import math
import multiprocessing
import os
import platform
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from app import samples
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.cuda.driver import Gpu, NoDeviceError, open_gpu, sm_of
from app.engine.runtime.cuda.executor import DeviceExecutor, kernels_of
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, find
from app.kernels.cuda.compiler import Compiler
from app.kernels.cuda.kernel import Kernel, KernelError
from benchmarks.models import FOLDERS, bindings_of, recorded

Array = np.ndarray[Any, Any]
Json = dict[str, Any]
TARGET = "cuda-sm90"
FLUSHED = 128 << 20  # byte written between cold runs: more than the second cache holds
REPEATS = 20
WARM = 3
PACKAGES = ("numba", "numba-cuda", "cuda-core", "cuda-bindings", "nvidia-nvvm", "nvidia-cuda-nvrtc")
PEERS = ("torch", "triton", "timm")
TOLERANCES = {"f32": 2e-5, "tf32": 4e-3, "bf16": 3e-2, "fp16": 4e-3}  # of the largest element


@dataclass
class Row:
    """One line of the table; times in seconds, None where there is none."""

    section: str
    name: str
    precision: str
    seconds: float | None = None
    cold: float | None = None
    peer: float | None = None
    peer_name: str = ""
    rate: str = ""  # in the unit of the section
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """How often ours fits into the peer's time: above 1 is faster."""
        return None if not self.seconds or not self.peer else self.peer / self.seconds


@dataclass
class Case:
    """One operator, or a chain of them, as ONNX text."""

    name: str
    text: str
    inputs: str
    output: str
    weights: Mapping[str, Array] = field(default_factory=dict)
    expected: Callable[..., Array] | None = None  # of inputs and weights in float64
    flops: float = 0.0


@dataclass(frozen=True)
class Sizes:
    """Sizes timed: products (precision, n), layers (channels in and out, taps, pixels), and a tensor."""

    products: tuple[tuple[str, int], ...]
    layers: tuple[tuple[int, int, int, int], ...]
    batches: tuple[int, ...]
    streamed: tuple[int, int]  # rows, columns


FULL = Sizes(
    (("bf16", 4096), ("fp16", 4096), ("tf32", 4096), ("f32", 4096), ("bf16", 8192), ("bf16", 1024)),
    (
        (64, 64, 3, 56),
        (128, 128, 3, 28),
        (256, 256, 3, 14),
        (512, 512, 3, 7),
        (256, 64, 1, 56),
        (2048, 512, 1, 7),
    ),
    (1, 64),
    (1 << 16, 2048),  # 512 MiB of float32
)
SMALL = Sizes((("bf16", 64), ("f32", 64)), ((16, 8, 3, 7),), (1, 2), (16, 64))  # a trial of this program


@dataclass(frozen=True)
class Task:
    """One row to come: the program that it runs, and what measures it."""

    row: Row
    seconds: float  # that it may take, for what fits the time
    plan: Callable[[], Program]
    run: "Callable[[Bench, Row, Program], Row]"

    @property
    def name(self) -> str:
        """As it is told."""
        return f"{self.row.section} {self.row.name} {self.row.precision}".strip()


@dataclass
class Kernels:
    """The folder of machine code, and the processes that fill it."""

    folder: Path
    sm: str
    trusted: bool
    pool: Executor | None  # None: this process compiles

    def compile_ahead(self, programs: Iterable[Program]) -> list[str]:
        """Put what programs launch into the folder; why not, for each kernel that does not compile."""
        compiler = Compiler(self.folder, trusted=self.trusted)
        wanted = dict.fromkeys(k for program in programs for k in kernels_of(program))
        missing = [kernel for kernel in wanted if not compiler.has(kernel, self.sm)]
        run = map if self.pool is None or len(missing) < 2 else self.pool.map
        reasons = run(
            _uncompiled, itertools.repeat(compiler.folder.parent), missing, itertools.repeat(self.sm)
        )
        return [reason for reason in reasons if reason] if not self.trusted else []


@dataclass
class Bench:
    """Common state of all measurements."""

    gpu: Gpu
    kernels: Kernels
    debug: bool
    torch: Any

    def executor(self, program: Program) -> DeviceExecutor:
        """A program in the memory of the device."""
        return DeviceExecutor(program, self.gpu, debug=self.debug)


def _uncompiled(folder: Path, kernel: Kernel, sm: str) -> str:
    """Reason why a kernel does not compile; empty where it does."""
    try:
        Compiler(folder).compile(kernel, sm)
    except KernelError as error:
        return str(error)
    return ""


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _told(row: Row) -> str:
    def micro(seconds: float | None) -> str:
        return "-" if seconds is None else f"{seconds * 1e6:.1f}"

    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    cells = f"{row.section:10} {row.name:44} {row.precision:5} {micro(row.seconds):>9} {micro(row.cold):>9}"
    return f"{cells} {micro(row.peer):>9} {ratio:>6} {row.rate:>14}  {row.peer_name} {row.note}"


def versions(gpu: Gpu) -> dict[str, str]:
    found = {"python": sys.version.split()[0], "machine": platform.machine(), "gpu": gpu.name, "sm": gpu.sm}
    found |= {"driver's CUDA": gpu.driver, "multiprocessors": str(gpu.processors)}
    for package in (*PACKAGES, *PEERS):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def saved(case: Case, folder: Path) -> Path:
    head = f'<ir_version: 10, opset_import: ["": 21]> g ({case.inputs}) => ({case.output})'
    proto = onnx.parser.parse_model(f"{head} {{ {case.text} }}")
    for name, array in case.weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = folder / "case.onnx"
    onnx.save(proto, path)
    return path


def planned(path: Path, target: Target, precision: str, bindings: Bindings = Bindings()) -> Program:  # noqa: B008
    options = Options(precision=precision, tolerance=1e-2)  # type: ignore[arg-type]  # one of the policies
    return session.planned(session.canonical(load(path), target, options, bindings, load_registry()), options)


def random_inputs(program: Program) -> dict[str, Array]:
    random = np.random.default_rng(0)
    found = {}
    for value in program.compilation.graph.inputs:
        shape, kind = tuple(int(d) for d in value.shape), value.dtype.numpy()
        whole = random.integers(0, 2, shape).astype(kind)
        found[value.name] = random.standard_normal(shape).astype(kind) if kind.kind == "f" else whole
    return found


def timed(bench: Bench, executor: DeviceExecutor) -> tuple[float, float]:
    """Median seconds of a replay, hot and cold."""
    for _ in range(WARM):
        executor.infer()
    hot = bench.gpu.elapsed([executor.step] * REPEATS)
    scratch = bench.gpu.allocate(FLUSHED)
    works: list[Callable[[], None]] = []
    for _ in range(REPEATS):
        works += [lambda: bench.gpu.fill(scratch, FLUSHED, 0), executor.step]
    cold = bench.gpu.elapsed(works)[1::2]
    bench.gpu.release(scratch)
    return float(np.median(hot)), float(np.median(cold))


def f(*shape: int, scale: float = 1.0) -> Array:
    seed = math.prod(shape) % 2**31
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _norm(x: Array, s: Array) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * s


def _conv(x: Array, w: Array, stride: int, pad: int, groups: int = 1) -> Array:
    wide = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    patches = np.lib.stride_tricks.sliding_window_view(wide, w.shape[2:], axis=(2, 3))[
        :, :, ::stride, ::stride
    ]
    n, _, ho, wo, kh, kw = patches.shape
    patches = patches.reshape(n, groups, -1, ho, wo, kh, kw)
    split = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    return np.einsum("ngchwij,gocij->ngohw", patches, split, optimize=True).reshape(n, -1, ho, wo)


def _pooled(x: Array) -> Array:
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    return np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))[:, :, ::2, ::2].max((-1, -2))


def checked_cases() -> Iterator[Case]:
    """Each family, on sizes that do not fit its tiles."""
    for m, n, k in ((257, 136, 200), (4, 1000, 768), (63, 40, 4096), (129, 77, 72)):
        yield Case(
            f"matmul {m}x{n}x{k}", "h = MatMul(x, w) b = Add(h, c) y = Relu(b)", f"float[{m},{k}] x",
            f"float[{m},{n}] y", {"w": f(k, n, scale=k**-0.5), "c": f(n)},
            lambda x, w, c: np.maximum(x @ w + c, 0),
        )  # fmt: skip
    for ci, co, k, stride, groups in (
        (64, 72, 3, 1, 1),
        (3, 64, 7, 2, 1),
        (64, 64, 3, 2, 64),
        (64, 32, 1, 1, 1),
    ):
        p = k // 2
        yield Case(
            f"conv {ci}->{co} {k}x{k} /{stride} g{groups}",
            f"y = Conv<kernel_shape=[{k},{k}], strides=[{stride},{stride}], pads=[{p},{p},{p},{p}], "
            f"group={groups}>(x, w)",
            f"float[2,{ci},29,31] x", f"float[2,{co},{-(-29 // stride)},{-(-31 // stride)}] y",
            {"w": f(co, ci // groups, k, k, scale=(ci // groups * k * k) ** -0.5)},
            lambda x, w, stride=stride, k=k, groups=groups: _conv(x, w, stride, k // 2, groups),
        )  # fmt: skip
    yield Case("softmax", "y = Softmax(x)", "float[37,1000] x", "float[37,1000] y", {}, lambda x: _softmax(x))
    yield Case(
        "long softmax", "y = Softmax(x)", "float[3,50257] x", "float[3,50257] y", {}, lambda x: _softmax(x)
    )
    yield Case(
        "layer norm",
        "y = LayerNormalization(x, s)",
        "float[99,768] x",
        "float[99,768] y",
        {"s": f(768)},
        _norm,
    )
    yield Case(
        "chain", "a = Mul(x, s) b = Tanh(a) y = Add(b, x)", "float[33,1001] x", "float[33,1001] y",
        {"s": f(1001)}, lambda x, s: np.tanh(x * s) + x,
    )  # fmt: skip
    yield Case("mean of rows", "y = ReduceMean<keepdims=0>(x, a)", "float[77,999] x", "float[77] y",
               {"a": np.array([1])}, lambda x, **_: x.mean(1))  # fmt: skip
    yield Case(
        "transpose", "y = Transpose<perm=[1,0]>(x)", "float[300,77] x", "float[77,300] y", {}, lambda x: x.T
    )
    yield Case("max pool", "y = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x)",
               "float[2,24,28,28] x", "float[2,24,14,14] y", {}, _pooled)  # fmt: skip
    yield Case(
        "attention",
        "t = Transpose<perm=[0,1,3,2]>(k) a = MatMul(x, t) c = Mul(a, h) p = Softmax(c) y = MatMul(p, v)",
        "float[1,4,100,64] x, float[1,4,77,64] k, float[1,4,77,64] v", "float[1,4,100,64] y",
        {"h": np.float32(0.125)}, lambda x, k, v, h: _softmax(x @ k.swapaxes(-1, -2) * h) @ v,
    )  # fmt: skip


def check_tasks(target: Target, folder: Path) -> Iterator[Task]:
    """Every family in every precision against float64."""
    for precision in TOLERANCES:
        for case in checked_cases():
            row = Row("check", case.name, precision)
            plan = partial(_planned_case, case, folder, target, precision)
            yield Task(row, 5.0, plan, partial(_check, case))


def _planned_case(case: Case, folder: Path, target: Target, precision: str) -> Program:
    return planned(saved(case, folder), target, precision)


def _check(case: Case, bench: Bench, row: Row, program: Program) -> Row:
    inputs = random_inputs(program)
    executor = bench.executor(program)
    try:
        first = executor.run(inputs)["y"]
        found = executor.run(inputs)["y"]
    finally:
        executor.close()
    assert case.expected is not None
    given = {**inputs, **case.weights}
    expected = case.expected(**{k: np.asarray(v, np.float64) for k, v in given.items()})
    scale = float(np.max(np.abs(expected)))
    error = float(np.max(np.abs(found.astype(np.float64) - expected))) / scale
    right = error <= TOLERANCES[row.precision]  # not so of NaN
    if not np.array_equal(first, found):
        right = False  # what was recorded must be what was launched
    return replace(row, rate=f"{error:.1e}", note="ok" if right else "WRONG")


def torch_module() -> Any:
    """The module torch where it has a GPU, tf32 off; else None, and a line that says why."""
    if importlib.util.find_spec("torch") is None:
        print("no peers: torch is not installed for this Python", flush=True)
        return None
    import torch

    if not torch.cuda.is_available():
        print(f"no peers: torch {torch.__version__} finds no GPU", flush=True)
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch


def peer(bench: Bench, make: Callable[[], Callable[[], Any]]) -> tuple[float | None, str]:
    """Seconds of what `make` makes, of torch where there is one; and why there are none.

    It launches to the stream of our own programs, and is measured as they are.
    """
    if bench.torch is None:
        return None, ""
    cuda = bench.torch.cuda
    try:
        with bench.torch.no_grad(), cuda.stream(cuda.ExternalStream(bench.gpu.stream)):
            work = make()
            for _ in range(WARM):
                work()
            bench.gpu.wait()
            return float(np.median(bench.gpu.elapsed([work] * REPEATS))), ""
    except Exception as error:  # what torch cannot do costs only the comparison
        return None, f"peer failed: {_line(error)}"


def torch_type(torch: Any, precision: str) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def step_of(bench: Bench, program: Program, op: str) -> tuple[float, str]:
    """Median seconds of the step that computes an operator, and its row; not of what converts layouts."""
    executor = bench.executor(program)
    try:
        executor.feed(random_inputs(program))
        runs = np.median([executor.step_seconds() for _ in range(REPEATS)], axis=0)
    finally:
        executor.close()
    steps = [s for s in program.steps if any(n.op_type == op for n in s.group.nodes)]
    return float(runs[steps[0].index]), steps[0].choice.implementation.name


@dataclass(frozen=True)
class Timed:
    """One operator that is timed: what runs it in torch, and in which unit it is told."""

    case: Case
    op: str
    make: Callable[[Any, str], Callable[[], Any]]  # of torch and a precision: the work
    amount: float  # operations or bytes of a run
    unit: str
    scale: float

    def __call__(self, bench: Bench, row: Row, program: Program) -> Row:
        """The row with its times."""
        seconds, ours = step_of(bench, program, self.op)
        theirs, note = peer(bench, lambda: self.make(bench.torch, row.precision))
        rate = f"{self.amount / seconds / self.scale:.1f} {self.unit}"
        return replace(row, seconds=seconds, peer=theirs, rate=rate, note=f"{ours} {note}".strip())

    def task(self, row: Row, seconds: float, folder: Path, target: Target) -> Task:
        """To come."""
        return Task(row, seconds, partial(_planned_case, self.case, folder, target, row.precision), self)


def product_tasks(sizes: Sizes, target: Target, folder: Path) -> Iterator[Task]:
    for precision, n in sizes.products:

        def make(torch: Any, precision: str, n: int = n) -> Callable[[], Any]:
            kind = torch_type(torch, precision)
            a, b = (torch.randn(n, n, device="cuda", dtype=kind) for _ in range(2))
            return lambda: a @ b

        case = Case("", "y = MatMul(x, w)", f"float[{n},{n}] x", f"float[{n},{n}] y", {"w": f(n, n)})
        row = Row("product", f"{n} x {n} x {n}", precision, peer_name="cuBLAS")
        yield Timed(case, "MatMul", make, 2 * n**3, "TFLOP/s", 1e12).task(row, 15.0, folder, target)


def convolution_tasks(sizes: Sizes, target: Target, folder: Path) -> Iterator[Task]:
    for batch, (ci, co, k, size) in itertools.product(sizes.batches, sizes.layers):
        p = k // 2
        case = Case(
            "", f"h = Conv<kernel_shape=[{k},{k}], pads=[{p},{p},{p},{p}]>(x, w, b) y = Relu(h)",
            f"float[{batch},{ci},{size},{size}] x", f"float[{batch},{co},{size},{size}] y",
            {"w": f(co, ci, k, k), "b": f(co)},
        )  # fmt: skip

        def make(
            torch: Any, precision: str, of: tuple[int, ...] = (batch, ci, co, k, size)
        ) -> Callable[[], Any]:
            last, kind, (n, ci, co, k, size) = torch.channels_last, torch_type(torch, precision), of
            layer = torch.nn.Conv2d(ci, co, k, padding=k // 2).cuda().to(kind).to(memory_format=last)
            x = torch.randn(n, ci, size, size, device="cuda", dtype=kind).to(memory_format=last)
            return lambda: torch.relu(layer(x))

        row = Row("conv", f"{ci}->{co} {k}x{k} at {size}, batch {batch}", "bf16", peer_name="cuDNN + relu")
        amount = 2 * batch * co * ci * k * k * size**2
        yield Timed(case, "Conv", make, amount, "TFLOP/s", 1e12).task(row, 8.0, folder, target)


def memory_tasks(sizes: Sizes, target: Target, folder: Path) -> Iterator[Task]:
    rows, columns = sizes.streamed
    ends = f"float[{rows},{columns}] x", f"float[{rows},{columns}] y"
    scale = {"s": f(columns)}
    chains: tuple[tuple[Case, str, Callable[[Any, Any], Any]], ...] = (
        (Case("x * s + x", "a = Mul(x, s) y = Add(a, x)", *ends, scale), "Mul", lambda _t, x: x * x[0] + x),
        (Case("relu", "y = Relu(x)", *ends), "Relu", lambda t, x: t.relu(x)),
        (Case("softmax", "y = Softmax(x)", *ends), "Softmax", lambda t, x: t.softmax(x, -1)),
        (
            Case("layer norm", "y = LayerNormalization(x, s)", *ends, scale),
            "LayerNormalization",
            lambda t, x: t.nn.functional.layer_norm(x, (columns,)),
        ),
    )
    for case, op, peer_of in chains:

        def make(torch: Any, _precision: str, of: Callable[[Any, Any], Any] = peer_of) -> Callable[[], Any]:
            x = torch.randn(rows, columns, device="cuda")
            compiled = torch.compile(lambda x: of(torch, x))
            return lambda: compiled(x)

        row = Row("memory", case.name, "f32", peer_name="torch.compile")
        amount = 2 * rows * columns * 4  # read and written once
        yield Timed(case, op, make, amount, "GB/s", 1e9).task(row, 20.0, folder, target)


def batched(path: Path, batch: int, folder: Path) -> Path:
    """The same model for another batch, where its first input leads with one."""
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.shape.dim[0].ClearField("dim_value")
        output.type.tensor_type.shape.dim[0].dim_param = "batch"
    made = folder / f"{path.stem}_b{batch}.onnx"
    onnx.save(proto, made)
    return made


def model_tasks(paths: Sequence[Path], sizes: Sizes, target: Target, folder: Path) -> Iterator[Task]:
    for path in paths:
        for batch in sizes.batches if "resnet50" in path.stem else (1,):
            cases = recorded(path.parent, path.stem) if path.with_suffix(".io.npz").exists() else []
            inputs = dict(cases[0][0]) if cases and batch == 1 else {}
            for precision in ("bf16", "f32"):

                def plan(
                    path: Path = path,
                    batch: int = batch,
                    inputs: Mapping[str, Array] = inputs,
                    precision: str = precision,
                ) -> Program:
                    if not path.exists():
                        path.write_bytes(samples.build(path.stem))
                    file = batched(path, batch, folder) if batch > 1 else path
                    return planned(file, target, precision, bindings_of(inputs) if inputs else Bindings())

                row = Row("model", f"{path.stem} batch {batch}", precision)
                yield Task(row, 60.0, plan, partial(_model, path.stem, batch, inputs))


def _model(
    stem: str, batch: int, inputs: Mapping[str, Array], bench: Bench, row: Row, program: Program
) -> Row:
    started = time.monotonic()
    executor = bench.executor(program)
    loading = time.monotonic() - started
    try:
        executor.feed({**random_inputs(program), **inputs})
        hot, cold = timed(bench, executor)
        host = time.perf_counter()
        for _ in range(REPEATS):
            executor.step()
        host = (time.perf_counter() - host) / REPEATS
        bench.gpu.wait()
    finally:
        executor.close()
    fallbacks = sum(s.is_host for s in program.steps)
    note = f"{len(kernels_of(program))} kernels loaded in {loading:.0f} s, host {host * 1e6:.0f} us"
    note += f", {fallbacks} nodes on the host" if fallbacks else ""
    theirs = _torch_model(bench.torch, stem, batch) if row.precision == "bf16" else None
    seconds, failed = (None, "") if theirs is None else peer(bench, theirs)
    name = "" if theirs is None else "torch.compile"
    note = f"{note} {failed}".strip()
    rate = f"{batch / hot:.0f}/s"
    return replace(row, seconds=hot, cold=cold, peer=seconds, peer_name=name, rate=rate, note=note)


def _torch_model(torch: Any, stem: str, batch: int) -> Callable[[], Callable[[], Any]] | None:
    """The same network by torch.compile with CUDA graphs, channels last; None where it is not to be had."""
    names = {"resnet50": "resnet50", "mobilenetv2": "mobilenetv2_100"}
    if torch is None or stem not in names or importlib.util.find_spec("timm") is None:
        return None

    def work() -> Callable[[], Any]:
        import timm

        last, kind = torch.channels_last, torch_type(torch, "bf16")
        model = timm.create_model(names[stem]).eval().cuda().to(kind).to(memory_format=last)
        x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=kind).to(memory_format=last)
        compiled = torch.compile(model, mode="reduce-overhead")
        return lambda: compiled(x)

    return work


def found_models(given: Sequence[str], folder: Path) -> list[Path]:
    if given:
        return [Path(name) for name in given]
    built = folder / "resnet50.onnx"
    wanted = ("resnet50", "mobilenetv2", "bert_base", "bert_mini", "gpt2_decode", "ppocrv4_det")
    paths = [p for name in wanted for f_ in FOLDERS if (p := f_ / f"{name}.onnx").exists()]
    if not any(p.stem == "resnet50" for p in paths):
        paths.insert(0, built)  # when it is planned
    return paths


def every_task(options: argparse.Namespace, target: Target, folder: Path) -> list[Task]:
    """All rows, in order, that `--only` leaves."""
    sizes = SMALL if options.small else FULL
    tasks = itertools.chain(
        check_tasks(target, folder),
        product_tasks(sizes, target, folder),
        convolution_tasks(sizes, target, folder),
        memory_tasks(sizes, target, folder),
        model_tasks(found_models(options.models, folder), sizes, target, folder),
    )
    return [task for task in tasks if options.only in task.name]


@contextlib.contextmanager
def _kernels(options: argparse.Namespace, target: Target) -> Iterator[Kernels]:
    spawn = multiprocessing.get_context("spawn")  # a process that holds a device cannot be forked
    with contextlib.ExitStack() as stack:
        pool = None
        if options.processes > 1 and not options.trust:
            pool = stack.enter_context(ProcessPoolExecutor(options.processes, spawn))
        yield Kernels(options.kernels, sm_of(target), options.trust, pool)


def compile_only(options: argparse.Namespace, target: Target) -> int:
    """Exit code 0 when all machine code is in the folder."""
    failed = 0
    with tempfile.TemporaryDirectory() as scratch, _kernels(options, target) as kernels:
        for _, section in itertools.groupby(
            every_task(options, target, Path(scratch)), lambda t: t.row.section
        ):
            programs = []
            for task in section:
                try:
                    programs.append(task.plan())
                except Exception as error:  # a row that cannot be planned; the others can
                    failed += 1
                    print(f"{task.name}: {_line(error)}", flush=True)
            reasons = kernels.compile_ahead(programs)
            failed += len(reasons)
            print(*reasons, sep="\n" if reasons else "", end="\n" if reasons else "", flush=True)
        made = len(list(Compiler(options.kernels).folder.glob(f"*_{kernels.sm}_*.cubin")))
    print(
        f"{made} kernels for {kernels.sm} in {options.kernels}, {failed} rows or kernels failed", flush=True
    )
    return int(failed > 0)


# --- the process that measures ----------------------------------------------------------------------------

SAID = "@said "  # begins a line of standard output that is for the process above
SILENT = "no answer within"  # a row that takes too long
LOST = 3  # exit code: the device is lost to this process


def _say(**what: Any) -> None:
    print(SAID + json.dumps(what), flush=True)


def work(options: argparse.Namespace, target: Target) -> int:
    """Measure rows from the first that is wanted on, and say each; exit code LOST where the device is."""
    try:
        gpu = open_gpu(options.kernels, target, trusted=options.trust)
    except (NoDeviceError, KernelError) as error:
        _say(absent=str(error))
        return 2
    _say(versions=versions(gpu))
    with tempfile.TemporaryDirectory() as scratch, _kernels(options, target) as kernels:
        bench = Bench(gpu, kernels, options.debug, torch_module())
        tasks = list(enumerate(every_task(options, target, Path(scratch))))[options.first :][: options.count]
        for section, group in itertools.groupby(tasks, lambda t: t[1].row.section):
            todo = list(group)
            # Small programs are planned and compiled together, by all processes; large ones one by one.
            together = [todo] if section == "check" else [[one] for one in todo]
            if not all(_measured(bench, some, options) for some in together):
                return LOST
    gpu.close()
    _say(end=True)
    return 0


def _measured(bench: Bench, tasks: Sequence[tuple[int, Task]], options: argparse.Namespace) -> bool:
    """True if the device still answers after these rows."""
    programs: dict[int, Program] = {}
    for number, task in tasks:
        if time.time() + task.seconds > options.deadline:
            _say(left_out=task.name)
            continue
        try:
            programs[number] = task.plan()
        except Exception as error:  # of a pass: the others go on
            _say(number=number, row=asdict(replace(task.row, note=f"FAILED: {_line(error)}")), lost=False)
    bench.kernels.compile_ahead(programs.values())  # what does not compile says so when it is loaded
    for number, task in tasks:
        program = programs.get(number)
        if program is None:
            continue
        if time.time() + task.seconds > options.deadline:
            _say(left_out=task.name)
            continue
        _say(number=number, begun=asdict(task.row), within=options.patience)
        try:
            row = task.run(bench, task.row, program)
        except Exception as error:  # of a driver, a compiler or torch: all that a first run may meet
            row = replace(task.row, note=f"FAILED: {_line(error)}")
        _say(number=number, row=asdict(row), lost=bench.gpu.lost is not None)
        if bench.gpu.lost is not None:
            return False
    return True


# --- the process above, which never touches the device ------------------------------------------------------


@dataclass
class Report:
    """Rows reported so far."""

    path: Path | None
    started: float = field(default_factory=time.time)
    versions: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Show a row, and keep it."""
        self.rows.append(row)
        print(_told(row), flush=True)
        self.write()

    def write(self) -> None:
        """The JSON, where it is wanted."""
        if self.path is None:
            return
        report = {
            "schema": "stowplan.cuda-bench/1",
            "versions": self.versions,
            "rows": [asdict(r) | {"ratio": r.ratio} for r in self.rows],
            "left_out": self.left_out,
            "seconds": time.time() - self.started,
        }
        self.path.write_text(json.dumps(report, indent=1) + "\n")


@dataclass
class Heard:
    """Result of a process that measures."""

    absent: str = ""  # why there is no device
    ended: bool = False  # it came to the end of its rows
    lost: tuple[int, Row] | None = None  # the row, with its number, that took the device or the process


def _lines(command: Sequence[str]) -> Iterator[Json]:
    """Lines of a process as it prints them; it is killed when none comes within the time that it gave."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def end() -> None:
        """Processes that compile for it outlive it, and hold its output open."""
        process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    threads = [threading.Thread(target=work, daemon=True) for work in (read, end)]
    for thread in threads:
        thread.start()
    within: float | None = None
    reason = ""
    try:
        while (line := _next(lines, within)) is not None:
            if not line:
                reason, within = f"{SILENT} {within:g} s", None
                process.kill()
            elif line.startswith(SAID):
                said = json.loads(line.removeprefix(SAID))
                within = said.get("within")
                yield said
            else:
                print(line, end="", flush=True)
        code = process.wait()
        reason = reason or (f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}")
        yield {"exit": reason}
    finally:
        process.kill()
        for thread in threads:
            thread.join()
        assert process.stdout is not None
        process.stdout.close()


def _next(lines: "queue.Queue[str | None]", within: float | None) -> str | None:
    """The next line, empty where none comes in time, None after the last."""
    try:
        return lines.get(timeout=within)
    except queue.Empty:
        return ""


def heard(arguments: Sequence[str], report: Report) -> Heard:
    """Run a process that measures; its rows go to the report, but for the one that it does not survive."""
    found, begun = Heard(), None
    for said in _lines([sys.executable, "-m", "benchmarks.cuda_h200", *arguments]):
        if "versions" in said and not report.versions:
            report.versions = said["versions"]
            print("\n".join(f"{name}: {version}" for name, version in report.versions.items()), flush=True)
        elif "absent" in said:
            found.absent = said["absent"]
        elif "end" in said:
            found.ended = True
        elif "left_out" in said:
            report.left_out.append(said["left_out"])
        elif "begun" in said:
            begun = said["number"], Row(**said["begun"])
        elif "row" in said:
            begun, row = None, Row(**said["row"])
            if said["lost"]:
                found.lost = said["number"], row
            else:
                report.add(row)
        elif "exit" in said and begun is not None:
            number, row = begun
            found.lost = number, replace(row, note=f"FAILED: the process that measured ended: {said['exit']}")
    return found


def measure(arguments: Sequence[str], report: Report) -> str:
    """All rows, by as many processes as it takes; why there is no device, or nothing."""
    first = 0
    while True:
        found = heard([*arguments, "--first", str(first)], report)
        if found.lost is None:
            if not found.ended and not found.absent:
                report.add(Row("process", "", "", note="FAILED: it ended before its rows did, see above"))
            return found.absent
        number, row = found.lost
        first = number + 1
        if SILENT in row.note:  # it would be silent again
            report.add(row)
            continue
        once = [*arguments, "--first", str(number), "--count", "1", "--debug"]
        again = heard(once, Report(None, versions=report.versions)).lost
        if again is not None and "kernel" in again[1].note:
            row = replace(row, note=f"{row.note}; launched one by one: {again[1].note}")
        report.add(row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all that was run is right, 1 when something is wrong or failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--seconds", type=float, default=570.0, help="after which nothing new is begun")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the report goes (default: none)")
    parser.add_argument("--kernels", type=Path, default=Path("build/kernels"), help="compiled kernels")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that compile")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="rows whose section, name, precision have it"
    )
    parser.add_argument("--small", action="store_true", help="time small sizes: a trial of this program")
    parser.add_argument("--patience", type=float, default=150.0, help="seconds after which a row is given up")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--compile-only", action="store_true", help="fill the folder of kernels; no GPU, no driver is needed"
    )
    how.add_argument(
        "--trust", action="store_true", help="take kernels from the folder by its manifest; compile nothing"
    )
    for hidden, kind in (("--first", int), ("--count", int), ("--deadline", float)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--debug", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in options.models:
        if not Path(name).is_file():
            parser.error(f"no model {name!r}")
    target = find(TARGET)
    if options.trust:
        try:
            Compiler(options.kernels, trusted=True)
        except KernelError as error:
            parser.error(str(error))
    else:
        options.kernels.mkdir(parents=True, exist_ok=True)
    if options.compile_only:
        return compile_only(options, target)
    if options.first is not None:
        return work(options, target)
    report = Report(options.json)
    if options.json is not None:
        try:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            report.write()
        except OSError as error:
            parser.error(f"--json: {error}")
    given = ["--kernels", str(options.kernels), "--processes", str(options.processes), "--only", options.only]
    given += ["--patience", str(options.patience)]
    given += ["--deadline", str(report.started + options.seconds), *options.models]
    given += ["--trust"] * options.trust + ["--small"] * options.small
    absent = measure(given, report)
    if absent:
        print(absent, file=sys.stderr)
        return 2
    print("\nsection    name, precision, us hot, us cold, us peer, peer / ours, rate")
    print("\n".join(map(_told, report.rows)))
    if report.left_out:
        print(f"left out, for want of time: {', '.join(report.left_out)}")
    report.write()
    return int(any(row.note.startswith(("WRONG", "FAILED")) for row in report.rows))


if __name__ == "__main__":
    sys.exit(main())
