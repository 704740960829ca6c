"""The processor that a library for a target is compiled for."""

from collections.abc import Mapping

from app.engine.types.errors import TargetError
from app.engine.types.target import Target, host, is_host
from app.kernels.cpu.runtime.processor import ARCHITECTURE, Processor, compiled_for

NEON = Processor("generic", "+neon,+fp-armv8", "aarch64")  # what every processor of 64-bit ARM has
BASE = "x86-64-v3"  # LLVM's name of what every processor with AVX2 and FMA has
REQUIRED = frozenset({"avx2", "fma"})
_BASE_FEATURES = (
    *("cx16", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2", "avx", "avx2", "fma", "f16c"),
    *("bmi", "bmi2", "lzcnt", "movbe"),
)
# LLVM's names of what a flag of /proc/cpuinfo stands for, with what it implies.
_FEATURES: Mapping[str, tuple[str, ...]] = {
    "avx512f": ("avx512f",),
    "avx512bw": ("avx512f", "avx512bw"),
    "avx512vl": ("avx512f", "avx512vl"),
    "avx512_vnni": ("avx512f", "avx512vnni"),
    "avx512_bf16": ("avx512f", "avx512bw", "avx512bf16"),
    "avx_vnni": ("avxvnni",),
    "amx_tile": ("amx-tile",),
    "amx_bf16": ("amx-tile", "amx-bf16"),
    "amx_int8": ("amx-tile", "amx-int8"),
}


def processor_of(target: Target) -> Processor:
    """The processor of a target: this machine's own, or one that has the instruction sets that `isa` names.

    Raises:
        TargetError: it is none that libraries are made for; the message says why.
    """
    if target.device != "cpu":
        raise TargetError(f"target {target.name!r} is no CPU; libraries are made for CPUs", pointer=_POINTER)
    if is_host(target, host()):
        return compiled_for()
    if ARCHITECTURE != "x86_64":
        raise TargetError(
            f"target {target.name!r}: only x86-64 machines make libraries for others, this is {ARCHITECTURE}",
            pointer=_POINTER,
        )
    if "neon" in target.isa:
        return NEON._replace(features=NEON.features + ",+dotprod" * ("asimddp" in target.isa))
    missing = sorted(REQUIRED - set(target.isa))
    if missing:
        raise TargetError(
            f"target {target.name!r}: libraries for another machine need 'neon', or {' and '.join(missing)}, "
            f"in 'isa', found {list(target.isa)}",
            pointer=_POINTER,
        )
    features = (*_BASE_FEATURES, *(f for flag in target.isa for f in _FEATURES.get(flag, ())))
    return Processor(BASE, ",".join(f"+{f}" for f in dict.fromkeys(features)))


_POINTER = "/options/export"
