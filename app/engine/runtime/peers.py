"""Runtimes that a program is measured beside on this machine, one at a time, each in turn with ours."""

import importlib.util
import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np

from app.engine.runtime.benchmark import Samples, keep_to, measure_in_turn
from app.engine.runtime.oracle import Run, runtime
from app.engine.runtime.verify import Difference, compare
from app.engine.types.errors import NumericsError

LONGEST = 300  # characters of an error
# Seconds before a turn on several threads: those of another runtime look for work for tens of milliseconds.
SETTLING = 0.05


@dataclass(frozen=True, slots=True)
class Peer:
    """A runtime: how people write it, its package, and what opens a model file on so many threads.

    `copies` is how many times it keeps the weights.
    """

    name: str
    package: str
    open: Callable[[Path, int], Run]
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Rival:
    """A peer beside ours on the same inputs.

    Attributes:
        name: of the peer.
        version: of its package; empty where it is not installed.
        ours: samples of our program that took turns with it; None where the peer has none.
        samples: of the peer.
        reason: why it has none.
        differences: of our outputs from its outputs.
        unlike: why the outputs could not be compared.
    """

    name: str
    version: str
    ours: Samples | None = None
    samples: Samples | None = None
    reason: str = ""
    differences: tuple[Difference, ...] = ()
    unlike: str = ""

    @property
    def ratio(self) -> float | None:
        """Its time over ours: above 1 ours is faster."""
        return self.samples.p50 / self.ours.p50 if self.samples and self.ours else None


@dataclass(frozen=True, slots=True)
class Question:
    """Question to a peer: a model file on these inputs, on so many threads of these cores.

    `outputs` are ours; an output may differ by its tolerance, or by `tolerance` where it has none of its own.
    """

    path: Path
    inputs: Mapping[str, object]
    outputs: Mapping[str, object]
    tolerances: Mapping[str, float]
    tolerance: float
    threads: int
    cores: tuple[int, ...]

    def settle(self) -> None:
        """Come back to the cores, which OpenVINO leaves, and let threads of others fall asleep."""
        keep_to(self.cores)
        if self.threads > 1:
            time.sleep(SETTLING)


def beside(
    peer: Peer, question: Question, works: Sequence[Callable[[], object]], seconds: float
) -> tuple[Rival, list[Samples]]:
    """A peer in turn with `works`, the first of which is ours, and their samples; none where it refuses.

    It is released before this returns.
    """
    rival = Rival(peer.name, _version(peer.package))
    if importlib.util.find_spec(peer.package) is None:
        return replace(rival, reason=f"{peer.package} is not installed"), []
    needed, spare = peer.copies * nbytes_of(question.path), spare_bytes()
    if needed > spare:
        reason = f"it needs {needed} byte for its weights, the job may take {spare} more"
        return replace(rival, reason=reason), []
    try:
        run = peer.open(question.path, question.threads)
        theirs = run(question.inputs)
    except Exception as cause:  # peers raise types of their own, and any of them is one
        return replace(rival, reason=rejection(cause)), []
    try:
        found = compare(theirs, question.outputs, question.tolerance)
        allowed = question.tolerances
        rival = replace(
            rival,
            differences=tuple(
                replace(d, tolerance=max(d.tolerance, allowed.get(d.name, 0.0))) for d in found
            ),
        )
    except NumericsError as cause:
        rival = replace(rival, unlike=rejection(cause))
    samples = measure_in_turn([*works, partial(run, question.inputs)], seconds, before=question.settle)
    return replace(rival, ours=samples[0], samples=samples[-1]), samples[:-1]


def nbytes_of(path: Path) -> int:
    """Bytes of a model file and of its external data beside it."""
    return sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())


def spare_bytes() -> float:
    """Bytes that this process may still take; infinite where nothing limits it.

    Source: getrlimit(2), RLIMIT_DATA; proc_pid_status(5), VmData.
    """
    limit, status = resource.getrlimit(resource.RLIMIT_DATA)[0], Path("/proc/self/status")
    if limit == resource.RLIM_INFINITY or not status.exists():
        return math.inf
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return max(limit - int(lines["VmData"].split()[0]) * 1024, 0)


def rejection(cause: Exception) -> str:
    """The first line of an error."""
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0][:LONGEST]


def openvino(path: Path, threads: int, precision: str | None = "f32") -> tuple[Run, str]:
    """A model file in OpenVINO for latency, one stream, and the precision that it says it computes in.

    Without a precision the choice is its own. Neither inputs nor outputs are copied: the fastest way its
    Python interface offers.
    """
    import openvino

    settings: dict[str, object] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
    }
    if precision:
        settings["INFERENCE_PRECISION_HINT"] = precision
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    request = compiled.create_infer_request()
    accepted = {name for port in compiled.inputs for name in port.names}
    outputs = [(sorted(port.names), port) for port in compiled.outputs]

    def run(inputs: Mapping[str, object]) -> dict[str, object]:
        fed = {k: np.asarray(v) for k, v in inputs.items() if k in accepted}
        found = request.infer(fed, share_inputs=True, share_outputs=True)
        return {name: found[port] for names, port in outputs for name in names}

    return run, used


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


PEERS = (
    Peer("onnxruntime", "onnxruntime", lambda path, threads: runtime(path, threads=threads, optimized=True)),
    Peer("OpenVINO", "openvino", lambda path, threads: openvino(path, threads)[0], copies=2),
)
