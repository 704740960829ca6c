"""Loading of object files: where the parts of one come to lie."""

import subprocess
import sys
from pathlib import Path

from app.kernels.cpu.codegen.machine_code import emit, parsed
from app.kernels.cpu.runtime.processor import compiled_for

MODULE = """
@table = private constant [4 x i32] [i32 7, i32 8, i32 9, i32 10]
define hidden i32 @{symbol}(i64 %i) {{
  %place = getelementptr [4 x i32], ptr @table, i64 0, i64 %i
  %number = load i32, ptr %place
  call void asm sideeffect ".zero 5000, 0x90", ""()
  ret i32 %number
}}
"""
# All free addresses above 3 GiB are taken but for one page: the table of the second object fits there, its code
# does not.
LOADING = """
import ctypes, mmap, pathlib, sys
from app.kernels.cpu.codegen.machine_code import Loader

c = ctypes.CDLL(None)
c.mmap.restype, c.mmap.argtypes = ctypes.c_size_t, [ctypes.c_size_t] * 2 + [ctypes.c_int] * 3 + [ctypes.c_long]
c.munmap.argtypes = [ctypes.c_size_t] * 2
KIND, NO_RESERVE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 0x4000

def taken(nbytes):
    return c.mmap(0, nbytes, 0, KIND | NO_RESERVE, -1, 0)

loader = Loader(pathlib.Path(sys.argv[1]))
loader.address("near")
free = taken(3 * mmap.PAGESIZE)
below = taken(3 << 30)
for bits in (30, 26, 22, 18, 14, 12):
    while taken(1 << bits) > below:
        pass
c.munmap(free + mmap.PAGESIZE, mmap.PAGESIZE)
print(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64)(loader.address("far"))(2))
"""


def test_code_reaches_its_data_where_the_addresses_beside_are_taken(tmp_path: Path) -> None:
    for symbol in ("near", "far"):
        content = emit(parsed(MODULE.format(symbol=symbol), compiled_for()))
        (tmp_path / f"{symbol}.o").write_bytes(content)
    run = subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.stdout == "9\n", run.stderr
