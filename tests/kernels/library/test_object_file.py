"""Objects for another architecture out of modules for this one, and the limits of its instructions."""

import struct

import llvmlite.binding as binding
import pytest

from app.kernels.cpu.codegen.machine_code import emit, optimize
from app.kernels.cpu.runtime.processor import ARCHITECTURE, Processor
from app.kernels.library.elf import LinkError, RelocatableObject
from app.kernels.library.object_file import Emitter
from app.kernels.library.relocations import AARCH64, Site

pytestmark = pytest.mark.skipif(ARCHITECTURE != "x86_64", reason="libraries for others are made on x86-64")
ARM = Emitter(Processor("generic", "+neon", "aarch64"))
WAITING = """
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
define i64 @f() {
  call void @llvm.x86.sse2.pause()
  %t = call i64 @llvm.readcyclecounter()
  ret i64 %t
}
"""
INTERNAL = """
@NAME.table = private constant [4 x i64] [i64 1, i64 2, i64 3, i64 5]
define i64 @NAME(i64 %x) noinline {
  %p = getelementptr [4 x i64], ptr @NAME.table, i64 0, i64 %x
  %y = load i64, ptr %p
  ret i64 %y
}
define i64 @f(i64 %x) {
  %y = call i64 @NAME(i64 %x)
  %z = call i64 @NAME(i64 %y)
  ret i64 %z
}
"""
BYTES = """
declare <4 x i32> @llvm.x86.avx512.vpdpbusd.128(<4 x i32>, <16 x i8>, <16 x i8>)
define <4 x i32> @f(<4 x i32> %z, <16 x i8> %x) {
  %y = call <4 x i32> @llvm.x86.avx512.vpdpbusd.128(<4 x i32> %z, <16 x i8> %x, <16 x i8> %x)
  ret <4 x i32> %y
}
"""


def bitcode(text: str) -> bytes:
    return bytes(binding.parse_assembly(text).as_bitcode())


def test_a_loop_that_waits_yields() -> None:
    obj = RelocatableObject(ARM.of_bitcode(bitcode(WAITING)))
    assert obj.machine is AARCH64
    (text,) = (s for s in obj.sections.values() if s.name == ".text")
    assert 0xD503203F in struct.unpack(f"<{text.size // 4}I", text.content)  # yield
    assert [s.name for s in obj.symbols if s.info >> 4] == ["f"]


def test_instructions_of_this_architecture_alone_are_named() -> None:
    with pytest.raises(LinkError, match=r"aarch64 has no instruction for @llvm\.x86\.avx512\.vpdpbusd\.128"):
        ARM.of_bitcode(bitcode(BYTES))


def test_names_of_what_is_internal_change_no_byte() -> None:
    """numba's names count the functions that a process compiled before."""
    objects = set()
    for name in ("_ZN4testB2v9", "_ZN4testB3v10"):
        module = binding.parse_assembly(INTERNAL.replace("NAME", name))
        optimize(module, "f")
        objects.add(emit(module))
    (found,) = objects
    assert [s.name for s in RelocatableObject(found).symbols if s.info >> 4] == ["f"]


@pytest.mark.parametrize(("kind", "reach"), [(283, 1 << 27), (275, 1 << 32)])
def test_fields_hold_what_fits(kind: int, reach: int) -> None:
    form, content = AARCH64.fields[kind]
    for distance in (reach - 4096, -reach):
        struct.pack(form, content(0, Site(reach, reach + distance, 0)))
    with pytest.raises(struct.error):
        content(0, Site(0, reach, 0))
