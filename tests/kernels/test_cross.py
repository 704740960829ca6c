"""Kernels for processors that this one need not be: their machine code has the instructions meant for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent.parent
FEATURES = "avx avx2 fma f16c bmi bmi2 avx512f avx512bw avx512dq avx512vl avx512cd avx512bf16 avx512vnni"

# What else a processor has, and what of it the rows with each ending use.
PROCESSORS = {"sapphirerapids": " amx-tile amx-bf16 amx-int8", "znver4": ""}
USED = {
    "bf16": {"vdpbf16ps", "vcvtneps2bf16"},
    "int16": {"vpdpwssd"},
    "matmul_integer.tiles": {"tdpbusd"},
    "conv_integer.tiles": {"tdpbsud"},
    "tiles": {"tdpbf16ps", "vcvtne2ps2bf16"},
    "dot": {"vpdpbusd"},
}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_products_are_one_instruction_and_nothing_is_spilled(processor: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,  # noqa: TID251  # numba reads the processor from the environment alone
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": ",".join(f"+{f}" for f in (FEATURES + PROCESSORS[processor]).split()),
    }
    command = [sys.executable, "-m", "tests.kernels.cross", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert ("matmul.tiles" in rows) == ("amx" in PROCESSORS[processor])
    for row, functions in rows.items():
        found = {i for f in functions for i, count in f["instructions"].items() if count}
        assert found == next((used for ending, used in USED.items() if row.endswith(ending)), set()), row
        assert {f["function"]: f["spills"] for f in functions if f["spills"]} == {}, row


def test_16_bit_floats_are_converted_in_registers_without_avx512(tmp_path: Path) -> None:
    features = "avx avx2 fma f16c bmi bmi2 popcnt sse4.2"
    environment = {
        **os.environ,  # noqa: TID251
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": ",".join(f"+{f}" for f in features.split()),
    }
    command = [sys.executable, "-m", "tests.kernels.cross_half", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert {row for row, found in rows.items() if found["zmm"]} == set()
    read = {row for row, found in rows.items() if found["vcvtph2ps"]}
    assert read == {row for row in rows if row.endswith(", float16")}
    assert {row for row, found in rows.items() if found["vcvtps2ph"]} == {"softmax, float16"}
    units = {"softmax, float16": 2.0**-11, "softmax, bfloat16": 2.0**-8}
    assert {row: found["error"] for row, found in rows.items() if found["error"] > units.get(row, 2e-6)} == {}
