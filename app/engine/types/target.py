"""Descriptions of the machines that a graph is planned for.

A target is data: nothing here runs on it. `host()` probes this machine; every other preset is
a row. A target that this machine is not can be planned for and predicted, never benchmarked.
"""

import ctypes
import functools
import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from app.engine.types import accelerator as described
from app.engine.types.accelerator import ANY_ELEMENTWISE, Accelerator, AcceleratorRow, Limits
from app.engine.types.errors import TargetError, UnknownTargetError

Device = Literal["cpu", "cuda", "model"]
Precision = Literal["f32", "tf32", "bf16", "fp16", "int8"]

NEAR = 4.0  # times as fast as main memory is what fits the last cache, for predictions
DEVICES: tuple[Device, ...] = ("cpu", "cuda", "model")
PRECISIONS: tuple[Precision, ...] = ("f32", "tf32", "bf16", "fp16", "int8")
# Flags of /proc/cpuinfo (x86-64; 64-bit ARM) that decide which kernels may run.
ISA_FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimddp",
)


@dataclass(frozen=True, slots=True)
class Memory:
    """One address space of a target."""

    name: str
    size: int  # byte
    alignment: int = 64  # byte
    bandwidth: float = 20e9  # byte/s

    def __post_init__(self) -> None:
        is_power = self.alignment > 0 and not self.alignment & (self.alignment - 1)
        for holds, expected in (
            (self.size > 0, f"size must be positive, found {self.size} byte"),
            (is_power, f"alignment must be a power of two, found {self.alignment} byte"),
            (self.bandwidth > 0, f"bandwidth must be positive, found {self.bandwidth} byte/s"),
        ):
            if not holds:
                raise TargetError(f"memory {self.name!r}: {expected}")


