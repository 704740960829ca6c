"""High water of onnxruntime's arena: the activations of a model there, read from what the arena logs."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnxruntime

RUNS = 2  # after the first the arena has its pattern; it may still grow in the second
WARNING = 2  # severity at which onnxruntime logs by default
MARK = "stowplan mark: "
EXTENDING = re.compile(r"Extending BFCArena for Cpu.*num_bytes: (\d+)")
_TOTAL = re.compile(r"Total allocated bytes: (\d+)")
_RESERVED = re.compile(r"Reserving memory in BFCArena for Cpu size: (\d+)")


def high_water(log: str, mark: str) -> int:
    """Bytes that the arena grew to after a mark in the log, less those that it held there; 0 for none.

    What it holds at the mark, when the session is made, are weights.
    """
    made, _, rest = log.partition(mark)
    totals = [int(n) for n in _TOTAL.findall(rest)]
    return totals[-1] - _held(made) if totals else 0


def measured(
    path: Path, inputs: Mapping[str, object], outputs: Mapping[str, object], threads: int, folder: Path
) -> int:
    """High water of a model file in onnxruntime, weights, inputs and outputs apart.

    `outputs` have the shapes of what it computes; the log goes to a file in `folder`.

    Raises:
        ValueError: an input or output is no tensor, or the arena told nothing.
        Exception: whatever onnxruntime raises for a model that it does not support.
    """
    for name, value in (*inputs.items(), *outputs.items()):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            raise ValueError(f"{name!r} is no tensor of numbers")
    with tempfile.TemporaryFile(dir=folder) as file:
        with _logged(file):
            _run(path, inputs, outputs, threads)
        file.seek(0)
        log = file.read().decode(errors="replace")
    found = high_water(log, f"{MARK}made")
    if found <= 0:
        raise ValueError("its arena logged no allocation")
    return found


def _run(path: Path, inputs: Mapping[str, object], outputs: Mapping[str, object], threads: int) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 0
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for read in session.get_inputs():
        if read.name in inputs:
            binding.bind_cpu_input(read.name, inputs[read.name])
    for written in session.get_outputs():
        value = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(np.asarray(outputs[written.name])))
        binding.bind_ortvalue_output(written.name, value)
    os.write(2, f"{MARK}made\n".encode())
    for _ in range(RUNS):
        session.run_with_iobinding(binding)


@contextlib.contextmanager
def _logged(file: BinaryIO) -> Iterator[None]:
    """Redirect standard error to the file, with onnxruntime's log in all details."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    onnxruntime.set_default_logger_severity(0)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(WARNING)
        os.dup2(kept, 2)
        os.close(kept)


def _held(log: str) -> int:
    """Bytes that an arena holds after this log."""
    totals = [int(n) for n in _TOTAL.findall(log)]
    after = log[log.rfind("Total allocated bytes") :] if totals else log
    return (totals[-1] if totals else 0) + sum(int(n) for n in _RESERVED.findall(after))
