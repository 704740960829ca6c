"""Kernels for processors that this one need not be: their machine code has the instructions meant for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FEATURES = "avx avx2 fma f16c bmi bmi2 avx512f avx512bw avx512dq avx512vl avx512cd avx512bf16 avx512vnni"


@pytest.mark.parametrize("processor", ["sapphirerapids", "znver4"])
def test_products_are_one_instruction_and_nothing_is_spilled(processor: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,  # noqa: TID251  # numba reads the processor from the environment alone
        "NUMBA_CPU_NAME": processor,
        "NUMBA_CPU_FEATURES": ",".join(f"+{f}" for f in FEATURES.split()),
    }
    command = [sys.executable, "-m", "tests.kernels.cross", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for row, functions in json.loads(done.stdout).items():
        found = {i for f in functions for i, count in f["instructions"].items() if count}
        bf16 = {"vdpbf16ps", "vcvtneps2bf16"} if row.endswith("bf16") else set()
        assert found == (bf16 or ({"vpdpbusd"} if row.endswith("dot") else set())), row
        assert {f["function"]: f["spills"] for f in functions if f["spills"]} == {}, row
