"""What a job takes of memory, as it measures it itself, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from app.engine.model.spool import Spool
from app.kernels.cpu.runtime.compiler import Compiler

Json = dict[str, Any]
RATIO = 3  # of the file's bytes
SEARCH_RATIO = 8  # the same under an error budget

SCRIPT = """
import json, sys
from pathlib import Path
from app.engine.entry import execution as module
from app.engine.entry.optimize import optimize
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
path, kernels, timings, budget = sys.argv[1:]
# OpenVINO, which not everybody has, keeps the weights twice while it is measured.
module.PEERS = tuple(peer for peer in module.PEERS if peer.copies == 1)
budget = float(budget) or None
options = Options(timings=timings, autotune=False, benchmark_seconds=0.2, error_budget=budget)
print(json.dumps(optimize(Path(path), host(), options, Bindings(), Path(path).parent, kernels=Path(kernels))["memory"]))
"""


def model(folder: Path, n: int, c: int) -> Path:
    """Products of n x n weights, and convolutions of c channels; the opset is raised when it is loaded."""
    rng = np.random.default_rng(0)
    inits = {f"w{i}": rng.standard_normal((n, n), np.float32) for i in range(5)}
    inits |= {f"k{i}": rng.standard_normal((c, c, 3, 3), np.float32) for i in range(3)}
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[8,{n}] x, float[1,{c},8,8] z) => (float[8,{n}] y, float[1,{c},8,8] v) {{
            a = MatMul(x, w0) ra = Relu(a) b = MatMul(ra, w1) rb = Relu(b) d = MatMul(rb, w2) rd = Relu(d)
            e = Gemm<transB = 1>(rd, w3) re = Relu(e) y = Gemm<transB = 1>(re, w4)
            f = Conv<pads = [1, 1, 1, 1]>(z, k0) rf = Relu(f) h = Conv<pads = [1, 1, 1, 1]>(rf, k1)
            rh = Relu(h) v = Conv<pads = [1, 1, 1, 1]>(rh, k2)
        }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in inits.items())
    folder.mkdir()
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def measured(path: Path, compiler: Compiler, timings: str, budget: float = 0.0) -> Json:
    command = [sys.executable, "-c", SCRIPT, str(path), str(compiler.cache), timings, str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Json = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("timings", ["predicted", "measured"])
def test_a_job_takes_three_times_its_file_at_most(tmp_path: Path, compiler: Compiler, timings: str) -> None:
    small = measured(model(tmp_path / "small", 64, 32), compiler, timings)
    path = model(tmp_path / "large", 1408, 512)
    large = measured(path, compiler, timings)
    assert large["file_bytes"] == path.stat().st_size > 60e6
    taken = large["peak_bytes"] - small["peak_bytes"]  # what takes no memory for its weights takes the rest
    assert taken <= RATIO * large["file_bytes"], large
    assert large["peak_bytes"] == max(large["phases"].values())
    assert {"load", "canonicalize", "plan", "verify", "compile"} <= large["phases"].keys()


def test_a_search_for_precisions_holds_one_candidate_at_a_time(tmp_path: Path, compiler: Compiler) -> None:
    small = measured(model(tmp_path / "small", 64, 32), compiler, "measured", 0.05)
    path = model(tmp_path / "large", 1408, 128)
    large = measured(path, compiler, "measured", 0.05)
    taken = large["phases"]["precision"] - small["phases"]["precision"]
    assert taken <= SEARCH_RATIO * path.stat().st_size, large


def test_weights_in_a_spool_are_those_that_were_written(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "weights")
    raws = {name: np.random.default_rng(i).bytes(5000 + i) for i, name in enumerate("abc")}
    for name, raw in raws.items():
        spool.write(name, raw)
    views = {name: spool.bytes_of(name) for name in raws}
    spool.release()
    assert {name: view.tobytes() for name, view in views.items()} == raws
    assert not views["a"].flags.writeable
    assert all(offset % 4096 == 0 for offset, _ in spool.places.values())