@dataclass(frozen=True, slots=True)
class Target:
    """A machine: what the planner may use and how fast it is.

    `memories[0]` is the main memory, where activations live. `memory_budget` bounds the arena
    (byte); None means the size of the main memory. `flops` is the peak of one core in
    single precision, for predictions; products of bf16 and int8, where `precisions`
    has them, run at twice and four times that rate. `accelerator` describes what the backend of that
    name runs.
    """

    name: str
    device: Device = "cpu"
    isa: tuple[str, ...] = ()
    vector_lanes: int = 8  # float32 elements in a register
    cores: int = 1
    caches: tuple[int, ...] = (32 * 1024, 1024 * 1024, 32 * 1024 * 1024)  # byte; first level first
    memories: tuple[Memory, ...] = (Memory("dram", 8 * 2**30),)
    backends: tuple[str, ...] = ("numba-cpu", "reference")
    precisions: tuple[Precision, ...] = ("f32",)
    memory_budget: int | None = None  # byte
    flops: float = 50e9  # floating-point operations per second and core
    launch: float = 1e-7  # seconds to start one kernel
    accelerator: Accelerator | None = None
    cpu_model: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        unknown = next((p for p in self.precisions if p not in PRECISIONS), None)
        budget = self.memory_budget
        for holds, expected in (
            (self.device in DEVICES, f"device must be one of {', '.join(DEVICES)}, found {self.device!r}"),
            (self.memories, "at least one memory is needed"),
            (self.backends, "at least one backend is needed"),
            (self.cores >= 1, f"cores must be at least 1, found {self.cores}"),
            (unknown is None, f"unknown precision {unknown!r}; known are {', '.join(PRECISIONS)}"),
            (budget is None or budget > 0, f"memory_budget must be positive, found {budget} byte"),
            (
                self.accelerator is not None or described.BACKEND not in self.backends,
                f"the backend {described.BACKEND!r} is what a target describes, and this one does not",
            ),
        ):
            if not holds:
                raise TargetError(f"target {self.name!r}: {expected}")
        if self.accelerator is not None:
            self.accelerator.check([memory.name for memory in self.memories])

    def __hash__(self) -> int:
        return hash(self.name)  # hashed for every group that is planned

    @property
    def store(self) -> Memory:
        """The largest memory, where constants live."""
        return max(self.memories, key=lambda memory: memory.size)

    @property
    def budget(self) -> int:
        """Bytes that the arena may take."""
        return self.memories[0].size if self.memory_budget is None else self.memory_budget


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a machine does on the threads of a program.

    Attributes:
        flops: single-precision operations a second.
        bandwidth: byte/s by bytes that are moved, ascending: a speed holds up to its size, the last beyond.
        measured: whether both were measured, or are those of the target's description.
    """

    flops: float
    bandwidth: Mapping[int, float] = field(hash=False)
    measured: bool

    def bandwidth_of(self, nbytes: int) -> float:
        """Byte/s of a step that moves so many bytes."""
        return next(
            (b for size, b in self.bandwidth.items() if nbytes <= size), [*self.bandwidth.values()][-1]
        )

    def share(
        self, flops: float, nbytes: int, seconds: float, rate: float = 1.0, turns: int = 1
    ) -> float | None:
        """The least time of that work, bound by arithmetic or by memory, over the time it took.

        Operations are as many times as fast as in float32 as `rate` has it; the work comes in equal turns.
        """
        if seconds <= 0 or not (flops or nbytes):
            return None
        return max(flops / (self.flops * rate), nbytes / self.bandwidth_of(nbytes // max(turns, 1))) / seconds

    def to_json(self) -> dict[str, object]:
        """For timings.json."""
        return {
            "gflops": self.flops / 1e9,
            "bandwidth": [{"bytes": n, "gigabytes_per_second": b / 1e9} for n, b in self.bandwidth.items()],
            "measured": self.measured,
        }

    @classmethod
    def described(cls, target: Target, threads: int = 1) -> "Peak":
        """The peak as the target's description has it, caches as fast as predictions take them to be."""
        memory, cores = target.memories[0], min(threads, target.cores)
        flops = target.flops * (target.cores if target.device == "cuda" else cores)
        near = {target.caches[-1]: memory.bandwidth * NEAR} if target.caches else {}
        return cls(flops, {**near, memory.size: memory.bandwidth}, measured=False)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Peak":
        """Inverse of `to_json`."""
        bandwidth = {row["bytes"]: row["gigabytes_per_second"] * 1e9 for row in document["bandwidth"]}
        return cls(document["gflops"] * 1e9, bandwidth, document["measured"])

    def beside(self, target: Target, other: "Peak", nbytes: int) -> Target:
        """A target that does work on so many bytes as many times as fast as this machine exceeds another."""
        memory = target.memories[0]
        faster = self.bandwidth_of(nbytes) / other.bandwidth_of(nbytes)
        return replace(
            target,
            flops=target.flops * self.flops / other.flops,
            memories=(replace(memory, bandwidth=memory.bandwidth * faster), *target.memories[1:]),
        )


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """The feature flags in the text of /proc/cpuinfo; empty where it lists none."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    return frozenset(match.group(1).split()) if match else frozenset()


def _cache_sizes(root: Path) -> tuple[int, ...]:
    sizes: dict[int, int] = {}
    for index in sorted(root.glob("index*")):
        if (index / "type").read_text().strip() == "Instruction":
            continue
        text = (index / "size").read_text().strip()
        unit = {"K": 1024, "M": 1024 * 1024}.get(text[-1], 1)
        sizes[int((index / "level").read_text())] = int(text.rstrip("KM")) * unit
    return tuple(sizes[level] for level in sorted(sizes))


# What products of a precision are one instruction of; none is needed for the first.
_PRECISIONS: tuple[tuple[Precision, frozenset[str]], ...] = (
    ("f32", frozenset()),
    ("bf16", frozenset({"avx512_bf16"})),
    ("int8", frozenset({"avx512_vnni", "avx_vnni", "asimddp"})),
)


_PERMIT, _TILE_DATA = 0x1023, 18  # ARCH_REQ_XCOMP_PERM of arch_prctl(2), and the state of AMX tiles
_ARCH_PRCTL = 158  # number of that system call on x86-64


# Backends of this machine, in order of preference: a library runs what our kernels cannot.
BACKENDS = ("numba-cpu", "onnxruntime", "reference")


@functools.cache
def tiles_permitted() -> bool:
    """Ask Linux for the state of AMX tiles, which every thread of this process may then use.

    It is large, so that a process has none until it asks, and may be refused.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _PERMIT, _TILE_DATA) == 0)


def peak(lanes: int) -> float:
    """Floating-point operations per second of a core of this machine: two fused products a cycle at 3 GHz."""
    return lanes * 2 * 2 * 3e9


def host() -> Target:
    """This machine: CPU flags, cores and caches as the operating system tells them.

    Without AMX where the system does not permit this process its use.
    """
    path = Path("/proc/cpuinfo")
    cpuinfo = path.read_text() if path.exists() else ""
    flags = cpu_flags(cpuinfo)
    isa = tuple(f for f in ISA_FEATURES if f in flags)
    if "amx_tile" in isa and not tiles_permitted():
        isa = tuple(f for f in isa if not f.startswith("amx_"))
    lanes = 16 if "avx512f" in isa else 8 if "avx2" in isa else 4
    model = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    caches = _cache_sizes(Path("/sys/devices/system/cpu/cpu0/cache"))
    return Target(
        name="host",
        isa=isa,
        vector_lanes=lanes,
        cores=cores,
        caches=caches or (32 * 1024, 1024 * 1024),
        memories=(Memory("dram", total),),
        backends=BACKENDS,
        precisions=tuple(p for p, needed in _PRECISIONS if not needed or needed & set(isa)),
        flops=peak(lanes),
        cpu_model=model.group(1).strip() if model else "unknown",
    )


