"""The processor that kernels are compiled for: this one, unless the process compiles for another alone."""

from typing import NamedTuple

import llvmlite.binding as binding
import numba
from numba.core.codegen import get_host_cpu_features


class Processor(NamedTuple):
    """A processor as LLVM takes it.

    Attributes:
        name: of the microarchitecture, such as `znver4`.
        features: `+avx2,-avx512f,...`, all that code may use.
    """

    name: str
    features: str


def compiled_for() -> Processor:
    """The processor that this process compiles for."""
    name = numba.config.CPU_NAME or binding.get_host_cpu_name()
    return Processor(str(name), str(numba.config.CPU_FEATURES or get_host_cpu_features()))


def compile_for(name: str, features: str) -> None:
    """Compile for a processor from now on; comes before anything is compiled, also by an import."""
    numba.config.CPU_NAME, numba.config.CPU_FEATURES = name, features
