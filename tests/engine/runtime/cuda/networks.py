"""The kernels of the five networks, in every precision, and which of them stand for others."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from app.engine.backends.cuda.dispatch import WARPS
from app.engine.runtime.cuda.executor import kernels_of
from app.engine.types.options import Bindings, Options
from app.engine.types.precision import Computed
from app.kernels.cuda.kernel import Kernel
from tests.engine.runtime.cuda.models import NETWORKS
from tests.engine.runtime.cuda.programs import fallbacks, planned
from tests.engine.runtime.cuda.test_models import BUILT, exported

NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")
HALF = re.compile(r"bfloat16|float16|bfloat|bf16|fp16|f16|half")
# What of a product's name tells its kind: all before the type of the result, and how blocks share its work.
PRODUCT = re.compile(r"(gemm|conv)_\w*?_\d+x\d+(w4|wg)?_|gemv_m\d+_[a-z]+\d*_|sum_splits_[a-z]+\d*_")
SHARE = re.compile(r"_split$|_r\d+_s\d+$")
REGISTERED = ("gemm_", "conv_", "attention_")  # whose tiles lie in registers


def kernels(name: str, shared: Path, scratch: Path) -> tuple[Kernel, ...]:
    """All kernels that the programs of a network launch, whatever they compute in; no node falls back."""
    path, bindings = scratch / f"{name}.onnx", Bindings()
    if name in BUILT:
        BUILT[name](path)
    else:
        path, bindings = exported(shared / "models", name)
    found: dict[Kernel, None] = {}
    for precision in get_args(Computed):
        program = planned(path, Options(precision=precision), bindings)
        assert fallbacks(program) == [], (name, precision)
        found |= dict.fromkeys(kernels_of(program))
    return tuple(found)


def family(kernel: Kernel) -> str:
    """What kernels have in common that differ in sizes, in the kind of 16-bit floats, or in a product's ending.

    3xtf32 is tf32 three times, with a longer text.
    """
    name = HALF.sub("half", kernel.name)
    product = PRODUCT.match(name)
    if product:
        return f"{product[0].replace('three_', '')} {SHARE.findall(name)}"
    return f"{name} {kernel.threads} {NUMBER.sub('#', HALF.sub('half', kernel.source))}"


def representatives(found: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """Of each family the kernel with the longest text; of equals the first."""
    chosen: dict[str, Kernel] = {}
    for kernel in found:
        own = family(kernel)
        if own not in chosen or len(kernel.source) > len(chosen[own].source):
            chosen[own] = kernel
    return tuple(chosen.values())


def warps(kernel: Kernel) -> int:
    """Warps of a multiprocessor that dispatch counts on: those that keep memory busy, or two a scheduler."""
    return 8 if kernel.name.startswith(REGISTERED) else WARPS


__all__ = ["NETWORKS", "family", "kernels", "representatives", "warps"]
