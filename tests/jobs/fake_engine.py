"""An engine that does what the model's text says: the service around it is what is tested.

A model is a line of words, done one after the other; `_act` has them.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.planning.capacity.http import HttpCosts
from app.engine.types.errors import InputError, NotOnnxError, PassError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target

PRELOAD = ()
DECISIONS = [
    {
        "subject": "conv",
        "op": "Conv+Relu",
        "nodes": ["conv", "relu"],
        "chosen": "onnxruntime",
        "backend": "onnxruntime",
        "seconds": 1e-5,
        "measured": True,
        "reason": "measured 10 us, the least of 2",
        "error": None,
        "fallback": False,
        "alternatives": [
            {"name": "a", "backend": "numba-cpu", "seconds": None, "measured": False, "reason": "groups"}
        ],
        "storage": {"x": {"kind": "default", "dtype": "float32", "density": 1.0}},
        "layout": {"x": {"order": [0, 1, 2, 3], "blocks": []}},
        "dispatch": {"conv": "subgraph", "relu": "subgraph"},
    },
    {
        "subject": "det",
        "op": "Det",
        "nodes": ["det"],
        "chosen": "reference",
        "backend": "reference",
        "seconds": None,
        "measured": False,
        "reason": "no other backend has a row for this operator",
        "error": None,
        "fallback": True,
        "alternatives": [],
        "storage": {},
        "layout": {},
        "dispatch": {"det": "fallback"},
    },
]


def inspect(path: Path, external: Mapping[str, Path]) -> dict[str, Any]:
    words = path.read_text(errors="replace").split()
    if not words or words[0] == "bad":
        raise NotOnnxError("the bytes are no model", pointer="/model")
    return {
        "inputs": [{"name": "x", "shape": [1, 3], "dtype": "float32"}],
        "nodes": len(words),
        "external": sorted(external),
    }


def validate(
    path: Path, target: Target, options: Options, bindings: Bindings, external: Mapping[str, Path]
) -> list[dict[str, str]]:
    if "x" in bindings.shapes:
        return []
    return [{"code": "input-invalid", "detail": "input 'x' has no shape", "pointer": "/input_shapes/x"}]


def prepare(kernels: Path) -> None:
    (kernels / "prepared").touch()


def run_operator(request: Mapping[str, Any], options: Options, folder: Path, kernels: Path) -> dict[str, Any]:
    if request["op"] == "Fail":
        raise InputError("data does not fit", pointer="/inputs/0/data")
    outputs = [{"name": "y0", **{k: request["inputs"][0][k] for k in ("dtype", "shape", "data")}}]
    return {"outputs": outputs, "seconds": 1e-6, "difference": 0.0, "decisions": [], "notes": []}


def derive(
    path: Path,
    external: Mapping[str, Path],
    request: Mapping[str, Any],
    beside: Mapping[str, str],
    folder: Path,
) -> dict[str, Any]:
    if request["operation"] == "values":
        rows = [
            {"name": w, "roles": ["internal"], "dtype": "", "shape": None, "operator": "", "node": ""}
            for w in path.read_text().split()
        ]
        begin = request["offset"]
        return {"total": len(rows), "values": rows[begin : begin + request["limit"]]}
    if request.get("outputs") == ["nowhere"]:
        raise InputError("the main graph has no value 'nowhere'", pointer="/outputs/0")
    parts = [path.read_text(), *(Path(p).read_text() for p in beside.values())]
    if request["operation"] == "symbol":
        (folder / "model-symbol.json").write_text(" ".join(["symbol", *parts]))
        (folder / "model-0000.params").write_text("parameters")
        return {}
    (folder / "model.onnx").write_text(" ".join([request["operation"], *parts]))
    return {}


def optimize(
    path: Path,
    target: Target,
    options: Options,
    bindings: Bindings,
    folder: Path,
    *,
    kernels: Path,
    external: Mapping[str, Path],
    progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    words = path.read_text().split()
    progress(f"begin {os.getpid()}", 0, 1)
    if words[:2] == ["fail-threads", str(options.threads)]:
        raise InputError(f"no {options.threads} threads", pointer="/options/threads")
    for word, value in zip(words, [*words[1:], ""]):
        _act(word, value, folder, progress)
    (folder / "plan.json").write_text('{"schema": 1}')
    (folder / "decisions.json").write_text(json.dumps({"decisions": DECISIONS}))
    (folder / "report.html").write_text("<!doctype html><title>report</title>")
    (folder / "not-listed.txt").write_text("never kept")
    if options.error_budget is not None:
        (folder / "quantized.onnx").write_text("shapeless")
    exports = {}
    if options.export:
        (folder / "module.whl").write_text(" ".join(options.export))
        filename = f"{options.export_name}-1-py3-none-any.whl"
        exports["module.whl"] = {
            "filename": filename,
            "examples": {"Python": f"import {options.export_name} <b>"},
        }
    return {
        "target": target.name,
        "threads": options.threads,
        "shapes": {k: list(v) for k, v in bindings.shapes.items()},
        "tensors": {k: Path(v).read_bytes().decode() for k, v in bindings.tensors.items()},
        "samples": Path(bindings.samples).read_text() if bindings.samples else None,
        "error_budget": options.error_budget,
        "external": {k: v.read_text() for k, v in external.items()},
        "not_a_number": float("nan"),
        "latency": {"after": 1e-3 / options.threads},
        "peak_bytes": {"after": 1000 * options.threads},
        "timings": "predicted",
        "exports": exports,
        "pid": os.getpid(),
    }


def capacity(
    path: Path,
    options: Options,
    bindings: Bindings,
    request: Mapping[str, Any],
    folder: Path,
    *,
    kernels: Path,
    external: Mapping[str, Path],
    progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """The bounds, in the places of what would be found."""
    progress("benchmark: measure", 0, 1)
    if "shapeless" in path.read_text().split():
        raise InputError("the job does not know the shapes of all inputs", pointer="/job")
    serving = {"instances": 2, "threads": options.threads, "batch_sizes": [], "batch_delay_ms": 0.0}
    seconds = request["seconds"] or 0.5
    point = {"rate": 10.0, "throughput": 9.5, "latency": {"p50": seconds / 2, "p99": seconds}}
    names = ("process_bytes", "weights_bytes", "instances_bytes", "predicted_bytes", "measured_bytes")
    return {
        "cores": 2,
        "shapes": {name: list(shape) for name, shape in bindings.shapes.items()},
        "configurations": [
            serving
            | {"run_times": "measured", "memory_bytes": request["memory_bytes"] or 0, "best": point}
            | {"rejection": "", "is_chosen": True}
        ],
        "curves": [serving | {"points": [point, point | {"rate": 20.0}]}],
        "chosen": {
            "deployment": serving,
            "verified": request["percentile"] != 51.0,
            "rate": 10.0,
            "predicted": point,
            "loads": [point | {"requests": 100, "met": True}],
            "memory": dict.fromkeys(names, 1 << 20),
        },
        "http": None if request["http"] is None else asdict(HttpCosts.at(request["http"], 12, 12)),
        "notes": [f"p{request['percentile']}"],
        "seconds": request["answer_seconds"],
    }


def _act(word: str, value: str, folder: Path, progress: Callable[[str, int, int], None]) -> None:
    if word == "steps":
        for i in range(int(value)):
            progress("steps", i + 1, int(value))
            time.sleep(0.05)
    elif word == "sleep":
        time.sleep(float(value))
    elif word == "benchmark":
        progress("benchmark", 0, 1)
        began = time.time()
        time.sleep(float(value))
        (folder / "timings.json").write_text(json.dumps([began, time.time()]))
        progress("benchmark", 1, 1)
    elif word == "ignore-signals":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif word == "grandchild":
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        progress(f"grandchild {sleeper.pid}", 0, 1)
    elif word == "hog":
        held = bytearray(int(value))
        held[::4096] = b"1" * len(held[::4096])
    elif word == "creep":
        # Memory that the limit on data does not see: shared anonymous pages.
        import mmap

        pages = mmap.mmap(-1, int(value))
        for i in range(0, int(value), 4096):
            pages[i] = 1
        time.sleep(600)
    elif word == "segfault":
        ctypes.string_at(0)
    elif word == "exit":
        os._exit(int(value))
    elif word == "fail":
        raise InputError("input 'x' does not fit", pointer="/input_shapes/x")
    elif word == "bad-alloc":
        raise PassError("plan_memory", RuntimeError("std::bad_alloc"))
    elif word == "defect":
        raise KeyError("a defect")
    elif word == "spy":
        (folder / "trace.json").write_text(json.dumps(_seen_by_a_spy(Path(value), folder)))
    elif word == "memory":
        (folder / "memory.json").write_text(value)
    elif word == "link":
        (folder / "memory.json").symlink_to("/etc/hostname")


def _seen_by_a_spy(secret: Path, folder: Path) -> dict[str, Any]:
    """What a job finds that looks around: a text, or the name of the error that it got instead."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    tries: dict[str, Callable[[], Any]] = {
        "environment": lambda: Path("/proc/self/environ").read_text() + repr(dict(os.environ)),  # noqa: TID251
        "environment of the forkserver": lambda: Path(f"/proc/{os.getppid()}/environ").read_text(),
        "secret": secret.read_text,
        "neighbors": lambda: str([path.read_text() for path in secret.parent.iterdir()]),
        "passwords": Path("/etc/shadow").read_text,
        "writing": lambda: (secret.parent / "planted").write_text("x"),
        "writing to the code": lambda: Path(__file__).with_name("planted").write_text("x"),
        "own folder": lambda: (folder / "mine").write_text("x"),
        "killing": lambda: os.kill(os.getppid(), signal.SIGKILL),
        "interfaces": lambda: str([name for _, name in socket.if_nameindex()]),
        **{
            f"socket {family.name}": lambda family=family: str(socket.socket(family))
            for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK)
        },
        "namespace": lambda: _system("unshare", 0x10000000),
        "trace": lambda: _system("ptrace", 16, os.getppid(), 0, 0),
    }
    found: dict[str, Any] = {"uid": os.getuid(), "home": str(Path.home()) == str(folder)}
    found |= {name: status[name].strip() for name in ("CapEff", "NoNewPrivs", "Seccomp")}
    for name, attempt in tries.items():
        try:
            found[name] = attempt()
        except OSError as error:
            found[name] = type(error).__name__
    return found