# A small device that multiplies 8-bit integers, but knows no zero points: those of activations become
# corrections. No recurrence, nothing data-dependent; all steps cost what the roofline of the target says.
_EDGE_TYPES = ("float32", "int8", "uint8", "int32", "int64", "bool")
_EDGE_STEPS: Mapping[str, tuple[str, ...]] = {
    "elementwise": (ANY_ELEMENTWISE,),
    "product": ("Conv", "ConvTranspose", "MatMul", "Gemm"),
    "integer_product": ("ConvInteger", "MatMulInteger"),
    "pool": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    "reduce": ("ReduceMean", "ReduceSum", "ReduceMax"),
    "normalize": ("Softmax", "LayerNormalization"),
    "move": (
        *("Concat", "Split", "Slice", "Pad", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"),
        *("Gather", "Resize", "DepthToSpace", "SpaceToDepth"),
    ),
}
_EDGE_NPU = Accelerator(
    tuple(
        AcceleratorRow(
            name,
            ops,
            epilogue=(ANY_ELEMENTWISE,),
            dtypes=_EDGE_TYPES,
            limits=Limits(zero_points=name != "integer_product"),
        )
        for name, ops in _EDGE_STEPS.items()
    ),
    control_flow=True,
)


PRESETS: tuple[Target, ...] = (
    Target("cpu-avx2", isa=("avx2", "fma"), vector_lanes=8, cores=4, flops=96e9),
    Target(
        "cpu-avx512",
        isa=("avx2", "fma", "avx512f", "avx512bw", "avx512vl"),
        vector_lanes=16,
        cores=4,
        flops=117e9,
    ),
    Target(
        "cpu-avx512-bf16",
        isa=("avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
        vector_lanes=16,
        cores=4,
        precisions=("f32", "bf16", "int8"),
        flops=117e9,
    ),
    # A board with cores like Cortex-A72 at 1.5 GHz: one product and sum of four numbers a cycle.
    Target(
        "cpu-neon",
        isa=("neon",),
        vector_lanes=4,
        cores=4,
        caches=(32 * 1024, 1024 * 1024),
        memories=(Memory("dram", 4 * 2**30, bandwidth=5e9),),
        flops=12e9,
    ),
    # One with cores like Cortex-A76 at 2.4 GHz: two such a cycle, and sums of four products of bytes.
    Target(
        "cpu-neon-dotprod",
        isa=("neon", "asimddp"),
        vector_lanes=4,
        cores=4,
        caches=(64 * 1024, 512 * 1024, 2 * 1024 * 1024),
        memories=(Memory("dram", 8 * 2**30, bandwidth=10e9),),
        precisions=("f32", "int8"),
        flops=38.4e9,
    ),
    Target(
        "cuda-sm90",
        device="cuda",
        isa=("sm_90",),
        vector_lanes=32,
        cores=132,
        caches=(256 * 1024, 50 * 1024 * 1024),
        memories=(Memory("hbm", 80 * 2**30, alignment=256, bandwidth=3.35e12),),
        backends=("cuda", "reference"),
        precisions=("f32", "tf32", "bf16", "fp16"),
        flops=0.5e12,
        launch=1.5e-6,  # of a kernel that waits for the one before, within a graph
    ),
    Target(
        "edge-npu",
        device="model",
        vector_lanes=16,
        cores=1,
        caches=(64 * 1024,),
        memories=(Memory("sram", 8 * 2**20, alignment=16, bandwidth=8e9),),
        backends=(described.BACKEND, "reference"),
        precisions=("f32", "int8"),
        flops=64e9,
        launch=2e-6,
        accelerator=_EDGE_NPU,
    ),
)


def presets() -> Mapping[str, Target]:
    """All built-in targets by name, this machine among them."""
    return {t.name: t for t in (host(), *PRESETS)}


def find(name: str) -> Target:
    """The built-in target of that name.

    Raises:
        UnknownTargetError: there is none; the message lists those there are.
    """
    known = presets()
    if name not in known:
        raise UnknownTargetError(
            f"unknown target {name!r}; built in are {', '.join(known)}", pointer="/target"
        )
    return known[name]


def with_backends(target: Target, names: tuple[str, ...]) -> Target:
    """The target with these backends in place of its own, and the reference evaluator after them.

    Without names it stays as it is.
    """
    if not names:
        return target
    return replace(target, backends=tuple(dict.fromkeys((*names, "reference"))))


def is_host(target: Target, machine: Target) -> bool:
    """True if `machine` can run what is compiled for `target`, so that its timings are real.

    A description of this very machine under another name is this machine; which backends may be used
    on it says nothing of it.
    """
    described = replace(target, name=machine.name, backends=machine.backends)
    return target.name == "host" or described == machine
