"""`make bench-arena`: what activations take here and in onnxruntime, on the same models.

Weights, inputs and outputs count on neither side. Ours is the whole arena of the default plan, with
workspace, padding and alignment; beside it the bytes of activations of the plan that prefers memory.
onnxruntime's are read from what its arena logs: the high water after three runs less what the arena held
when the session was made, and the block that its memory pattern asks for in the second run, when the arena
is empty. Growth is of the resident memory of a fresh process over three runs.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.engine.runtime.onnxruntime_arena import EXTENDING, MARK, high_water
from benchmarks import models

NAMES = (
    "resnet50",
    "mobilenetv2",
    "mobilenetv3_large",
    "efficientnet_b0",
    "densenet121",
    "squeezenet",
    "convnext_tiny",
    "ppocrv4_det",
    "ppocrv4_rec",
    "ppocr_cls_v2",
    "ultraface_rfb320",
    "super_resolution_10",
    "dnsmos_sig_bak_ovr",
    "randwire",
    "darts_v2",
    "basic_pitch",
    "mnist_8",
    "mtcnn_pnet",
    "mtcnn_rnet",
    "aecmos_gru",
)


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.arena", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args(line)
    if arguments.child:
        what, path, form = arguments.child
        CHILDREN[what](Path(path), Path(form))
        return
    console, rows = Console(width=150), []
    with tempfile.TemporaryDirectory() as scratch:
        for name in arguments.names:
            found = models.find(name, arguments.models, Path(scratch))
            if found.path is None:
                console.print(f"{name}: {found.reason}", markup=False)
                continue
            row = measure(found.path, Path(scratch))
            rows.append({"model": name, **row})
            console.print(f"{name}: {row}", markup=False, highlight=False)
    console.print(printed(rows))
    for title, key in (("arena / high water", "ratio"), ("activations / pattern", "activation_ratio")):
        ratios = [row[key] for row in rows if row.get(key)]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            console.print(f"{title}: geometric mean {mean:.3f}, largest {max(ratios):.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def measure(path: Path, scratch: Path) -> dict[str, Any]:
    """Bytes of one model, each figure from a process of its own."""
    form = scratch / "specialized.onnx"
    row: dict[str, Any] = {}
    for what in ("ours", "preferred"):
        told = _child(what, path, form)
        row |= (
            json.loads(told.stdout.splitlines()[-1]) if told.returncode == 0 else {what: told.stderr[-300:]}
        )
    log = _child("onnxruntime", path, form).stderr
    row["high_water"] = high_water(log, f"{MARK}made")
    row["onnxruntime_growth"] = (
        int(re.findall(MARK + r"growth (-?\d+)", log)[-1]) if row["high_water"] else None
    )
    # The log of the second run, with an arena that is empty before it.
    second = _child("pattern", path, form).stderr.partition(MARK + "run 1")[2].partition(MARK + "run 2")[0]
    blocks = [int(n) for n in EXTENDING.findall(second)]
    row["pattern"] = blocks[0] if blocks else None
    if row.get("arena") and row["high_water"]:
        row["ratio"] = row["arena"] / row["high_water"]
    if row.get("activations") and row["pattern"]:
        row["activation_ratio"] = row["activations"] / row["pattern"]
    return row


def printed(rows: Sequence[dict[str, Any]]) -> Table:
    """The table of all models."""
    columns = (
        "arena",
        "high_water",
        "ratio",
        "preferred",
        "activations",
        "pattern",
        "activation_ratio",
        "growth",
        "onnxruntime_growth",
    )
    shown = Table("model", *columns)
    for row in rows:
        cells = [row.get(c) for c in columns]
        shown.add_row(row["model"], *(f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells))
    return shown


def _child(what: str, path: Path, form: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "benchmarks.arena", "--child", what, str(path), str(form)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _ours(path: Path, form: Path) -> None:
    from app.engine.types.options import Options

    figures = _planned(path, form, Options(), run=True)
    print(json.dumps({"arena": figures["peak"], "bound": figures["bound"], "growth": figures["growth"]}))


def _preferred(path: Path, form: Path) -> None:
    from app.engine.types.options import Options

    figures = _planned(path, form, Options(prefer="memory"), run=False)
    print(json.dumps({"preferred": figures["peak"], "activations": figures["activations"]}))


def _planned(path: Path, form: Path, options: Any, *, run: bool) -> dict[str, Any]:
    from app.engine.core.registry import load as load_registry
    from app.engine.model.load import load
    from app.engine.planning import session
    from app.engine.runtime.cpu.executor import Executor
    from app.engine.runtime.inputs import tensors
    from app.engine.types.options import Bindings
    from app.engine.types.target import host
    from app.kernels.cpu.runtime.compiler import Compiler
    from app.settings import Settings

    recorded = path.with_name(f"{path.stem}.io.npz")
    given = models.recorded(path.parent, path.stem)[0][0] if recorded.exists() else None
    bindings = Bindings() if given is None else models.bindings_of(given)
    compiler = Compiler(Settings.from_environment().data.absolute() / "kernels")
    compilation = session.canonical(load(path), host(), options, bindings, load_registry())
    compilation = session.tuned(compilation, options, compiler)
    program = session.planned(compilation, options)
    solution, growth = program.placement.solution, None
    if given is not None:
        models.specialize(path, given, tuple(bindings.values), form)
    elif run:
        form.write_bytes(path.read_bytes())
    if run:
        executor = Executor(program, compiler)
        inputs = given or tensors(compilation, bindings, options.seed)
        names = {v.name for v in compilation.graph.inputs}
        executor.feed({k: v for k, v in inputs.items() if k in names})
        before = _resident()
        for _ in range(3):
            executor.step()
        growth = _resident() - before
        executor.close()
    activations = program.placement.activations
    return {
        "peak": solution.peak,
        "bound": solution.lower_bound,
        "activations": activations,
        "growth": growth,
    }


def _onnxruntime(path: Path, form: Path, *, tight: bool = False) -> None:
    import numpy as np
    import onnxruntime as ort

    ort.set_default_logger_severity(0)
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 0
    running = ort.RunOptions()
    if tight:
        info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        config = ort.OrtArenaCfg({"arena_extend_strategy": 1, "initial_chunk_size_bytes": 256})
        ort.create_and_register_allocator(info, config)
        options.add_session_config_entry("session.use_env_allocators", "1")
        running.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    source = form if form.exists() else path
    session = ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    print(f"{MARK}made", file=sys.stderr, flush=True)
    recorded = path.with_name(f"{path.stem}.io.npz")
    given, expected = models.recorded(path.parent, path.stem)[0] if recorded.exists() else ({}, {})
    binding = session.io_binding()
    for i in session.get_inputs():
        array = given.get(i.name)
        if array is None:
            array = np.zeros([d if isinstance(d, int) else 1 for d in i.shape], np.float32)
        binding.bind_cpu_input(i.name, array)
    for o in session.get_outputs():
        # Outputs belong to the caller; without a recorded one, its shape is the model's.
        like = expected.get(o.name)
        if like is None:
            like = np.zeros([d if isinstance(d, int) else 1 for d in o.shape], np.float32)
        binding.bind_ortvalue_output(o.name, ort.OrtValue.ortvalue_from_numpy(np.zeros_like(like)))
    before = _resident()
    for run in range(3):
        print(f"{MARK}run {run}", file=sys.stderr, flush=True)
        session.run_with_iobinding(binding, running)
    print(f"{MARK}growth {_resident() - before}", file=sys.stderr, flush=True)


def _pattern(path: Path, form: Path) -> None:
    _onnxruntime(path, form, tight=True)


CHILDREN = {"ours": _ours, "preferred": _preferred, "onnxruntime": _onnxruntime, "pattern": _pattern}


if __name__ == "__main__":
    main()
