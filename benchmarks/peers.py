"""The runtimes that we are measured against, each as `inputs -> outputs`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.engine.oracle import Run, runtime

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
    """OpenVINO for latency, one stream; `precision` None leaves the choice to it.

    Neither inputs nor outputs are copied: the fastest way its Python interface offers.
    """
    import openvino  # an extra of the benchmarks

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
    accepted = {name: port for port in compiled.inputs for name in port.names}
    outputs = [(sorted(port.names), port) for port in compiled.outputs]

    def run(inputs: Mapping[str, object]) -> dict[str, object]:
        fed = {k: np.asarray(v) for k, v in inputs.items() if k in accepted}
        found = request.infer(fed, share_inputs=True, share_outputs=True)
        return {name: found[port] for names, port in outputs for name in names}

    return Peer(OPENVINO if precision is None else f"openvino {precision}", path, run, used)
