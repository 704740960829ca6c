"""Kernels of 16-bit floats for a processor with AVX2 and F16C alone, compiled and run in a process of its own.

See `tests.kernels.cross`; these are called too, so this machine must have the instructions. Prints JSON: by kernel,
how often instructions stand in its machine code, and the largest error relative to the largest result.

    NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=... python -m tests.kernels.cross_half FOLDER
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from app.engine.core.registry import load
from app.kernels.cpu.codegen import linking
from app.kernels.cpu.codegen.machine_code import assembly
from app.kernels.cpu.codegen.pipeline import bitcode
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import context, implementation, run_group
from tests.kernels.single_node import text_group

INSTRUCTIONS = ("vcvtph2ps", "vcvtps2ph")
KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
REGISTRY = load()
Array = np.ndarray[Any, Any]


def computed(
    name: str,
    body: str,
    values: Mapping[str, Array],
    fixed: Mapping[str, Array],
    expected: Array,
    narrow: Mapping[str, str],
    compiler: Compiler,
) -> dict[str, object]:
    """What a row makes of a node whose values in `narrow` have 16 bits, and of what machine code."""
    group = text_group(body, values, fixed, opset=24)
    for value in (*group.inputs, *group.outputs):
        if value.name in narrow:
            value.type = ir.TensorType(ir.DataType[narrow[value.name].upper()])
    given = {n: a.astype(KINDS[narrow[n]]) if n in narrow else a for n, a in values.items()}
    row, before = implementation(name, REGISTRY), set(linking._OBJECTS)
    assert row.rejection(group, context(1, 8)) is None
    (found,) = run_group(row, group, given, compiler, lanes=8)
    error = np.abs(found.astype(np.float64) - expected).max() / np.abs(expected).max()
    paths = [k.path for k in compiler._kernels.values()]
    paths += [path for symbol, path in linking._OBJECTS.items() if symbol not in before]
    texts = [assembly(bitcode(path)) for path in paths]
    compiler._kernels.clear()
    counts = {i: sum(len(re.findall(i, t)) for t in texts) for i in (*INSTRUCTIONS, "zmm")}
    return {"error": float(error), **counts}


def main(folder: Path) -> None:
    """Compile, run and print."""
    compiler = Compiler(folder, processes=1)
    rng = np.random.default_rng(0)
    rows: dict[str, dict[str, object]] = {}
    for kind, dtype in KINDS.items():

        def drawn(*shape: int, dtype: np.dtype[Any] = dtype) -> Array:
            return rng.standard_normal(shape).astype(dtype).astype(np.float32)

        for m, n in ((1, 20), (13, 133)):  # other tiles, so another kernel
            a, b = drawn(m, 301), drawn(301, n)
            rows[f"product of {m}, {kind}"] = computed(
                "matmul.half_weights", "MatMul(a, b)", {"a": a}, {"b": b},
                a.astype(np.float64) @ b.astype(np.float64), {}, compiler,
            )  # fmt: skip
        x = drawn(5, 37)
        e = np.exp(x.astype(np.float64))
        rows[f"softmax, {kind}"] = computed(
            "softmax.softmax", "Softmax(x)", {"x": x}, {}, e / e.sum(-1, keepdims=True),
            {"x": kind, "y": kind}, compiler,
        )  # fmt: skip
        if kind == "bfloat16":  # what remains differs in the same loads
            continue
        x, w = drawn(1, 40, 9, 7), drawn(120, 40, 1, 1)
        rows[f"convolution, {kind}"] = computed(
            "conv.blocked_half_weights", "Conv(x, w)", {"x": x}, {"w": w},
            np.einsum("ncij,kc->nkij", x.astype(np.float64), w[..., 0, 0].astype(np.float64)), {}, compiler,
        )  # fmt: skip
        q, k, v = drawn(1, 2, 3, 20), drawn(1, 2, 43, 20), drawn(1, 2, 43, 20)
        e = np.exp(q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) / np.sqrt(20))
        for row in ("rows", "blocks"):
            rows[f"attention by {row}, {kind}"] = computed(
                f"attention.{row}", "Attention(q, k, v)", {"q": q, "k": k, "v": v}, {},
                e / e.sum(-1, keepdims=True) @ v.astype(np.float64), {"k": kind, "v": kind}, compiler,
            )  # fmt: skip
    print(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
