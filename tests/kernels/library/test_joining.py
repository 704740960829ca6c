"""Objects joined to one: what it computes, and what of it others see."""

import ctypes
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.kernels.cpu.runtime.processor import compiled_for
from app.kernels.library.elf import LinkError, RelocatableObject
from app.kernels.library.joining import joined
from app.kernels.library.linker import Weights, shared_library
from app.kernels.library.object_file import Emitter

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="libraries are for x86-64")

# Each has a table, a counter and a function of its own under the same names; one calls the other, through a table.
CALLER = """
@table = internal constant [3 x i64] [i64 10, i64 20, i64 30]
@count = internal global i64 0
@functions = internal constant [2 x ptr] [ptr @twice, ptr @answer]
declare i64 @answer(i64)
define internal i64 @twice(i64 %x) noinline {
  %y = mul i64 %x, 2
  ret i64 %y
}
define i64 @asked(i64 %which, i64 %x) {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  %at = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %which
  %f = load ptr, ptr %at
  %y = call i64 %f(i64 %x)
  %row = getelementptr [3 x i64], ptr @table, i64 0, i64 %which
  %n = load i64, ptr %row
  %sum = add i64 %y, %n
  %all = add i64 %sum, %new
  ret i64 %all
}
"""
CALLED = """
@table = internal constant [2 x i64] [i64 1000, i64 2000]
@count = internal global i64 0
@shared = hidden global double 0.5
declare double @exp2(double)
define internal i64 @twice(i64 %x) noinline {
  %y = mul i64 %x, 200
  ret i64 %y
}
define hidden i64 @answer(i64 %x) {
  %old = load i64, ptr @count
  %new = add i64 %old, 100
  store i64 %new, ptr @count
  %row = getelementptr [2 x i64], ptr @table, i64 0, i64 %x
  %n = load i64, ptr %row
  %y = call i64 @twice(i64 %x)
  %half = load double, ptr @shared
  %e = fadd double %half, 2.5
  %p = call double @exp2(double %e)
  %q = fptosi double %p to i64
  %a = add i64 %n, %y
  %b = add i64 %a, %new
  %c = add i64 %b, %q
  ret i64 %c
}
"""


@pytest.fixture(scope="module")
def objects() -> list[bytes]:
    emitter = Emitter(compiled_for())
    return [emitter.of_assembly(text) for text in (CALLER, CALLED)]


def test_each_object_keeps_its_own_names_and_calls_the_others(objects: list[bytes], tmp_path: Path) -> None:
    weights = Weights("weights", [b""], b"")
    for name, order in (("one", objects), ("other", objects[::-1])):
        path = tmp_path / f"{name}.so"
        path.write_bytes(shared_library(joined(order, ["asked"]), ["asked"], name, weights).content)
        asked = ctypes.CDLL(str(path)).asked
        assert asked(0, 7) == 2 * 7 + 10 + 1
        assert asked(1, 1) == 2000 + 200 + 100 + 8 + 20 + 2
        assert asked(1, 0) == 1000 + 200 + 8 + 20 + 3


def test_what_is_not_exported_is_local(objects: list[bytes]) -> None:
    obj = RelocatableObject(joined(objects, ["asked"]))
    seen = {s.name: bool(s.section) for s in obj.symbols if s.info >> 4}
    assert seen == {"asked": True, "exp2": False}
    again = RelocatableObject(joined([joined(objects, ["asked"])], ["asked"]))
    assert [s.content for s in again.sections.values()] == [s.content for s in obj.sections.values()]


def test_a_name_that_two_objects_define_is_refused(objects: list[bytes]) -> None:
    with pytest.raises(LinkError, match="two objects define 'asked'"):
        joined([*objects, objects[0]], ["asked"])


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf on this machine")
def test_tools_read_the_object(objects: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "whole.o").write_bytes(joined(objects, ["asked"]))
    command = ["readelf", "-aW", "--debug-dump=frames", "whole.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not re.search("warning|error", done.stderr + done.stdout, re.I)
    assert done.stdout.count(" FDE ") == 4
