"""Compile kernels for another processor, which this one need not be: run as a process of its own.

numba reads the processor's name and features from the environment when it is imported, for the whole
process. Nothing that is compiled is called. Prints JSON: by kernel, how often instructions
stand in its machine code, and registers that innermost loops keep on the stack.

    NUMBA_CPU_NAME=znver4 NUMBA_CPU_FEATURES=... python -m tests.kernels.cross FOLDER
"""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np

from app.engine.core.calls import KernelCall
from app.engine.core.registry import PlanningContext, load
from app.engine.types.precision import Computed
from app.engine.types.target import find
from app.kernels.cpu.codegen import linking
from app.kernels.cpu.codegen.generator import spills
from app.kernels.cpu.codegen.machine_code import assembly
from app.kernels.cpu.codegen.pipeline import bitcode
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import group_of, implementation, model_of

TARGET = replace(find("cpu-avx512-bf16"), name="other")
TILED = replace(TARGET, isa=(*TARGET.isa, "amx_tile", "amx_bf16", "amx_int8"))
FLOATS, INTEGERS = ("vdpbf16ps", "vcvtneps2bf16", "vcvtne2ps2bf16"), ("vpdpbusd", "vpdpwssd")
INSTRUCTIONS = (*FLOATS, *INTEGERS, "tdpbf16ps", "tdpbusd", "tdpbsud")
CONV = """g (float[1,64,14,14] x, float[96,64,3,3] w) => (float[1,96,14,14] y)
    { y = Conv<pads = [1, 1, 1, 1]>(x, w) }"""
DEEP = """g (float[1,256,14,14] x, float[144,256,3,3] w) => (float[1,144,14,14] y)
    { y = Conv<pads = [1, 1, 1, 1]>(x, w) }"""
WIDE = """g (float[1,64,14,14] x, float[96,64,5,5] w) => (float[1,96,14,14] y)
    { y = Conv<pads = [2, 2, 2, 2]>(x, w) }"""
STEM = """g (float[1,3,32,32] x, float[32,3,7,7] w) => (float[1,32,16,16] y)
    { y = Conv<pads = [3, 3, 3, 3], strides = [2, 2]>(x, w) }"""
MATMUL = "g (float[64,512] x, float[512,768] w) => (float[64,768] y) { y = MatMul(x, w) }"
ROWS = "g (float[4,512] x, float[512,768] w) => (float[4,768] y) { y = MatMul(x, w) }"
INTEGER = """g (uint8[64,512] x, int8[512,96] w) => (int32[64,96] y) { y = MatMulInteger(x, w) }"""
INTEGER_CONV = """g (uint8[1,64,14,14] x, int8[96,64,3,3] w) => (int32[1,96,14,14] y)
    { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w) }"""
CASES = {
    "conv.blocked_bf16": CONV,
    "conv.blocked_int16": CONV,
    "conv.winograd_f2_bf16": CONV,
    "matmul.blocked_bf16": MATMUL,
    "matmul.blocked_int16": MATMUL,
    "matmul.blocked": MATMUL,
    "matmul.fixed_point": ROWS,
    "conv.winograd_f4": CONV,
    "conv.winograd_f4_fixed_point": DEEP,
    "conv.winograd_f2_5x5": WIDE,
    "matmul_integer.dot": INTEGER,
}
TILED_CASES = {"conv.blocked_tiles": CONV, "conv.blocked_stem_tiles": STEM, "matmul.tiles": MATMUL}
TILED_CASES |= {"matmul_integer.tiles": INTEGER, "conv_integer.tiles": INTEGER_CONV}


def compiled(name: str, text: str, compiler: Compiler) -> list[dict[str, object]]:
    """The functions of a row's kernels for one group, each with its instructions and spills."""
    registry, tiled = load(), name in TILED_CASES
    ((kind, shape),) = re.findall(r"(\w+)\[([\d,]+)\] w", text)
    w = np.random.default_rng(0).standard_normal([int(d) for d in shape.split(",")], np.float32)
    w = (w * 40).astype(np.int8) if kind == "int8" else w
    precision: Computed = "bf16" if name.endswith(("bf16", "tiles")) else "f32"
    group = group_of(model_of(f'<ir_version: 10, opset_import: ["": 21]> {text}', {"w": w}), registry)
    row, context = (
        implementation(name, registry),
        PlanningContext(TILED if tiled else TARGET, precision=precision),
    )
    reason = row.rejection(group, context)
    assert reason is None, reason
    before = set(linking._OBJECTS)
    texts = []
    for call in row.lower(group, context):
        assert isinstance(call, KernelCall)
        kernel = compiler.compile(call.kernel, call.types, call.static, takes_thread=call.takes_thread)
        texts.append((call.kernel, assembly(bitcode(kernel.path))))
    texts += [(s, assembly(bitcode(path))) for s, path in linking._OBJECTS.items() if s not in before]
    return [
        {
            "function": symbol.rpartition(".")[2],
            "instructions": {i: len(re.findall(rf"{i}\s.*%[yzt]mm", assembly)) for i in INSTRUCTIONS},
            "spills": spills(assembly, main_tile(symbol)),
        }
        for symbol, assembly in texts
    ]


def main_tile(symbol: str) -> str:
    """The tile of a library that takes nearly all the time."""
    return getattr(sys.modules.get(symbol.rpartition(".")[0]), "MAIN", "product_")


if __name__ == "__main__":
    compiler = Compiler(Path(sys.argv[1]), processes=1)
    cases = CASES | (TILED_CASES if "amx-bf16" in (numba.config.CPU_FEATURES or "") else {})
    print(json.dumps({name: compiled(name, text, compiler) for name, text in cases.items()}))
