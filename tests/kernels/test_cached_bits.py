"""A kernel gives the same bits in the process that compiled it and in one that loads it from the disk cache."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array
from tests.kernels.single_node import node_group, run_node

# Every row whose kernel may reorder or fuse additions, with shapes that leave loops for the rest of a vector:
# row, operator, shapes of inputs, attributes.
ROWS: tuple[tuple[str, str, tuple[tuple[int, ...], ...], dict[str, object]], ...] = (
    ("softmax.softmax", "Softmax", ((64, 1000),), {}),
    ("softmax.softmax", "Softmax", ((3, 77, 5),), {"axis": 1}),
    ("softmax.log_softmax", "LogSoftmax", ((3, 1003),), {}),
    ("reduce.ReduceSum", "ReduceSum", ((3, 1003),), {}),
    ("reduce.ReduceLogSumExp", "ReduceLogSumExp", ((3, 1003),), {}),
    ("normalize.layer_norm", "LayerNormalization", ((3, 1003), (1003,), (1003,)), {}),
    ("normalize.rms_norm", "RMSNormalization", ((64, 1000), (1000,)), {}),
    ("normalize.lp_norm", "LpNormalization", ((3, 1003),), {"p": 1}),
    ("normalize.mean_variance", "MeanVarianceNormalization", ((2, 3, 17, 19),), {}),
    ("attention.rows", "Attention", ((1, 2, 5, 37), (1, 2, 203, 37), (1, 2, 203, 37)), {}),
    ("attention.blocks", "Attention", ((1, 2, 45, 37), (1, 2, 603, 37), (1, 2, 603, 37)), {}),
)


def digests(cache: Path) -> list[str]:
    """A hash of the output of each row, with kernels of this cache."""
    compiler, found = Compiler(cache, processes=1), []
    for row, operator, shapes, attributes in ROWS:
        rng = np.random.default_rng(len(found))
        inputs: dict[str, Array | None] = {
            name: rng.standard_normal(shape).astype(np.float32) for name, shape in zip("ABC", shapes)
        }
        rank, reduces = len(shapes[0]), operator.startswith("Reduce")
        y = np.empty((1,) * rank if reduces else shapes[0], np.float32)
        group = node_group(operator, inputs, {"Y": y}, **attributes)
        (y,) = run_node(compiler, row, group, inputs)
        found.append(hashlib.sha256(y.tobytes()).hexdigest())
    return found


def test_fresh_and_cached_kernels_give_equal_bits(tmp_path: Path) -> None:
    fresh = digests(tmp_path)
    script = "import json, sys; from tests.kernels import test_cached_bits as t; from pathlib import Path; "
    script += "print(json.dumps(t.digests(Path(sys.argv[1]))))"
    child = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, check=True, text=True, cwd=Path.cwd()
    )
    cached = json.loads(child.stdout)
    assert [row for row, a, b in zip(ROWS, fresh, cached) if a != b] == []
