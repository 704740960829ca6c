"""CUDA kernels and whole programs on a real GPU, checked against float64 and timed beside torch.

    python -m benchmarks.cuda_h200 [--seconds 570] [--json FILE] [--kernels FOLDER] [MODEL.onnx ...]

It has never been run on a GPU yet; a device that only writes down what it is asked has run it. One call ends
within ten minutes: what does not fit any more is named as left out. Versions come first, because a driver, a
toolkit or a numba that is newer or older than the pinned one is what fails most often. Kernels are compiled
by a process per core before they are needed. What fails is a line of the table, and the rest goes on; the
JSON is written after every section. Peers are torch eager (cuBLAS, cuDNN), compiled, and compiled with CUDA
graphs for whole models, where torch is importable; both of its tf32 switches are off for float32.

Times are medians on the device's own clock. `hot` repeats on the same memory, `cold` writes more than the
second cache holds in between.
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
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from app import samples
from app.engine import session
from app.engine.cuda.driver import Gpu, NoDeviceError, open_gpu
from app.engine.cuda.execute import DeviceExecutor, kernels_of
from app.engine.load import load
from app.engine.options import Bindings, Options
from app.engine.program import Program
from app.engine.registry import load as load_registry
from app.engine.target import Target, find
from app.kernels.cuda.compiler import Compiler
from app.kernels.cuda.kernel import Kernel, KernelError
from benchmarks.models import FOLDERS, bindings_of, recorded

Array = np.ndarray[Any, Any]
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


@dataclass
class Bench:
    """What all measurements share."""

    gpu: Gpu
    target: Target
    folder: Path
    kernels: Path
    deadline: float
    pool: ProcessPoolExecutor
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def has_time(self, what: str, seconds: float = 5.0) -> bool:
        """Whether something that takes so long may begin; it is noted where not."""
        if time.monotonic() + seconds < self.deadline:
            return True
        self.left_out.append(what)
        return False

    def add(self, row: Row) -> None:
        """Keep a row and show it."""
        self.rows.append(row)
        print(_told(row), flush=True)

    @contextlib.contextmanager
    def attempt(self, row: Row) -> Iterator[None]:
        """Work that adds its row; the row says so where it fails, and the others go on."""
        try:
            yield
        except Exception as error:  # of a driver, a compiler or torch: all that a first run may meet
            self.add(replace(row, note=f"FAILED: {_line(error)}"))

    def compile_ahead(self, programs: Iterable[Program]) -> None:
        """Put what programs launch into the cache, a process per core; what does not compile says so then."""
        compiler, sm = Compiler(self.kernels), self.gpu.sm
        wanted = dict.fromkeys(k for program in programs for k in kernels_of(program))
        missing = [kernel for kernel in wanted if not compiler.has(kernel, sm)]
        if missing:
            list(self.pool.map(_compiled, itertools.repeat(self.kernels), missing, itertools.repeat(sm)))

    def executor(self, program: Program) -> DeviceExecutor:
        """A program in the memory of the device."""
        self.compile_ahead((program,))
        return DeviceExecutor(program, self.gpu)


def _compiled(folder: Path, kernel: Kernel, sm: str) -> None:
    with contextlib.suppress(KernelError):
        Compiler(folder).compile(kernel, sm)


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


def check(bench: Bench) -> None:
    """Every family in every precision against float64."""
    every = [(p, case) for p in ("f32", "tf32", "bf16", "fp16") for case in checked_cases()]
    programs: dict[int, Program] = {}
    for i, (precision, case) in enumerate(every):
        with bench.attempt(Row("check", case.name, precision)):
            programs[i] = planned(saved(case, bench.folder), bench.target, precision)
    with bench.attempt(Row("check", "compilation", "")):
        bench.compile_ahead(programs.values())
    for i, program in programs.items():
        precision, case = every[i]
        if not bench.has_time(f"check {case.name} in {precision}"):
            return
        with bench.attempt(Row("check", case.name, precision)):
            _check(bench, case, precision, program)


def _check(bench: Bench, case: Case, precision: str, program: Program) -> None:
    inputs = random_inputs(program)
    executor = DeviceExecutor(program, bench.gpu)
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
    right = error <= TOLERANCES[precision]  # not so of NaN
    if not np.array_equal(first, found):
        right = False  # what was recorded must be what was launched
    bench.add(Row("check", case.name, precision, rate=f"{error:.1e}", note="ok" if right else "WRONG"))


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


def torch_seconds(torch: Any, work: Callable[[], Any]) -> float:
    for _ in range(WARM):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) * 1e-3)
    return float(np.median(times))


def peer(torch: Any, work: Callable[[], Callable[[], Any]]) -> tuple[float | None, str]:
    """Seconds of what `work` makes, of torch where there is one; and why there are none."""
    if torch is None:
        return None, ""
    try:
        with torch.no_grad():
            return torch_seconds(torch, work()), ""
    except Exception as error:  # what torch cannot do costs only the comparison
        return None, f"peer failed: {_line(error)}"


def torch_type(torch: Any, precision: str) -> Any:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def step_of(bench: Bench, case: Case, precision: str, op: str) -> tuple[float, str]:
    """Median seconds of the step that computes an operator, and its row; not of what converts layouts."""
    program = planned(saved(case, bench.folder), bench.target, precision)
    executor = bench.executor(program)
    try:
        executor.feed(random_inputs(program))
        executor.infer()
        runs = np.median([executor.step_seconds() for _ in range(REPEATS)], axis=0)
    finally:
        executor.close()
    steps = [s for s in program.steps if any(n.op_type == op for n in s.group.nodes)]
    return float(runs[steps[0].index]), steps[0].choice.implementation.name


SIZES = (("bf16", 4096), ("fp16", 4096), ("tf32", 4096), ("f32", 4096), ("bf16", 8192), ("bf16", 1024))
STREAMED = (1 << 16, 2048)  # rows, columns: 512 MiB of float32


def products(bench: Bench, torch: Any) -> None:
    for precision, n in SIZES:
        if not bench.has_time(f"product {n} in {precision}", 15.0):
            return
        row = Row("product", f"{n} x {n} x {n}", precision, peer_name="cuBLAS")
        with bench.attempt(row):
            case = Case("", "y = MatMul(x, w)", f"float[{n},{n}] x", f"float[{n},{n}] y", {"w": f(n, n)})
            seconds, ours = step_of(bench, case, precision, "MatMul")

            def work(n: int = n, precision: str = precision) -> Callable[[], Any]:
                kind = torch_type(torch, precision)
                a, b = (torch.randn(n, n, device="cuda", dtype=kind) for _ in range(2))
                return lambda: a @ b

            theirs, note = peer(torch, work)
            rate = f"{2 * n**3 / seconds / 1e12:.0f} TFLOP/s"
            bench.add(replace(row, seconds=seconds, peer=theirs, rate=rate, note=f"{ours} {note}".strip()))


LAYERS = (
    (64, 64, 3, 56),
    (128, 128, 3, 28),
    (256, 256, 3, 14),
    (512, 512, 3, 7),
    (256, 64, 1, 56),
    (2048, 512, 1, 7),
)


def convolutions(bench: Bench, torch: Any) -> None:
    for batch in (1, 64):
        for ci, co, k, size in LAYERS:
            if not bench.has_time(f"convolution {ci}->{co} of batch {batch}", 8.0):
                return
            name = f"{ci}->{co} {k}x{k} at {size}, batch {batch}"
            row = Row("conv", name, "bf16", peer_name="cuDNN + relu")
            with bench.attempt(row):
                _convolution(bench, torch, row, (batch, ci, co, k, size))


def _convolution(bench: Bench, torch: Any, row: Row, sizes: tuple[int, int, int, int, int]) -> None:
    batch, ci, co, k, size = sizes
    p = k // 2
    case = Case(
        "", f"h = Conv<kernel_shape=[{k},{k}], pads=[{p},{p},{p},{p}]>(x, w, b) y = Relu(h)",
        f"float[{batch},{ci},{size},{size}] x", f"float[{batch},{co},{size},{size}] y",
        {"w": f(co, ci, k, k), "b": f(co)},
    )  # fmt: skip
    seconds, ours = step_of(bench, case, "bf16", "Conv")

    def work() -> Callable[[], Any]:
        last = torch.channels_last
        layer = torch.nn.Conv2d(ci, co, k, padding=p).cuda().to(torch.bfloat16).to(memory_format=last)
        x = torch.randn(batch, ci, size, size, device="cuda", dtype=torch.bfloat16).to(memory_format=last)
        return lambda: torch.relu(layer(x))

    theirs, note = peer(torch, work)
    rate = f"{2 * batch * co * ci * k * k * size**2 / seconds / 1e12:.1f} TFLOP/s"
    bench.add(replace(row, seconds=seconds, peer=theirs, rate=rate, note=f"{ours} {note}".strip()))


def memory_bound(bench: Bench, torch: Any) -> None:
    rows, columns = STREAMED
    ends = f"float[{rows},{columns}] x", f"float[{rows},{columns}] y"
    scale = {"s": f(columns)}
    chains: tuple[tuple[Case, int, Callable[[Any, Any], Any]], ...] = (
        (Case("x * s + x", "a = Mul(x, s) y = Add(a, x)", *ends, scale), 2, lambda _t, x: x * x[0] + x),
        (Case("relu", "y = Relu(x)", *ends), 2, lambda t, x: t.relu(x)),
        (Case("softmax", "y = Softmax(x)", *ends), 2, lambda t, x: t.softmax(x, -1)),
        (
            Case("layer norm", "y = LayerNormalization(x, s)", *ends, scale),
            2,
            lambda t, x: t.nn.functional.layer_norm(x, (columns,)),
        ),
    )
    ops = ("Mul", "Relu", "Softmax", "LayerNormalization")
    for (case, passes, peer_of), op in zip(chains, ops, strict=True):
        if not bench.has_time(f"memory-bound {case.name}", 20.0):
            return
        row = Row("memory", case.name, "f32", peer_name="torch.compile")
        with bench.attempt(row):
            seconds, ours = step_of(bench, case, "f32", op)

            def work(of: Callable[[Any, Any], Any] = peer_of) -> Callable[[], Any]:
                x = torch.randn(rows, columns, device="cuda")
                compiled = torch.compile(lambda x: of(torch, x))
                return lambda: compiled(x)

            theirs, note = peer(torch, work)
            rate = f"{passes * rows * columns * 4 / seconds / 1e9:.0f} GB/s"
            bench.add(replace(row, seconds=seconds, peer=theirs, rate=rate, note=f"{ours} {note}".strip()))


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


def whole_models(bench: Bench, torch: Any, paths: Sequence[Path]) -> None:
    for path in paths:
        for batch in (1, 64) if "resnet50" in path.stem else (1,):
            for precision in ("bf16", "f32"):
                if not bench.has_time(f"model {path.stem} of batch {batch} in {precision}", 60.0):
                    return
                row = Row("model", f"{path.stem} batch {batch}", precision)
                with bench.attempt(row):
                    _model(bench, torch, row, path, batch)


def _model(bench: Bench, torch: Any, row: Row, path: Path, batch: int) -> None:
    cases = recorded(path.parent, path.stem) if path.with_suffix(".io.npz").exists() else []
    inputs = dict(cases[0][0]) if cases and batch == 1 else {}
    file = batched(path, batch, bench.folder) if batch > 1 else path
    bindings = bindings_of(inputs) if inputs else Bindings()
    program = planned(file, bench.target, row.precision, bindings)
    fed = {v.name: inputs.get(v.name) for v in program.compilation.graph.inputs}
    drawn = random_inputs(program)
    started = time.monotonic()
    executor = bench.executor(program)
    loading = time.monotonic() - started
    try:
        executor.feed({k: drawn[k] if v is None else v for k, v in fed.items()})
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
    theirs = _torch_model(torch, path.stem, batch) if row.precision == "bf16" else None
    seconds, failed = (None, "") if theirs is None else peer(torch, theirs)
    name = "" if theirs is None else "torch.compile"
    note = f"{note} {failed}".strip()
    rate = f"{batch / hot:.0f}/s"
    bench.add(replace(row, seconds=hot, cold=cold, peer=seconds, peer_name=name, rate=rate, note=note))


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
        built.write_bytes(samples.build("resnet50"))
        paths.insert(0, built)
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all that was run is right, 1 when something is wrong or failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--seconds", type=float, default=570.0, help="after which nothing new is begun")
    parser.add_argument("--json", type=Path, default=Path("build/cuda_h200.json"))
    parser.add_argument("--kernels", type=Path, default=Path("build/kernels"), help="compiled kernels")
    options = parser.parse_args(arguments)
    for name in options.models:
        if not Path(name).is_file():
            parser.error(f"no model {name!r}")
    started = time.monotonic()
    target = find(TARGET)
    options.kernels.mkdir(parents=True, exist_ok=True)
    try:
        gpu = open_gpu(options.kernels, target)
    except NoDeviceError as error:
        print(error, file=sys.stderr)
        return 2
    told = versions(gpu)
    print("\n".join(f"{name}: {version}" for name, version in told.items()), flush=True)
    spawn = multiprocessing.get_context("spawn")  # a process that holds a device cannot be forked
    with (
        tempfile.TemporaryDirectory() as scratch,
        ProcessPoolExecutor(os.cpu_count(), spawn) as pool,
        contextlib.closing(gpu),
    ):
        bench = Bench(gpu, target, Path(scratch), options.kernels, started + options.seconds, pool)
        torch = torch_module()
        sections: tuple[Callable[[], None], ...] = (
            lambda: check(bench),
            lambda: products(bench, torch),
            lambda: convolutions(bench, torch),
            lambda: memory_bound(bench, torch),
            lambda: whole_models(bench, torch, found_models(options.models, bench.folder)),
        )
        for section in sections:
            section()
            _write(options.json, bench, told, time.monotonic() - started)
    print("\nsection    name, precision, us hot, us cold, us peer, peer / ours, rate")
    print("\n".join(map(_told, bench.rows)))
    if bench.left_out:
        print(f"left out, for want of time: {', '.join(bench.left_out)}")
    return int(any(row.note.startswith(("WRONG", "FAILED")) for row in bench.rows))


def _write(path: Path, bench: Bench, told: Mapping[str, str], seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "schema": "stowplan.cuda-bench/1",
        "versions": told,
        "rows": [asdict(r) | {"ratio": r.ratio} for r in bench.rows],
        "left_out": bench.left_out,
        "seconds": seconds,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
