"""Precisions that a product with constant weights may be computed in, as rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.engine.types.options import Options
from app.engine.types.precision import resolve
from app.engine.types.saturation import VNNI
from app.engine.types.target import Target

# How the first operand is rounded: not, to 16 bits with a scale of its own, to bfloat16, by a scale from
# calibration, or by a run's own range.
Activation: TypeAlias = Literal["float32", "int16", "bf16", "static", "dynamic"]

MATMULS = ("MatMul", "Gemm")
PRODUCTS = ("Conv", *MATMULS)
FLOAT32 = "f32"
HALF_BITS = 16
OWN = "numba-cpu"  # the backend whose kernels multiply integers of 16 bits
NARROW_BITS = 7  # of weights whose pairs of products with uint8 fit int16: 2 x 255 x 63 < 2^15


@dataclass(frozen=True, slots=True)
class Candidate:
    """A precision of a product.

    Attributes:
        name: in the report.
        bits: of weights, which are signed integers with one zero point, 0; kernels round those of 16.
        block: steps of the reduction that share a scale; 0: one scale for each output channel.
        activation: how the first operand is rounded; by a scale, to uint8.
        beside: whether other readers of a rounded activation read it in float32 still.
        ops: the operators that it applies to.
    """

    name: str
    bits: int
    block: int
    activation: Activation
    beside: bool
    ops: tuple[str, ...]

    @property
    def half(self) -> bool:
        """True if operands have 16 bits: a choice of kernels, which the graph does not tell."""
        return self.bits == HALF_BITS

    @property
    def for_all(self) -> bool:
        """True if other readers of the activation read it rounded too."""
        return self.activation == "static" and not self.beside

    @property
    def largest(self) -> int:
        """Largest magnitude of a weight."""
        return int(2 ** (self.bits - 1)) - 1

    def weight_bytes(self, elements: int, channels: int) -> int:
        """Bytes of weights and scales of a product with so many weights for so many output channels."""
        if self.half:
            return 2 * elements
        scales = -(-elements // self.block) if self.block else channels
        return elements * (4 if self.bits < NARROW_BITS else 8) // 8 + 4 * scales


# Those that round an activation alike: the more exact first. One that saves no time over it is not offered.
CANDIDATES: tuple[Candidate, ...] = (
    Candidate("int16", HALF_BITS, 0, "int16", True, PRODUCTS),
    Candidate("bf16", HALF_BITS, 0, "bf16", True, PRODUCTS),
    Candidate("int8-beside-f32", 8, 0, "static", True, PRODUCTS),
    Candidate("int8", 8, 0, "static", False, PRODUCTS),
    Candidate("int8-7bit-weights", NARROW_BITS, 0, "static", False, PRODUCTS),
    Candidate("int8-dynamic", 8, 0, "dynamic", True, MATMULS),
    Candidate("w8-block32", 8, 32, "float32", True, MATMULS),
    Candidate("w4-block32", 4, 32, "float32", True, MATMULS),
    Candidate("w4-block64", 4, 64, "float32", True, MATMULS),
    Candidate("w4-block128", 4, 128, "float32", True, MATMULS),
)
BY_NAME: Mapping[str, Candidate] = {row.name: row for row in CANDIDATES}


def saturates(target: Target) -> bool:
    """True for x86 without VNNI: other runtimes add pairs of products of uint8 and int8 in 16 bits there."""
    return target.device == "cpu" and "avx2" in target.isa and not VNNI & set(target.isa)


def offered(target: Target) -> tuple[Candidate, ...]:
    """Candidates for a target.

    Weights of 7 bits help only where pairs of products are added in 16 bits; 16 bits need kernels.
    """
    applies = {
        "bf16": resolve(Options(precision="bf16"), target).used == "bf16",
        "int16": OWN in target.backends and "avx2" in target.isa,
    }
    rows = (row for row in CANDIDATES if applies.get(row.activation, True))
    return tuple(row for row in rows if row.bits != NARROW_BITS or saturates(target))
