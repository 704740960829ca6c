"""The bits of CPUID, and of AT_HWCAP on 64-bit ARM, that stand for LLVM's names of instruction sets.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, CPUID; AMD64 Architecture
Programmer's Manual, volume 3, appendix E; Linux, Documentation/arch/arm64/elf_hwcaps.rst.
"""

from collections.abc import Mapping
from typing import NamedTuple

EAX, EBX, ECX, EDX = range(4)
XCR0_AVX, XCR0_AVX512, XCR0_AMX = 0x6, 0xE6, 0x60000
EXTENDED = 0x80000001
HWCAP_ASIMDDP = 1 << 20


class Bit(NamedTuple):
    """One bit of an answer of CPUID."""

    leaf: int
    subleaf: int
    register: int
    bit: int


BITS: Mapping[str, Bit] = {
    "sse3": Bit(1, 0, ECX, 0),
    "pclmul": Bit(1, 0, ECX, 1),
    "ssse3": Bit(1, 0, ECX, 9),
    "fma": Bit(1, 0, ECX, 12),
    "cx16": Bit(1, 0, ECX, 13),
    "sse4.1": Bit(1, 0, ECX, 19),
    "sse4.2": Bit(1, 0, ECX, 20),
    "movbe": Bit(1, 0, ECX, 22),
    "popcnt": Bit(1, 0, ECX, 23),
    "avx": Bit(1, 0, ECX, 28),
    "f16c": Bit(1, 0, ECX, 29),
    "bmi": Bit(7, 0, EBX, 3),
    "avx2": Bit(7, 0, EBX, 5),
    "bmi2": Bit(7, 0, EBX, 8),
    "avx512f": Bit(7, 0, EBX, 16),
    "avx512dq": Bit(7, 0, EBX, 17),
    "avx512ifma": Bit(7, 0, EBX, 21),
    "avx512cd": Bit(7, 0, EBX, 28),
    "avx512bw": Bit(7, 0, EBX, 30),
    "avx512vl": Bit(7, 0, EBX, 31),
    "avx512vbmi": Bit(7, 0, ECX, 1),
    "avx512vbmi2": Bit(7, 0, ECX, 6),
    "gfni": Bit(7, 0, ECX, 8),
    "vaes": Bit(7, 0, ECX, 9),
    "vpclmulqdq": Bit(7, 0, ECX, 10),
    "avx512vnni": Bit(7, 0, ECX, 11),
    "avx512bitalg": Bit(7, 0, ECX, 12),
    "avx512vpopcntdq": Bit(7, 0, ECX, 14),
    "amx-bf16": Bit(7, 0, EDX, 22),
    "avx512fp16": Bit(7, 0, EDX, 23),
    "amx-tile": Bit(7, 0, EDX, 24),
    "amx-int8": Bit(7, 0, EDX, 25),
    "avxvnni": Bit(7, 1, EAX, 4),
    "avx512bf16": Bit(7, 1, EAX, 5),
    "avxvnniint8": Bit(7, 1, EDX, 4),
    "avxneconvert": Bit(7, 1, EDX, 5),
    "avxifma": Bit(7, 1, EAX, 23),
    "lzcnt": Bit(EXTENDED, 0, ECX, 5),
    "sse4a": Bit(EXTENDED, 0, ECX, 6),
    "xop": Bit(EXTENDED, 0, ECX, 11),
    "fma4": Bit(EXTENDED, 0, ECX, 16),
    "tbm": Bit(EXTENDED, 0, ECX, 21),
}


def required(features: str, tile_registers: bool) -> tuple[tuple[Bit, ...], int]:
    """Bits that must be set for code with these features, and the bits of XCR0; of AT_HWCAP on ARM.

    Args:
        features: as LLVM takes them, `+avx2,-avx512f,...`; those that are no instructions which LLVM
            chooses by itself are left out.
        tile_registers: whether the code has instructions of AMX, which LLVM never chooses by itself.
    """
    on = {name[1:] for name in features.split(",") if name.startswith("+")}
    if "neon" in on:
        return (), HWCAP_ASIMDDP * ("dotprod" in on)
    if not tile_registers:  # a system may refuse them to a process that has no use for them
        on = {name for name in on if not name.startswith("amx-")}
    bits = tuple(bit for name, bit in BITS.items() if name in on)
    state = XCR0_AVX if "avx" in on else 0
    state |= XCR0_AVX512 if "avx512f" in on else 0
    return bits, state | (XCR0_AMX if "amx-tile" in on else 0)