def _system(name: str, *arguments: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
    return "done"


@dataclass(frozen=True)
class Port:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None


SLEEP, HANG, CRASH = -1.0, -2.0, -3.0  # what the first number of an input asks for
MEET, CORES = -4.0, -5.0  # to run with another instance at once, and to count the cores that it has in y
REFUSED, SLOW = 99, 98  # rows whose programs are refused, or take a while to build


class ServedModel:
    """y = 2 x, z = the number of rows; `sleep` and the like happen when the process loads the model."""

    def __init__(
        self,
        path: Path,
        options: Options,
        bindings: Bindings,
        *,
        kernels: Path,
        external: Mapping[str, Path],
        weights: Path,
        tune: bool,
    ) -> None:
        words = path.read_text().split()
        for word, value in zip(words, [*words[1:], ""]):
            if word.startswith("load-"):
                _act(word.removeprefix("load-"), value, path.parent, lambda *_: None)
        self.inputs = (Port("x", np.dtype(np.float32), (None, 3)),)
        self.outputs = (
            Port("y", np.dtype(np.float32), (None, 3)),
            Port("z", np.dtype(np.int64), (1,)),
        )
        self.fixed: dict[str, Any] = {"scale": 2}
        self.mixes = "mixes" in words
        self.first = {"x": bindings.shapes["x"]} if "x" in bindings.shapes else None

    def programs(
        self, shapes: Mapping[str, tuple[int, ...]], cores: Sequence[Sequence[int]]
    ) -> list["FakeProgram"]:
        rows = shapes["x"][0]
        if rows == REFUSED:
            raise InputError(f"{rows} rows are too many")
        if rows == SLOW:
            time.sleep(1.5)
        return [FakeProgram(shapes["x"]) for _ in cores]

    def rows_of_outputs(self, _shapes: Mapping[str, tuple[int, ...]], _count: int) -> frozenset[str]:
        if self.mixes:
            raise InputError("ReduceMean 'mean' may mix requests: it reduces axis 0")
        return frozenset("y")

    def ahead(self) -> Iterator[tuple[Mapping[str, tuple[int, ...]], "FakeProgram"]]:
        return iter(())


_MEETING = threading.Barrier(2)


class FakeProgram:
    shares_memory = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._x = np.zeros(shape, np.float32)
        self._y = np.zeros(shape, np.float32)

    def lend(self, inputs: Mapping[str, object]) -> None:
        np.copyto(self._x, np.asarray(inputs["x"]))

    def step(self) -> None:
        first = self._x.reshape(-1)[0]
        if first == SLEEP:
            time.sleep(0.2)
        elif first == HANG:
            ctypes.PyDLL(None).sleep(600)  # with the GIL, as the worst of native code
        elif first == CRASH:
            ctypes.string_at(0)
        np.multiply(self._x, 2, out=self._y)
        if first == MEET:
            _MEETING.wait(30)
        elif first == CORES:
            self._y[...] = len(os.sched_getaffinity(0))

    def peek(self) -> dict[str, object]:
        return {"y": self._y, "z": np.array([len(self._x)])}

    def close(self) -> None:
        self._x = self._y = np.zeros((0, 3), np.float32)
