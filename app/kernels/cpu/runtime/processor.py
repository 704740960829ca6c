"""The processor that kernels are compiled for: this one, unless the process compiles for another alone."""

from typing import NamedTuple

import llvmlite.binding as binding
import numba
from numba.core.codegen import get_host_cpu_features

# Functions start on a cache line, in this process and in a library: else a loop straddles lines in one of
# them and not in the other, which cost mnist_8 up to a quarter of its time.
binding.set_option("stowplan", "--align-all-functions=6")

ARCHITECTURE = binding.get_process_triple().partition("-")[0]  # of this machine, as LLVM names it


class Processor(NamedTuple):
    """A processor as LLVM takes it.

    Attributes:
        name: of the microarchitecture, such as `znver4`.
        features: `+avx2,-avx512f,...`, all that code may use.
    """

    name: str
    features: str
    architecture: str = ARCHITECTURE

    @property
    def triple(self) -> str:
        """LLVM's name of the system."""
        return f"{self.architecture}-unknown-linux-gnu"


# Stand-in of numba for a processor of another architecture: its vectors have 128 bits, it fuses products
# and sums, and adds four products of signed bytes. The modules are translated afterwards.
STAND_IN = Processor("x86-64-v3", "+avx2,+fma,+f16c,+avxvnniint8,+prefer-128-bit", "x86_64")


def compiled_for() -> Processor:
    """The processor that this process compiles for."""
    name = numba.config.CPU_NAME or binding.get_host_cpu_name()
    return Processor(str(name), str(numba.config.CPU_FEATURES or get_host_cpu_features()))


def compile_for(name: str, features: str) -> None:
    """Compile for a processor from now on; comes before anything is compiled, also by an import."""
    numba.config.CPU_NAME, numba.config.CPU_FEATURES = name, features
