"""Kernels between the turns of bodies: conditions, counters, copies of what is carried, scanned and stacked.

A turn counter and a flag are int64 in memory; the driver's jumps read the flag.
"""

from dataclasses import dataclass

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.sizes import SizeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySizes(SizeTable):
    """Sizes of `copy`, in byte: blocks, and where those of a turn begin and how far they are apart."""

    blocks: int
    block: int
    y_at: int
    y_turn: int
    y_block: int
    x_at: int
    x_turn: int
    x_block: int


@intrinsic
def _move(_context, y, x, count):
    """Copy bytes that do not overlap."""

    def generate(context, builder, _signature, values):
        cgutils.raw_memcpy(builder, *values, 1)
        return context.get_dummy_value()

    return types.void(y, x, count), generate


_copy_sizes = CopySizes.reader()


def copy(y, x, turn, sizes, begin, end):
    """Blocks of turn `turn[0]` of x to those of y; types uint8*, uint8*, int64*, int64*."""
    s = _copy_sizes(sizes)
    target = at(y, s.y_at + turn[0] * s.y_turn)
    source = at(x, s.x_at + turn[0] * s.x_turn)
    for i in range(s.blocks):
        _move(at(target, i * s.y_block), at(source, i * s.x_block), s.block)


def choose(flag, condition, begin, end):
    """flag[0] = condition; types int64*, uint8*."""
    flag[0] = condition[0] != 0


def begin_turns(turn, flag, trips, condition, begin, end):
    """Turn 0, and whether there is one; types int64*, int64*, int64*, uint8*."""
    turn[0] = 0
    flag[0] = trips[0] > 0 and condition[0] != 0


def next_turn(turn, flag, trips, condition, begin, end):
    """The next turn, and whether there is one; types as of `begin_turns`."""
    turn[0] += 1
    flag[0] = turn[0] < trips[0] and condition[0] != 0
