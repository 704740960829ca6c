"""The runtimes that we are measured against, each as `inputs -> outputs`."""

from dataclasses import dataclass
from pathlib import Path

from app.engine.runtime.oracle import Run, runtime
from app.engine.runtime.peers import openvino

ONNXRUNTIME, OPENVINO_F32, OPENVINO = "onnxruntime", "openvino f32", "openvino default"


@dataclass(frozen=True, slots=True)
class Peer:
    """A runtime that holds a model, and the precision that it says it computes in."""

    name: str
    file: Path
    run: Run
    precision: str


def onnxruntime_peer(path: Path, threads: int) -> Peer:
    """Onnxruntime with all optimizations."""
    return Peer(ONNXRUNTIME, path, runtime(path, threads=threads, optimized=True), "f32")


def openvino_peer(path: Path, threads: int, *, precision: str | None) -> Peer:
    """OpenVINO for latency; `precision` None leaves the choice to it."""
    run, used = openvino(path, threads, precision)
    return Peer(OPENVINO if precision is None else f"openvino {precision}", path, run, used)
