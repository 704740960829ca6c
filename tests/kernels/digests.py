"""Hashes of what kernels that sum compute, in a process of its own: by row, element type and length.

    [NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=...] python -m tests.kernels.digests FOLDER TYPES

FOLDER is the cache of the kernels, TYPES are of elements, between commas. Kernels are compiled for this processor, or
for the one of the environment, which numba reads when it is imported.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array
from tests.kernels.single_node import node_group, run_node

# Shapes of the inputs of a row, where N is replaced by each length; attributes.
N = -1
HEADS = ((1, 2, 5, N), (1, 2, 203, N), (1, 2, 203, N))
ROWS: tuple[tuple[str, str, tuple[tuple[int, ...], ...], dict[str, Any]], ...] = (
    ("softmax.softmax", "Softmax", ((3, N),), {}),
    ("softmax.softmax", "Softmax", ((2, N, 5),), {"axis": 1}),
    ("softmax.log_softmax", "LogSoftmax", ((3, N),), {}),
    *(
        (f"reduce.Reduce{op}", f"Reduce{op}", ((N,),), {})
        for op in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "SumSquare", "LogSumExp")
    ),
    ("normalize.layer_norm", "LayerNormalization", ((3, N), (N,), (N,)), {}),
    ("normalize.rms_norm", "RMSNormalization", ((3, N), (N,)), {}),
    ("normalize.lp_norm", "LpNormalization", ((3, N),), {"p": 1}),
    ("normalize.lp_norm", "LpNormalization", ((3, N),), {"p": 2}),
    ("normalize.mean_variance", "MeanVarianceNormalization", ((2, 3, 7, N),), {}),
    ("normalize.group_norm", "GroupNormalization", ((1, 4, N), (4,), (4,)), {"num_groups": 2}),
    ("attention.rows", "Attention", HEADS, {}),
    ("attention.blocks", "Attention", ((1, 2, 45, N), (1, 2, 603, N), (1, 2, 603, N)), {}),
)
# Below, at and above every width of a vector, and of a turn of four; more than one run.
LENGTHS = (1, 2, 3, 5, 7, 8, 11, 15, 16, 17, 28, 31, 32, 33, 37, 49, 63, 64, 65, 100, 127, 203, 1003, 9001)
LONGEST = {"attention.rows": 203, "attention.blocks": 203}
EXTREMA = ("ReduceMax", "ReduceMin")
IN_FLOAT64 = ("softmax.softmax", "reduce.ReduceSum", "normalize.lp_norm")  # too, as one of each kind


def digests(cache: Path, types: str) -> dict[str, str]:
    """A hash of the output of each row, with kernels of this cache."""
    compiler, found = Compiler(cache, processes=1), {}
    for row, operator, shapes, attributes in ROWS:
        for dtype in (t for t in types.split(",") if t == "float32" or row in IN_FLOAT64):
            for n in (n for n in LENGTHS if n <= LONGEST.get(row, n)):
                rng = np.random.default_rng(n)
                inputs: dict[str, Array | None] = {
                    name: rng.standard_normal([n if d == N else d for d in shape]).astype(dtype)
                    for name, shape in zip("ABC", shapes)
                }
                x = np.asarray(inputs["A"])
                if operator in EXTREMA:
                    inputs["A"] = x * np.array(rng.integers(2, size=n), dtype)  # zeros of both signs
                shape = (1,) if operator.startswith("Reduce") else x.shape
                group = node_group(operator, inputs, {"Y": np.empty(shape, dtype)}, **attributes)
                (y,) = run_node(compiler, row, group, inputs)
                name = f"{row} {dtype} {attributes} {n}"
                found[name] = hashlib.sha256(y.tobytes()).hexdigest()
    return found


if __name__ == "__main__":
    print(json.dumps(digests(Path(sys.argv[1]), sys.argv[2])))
