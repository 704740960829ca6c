"""Tensors as kernels walk them: strides over common axes, vector widths, source text of indices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

LIMIT = 2**32 - 2**16  # indices are uint32, and threads of the last block may count beyond the end
WIDEST = 16  # bytes that one access moves

NBYTES = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
}
FLOATS = ("float32", "float16", "bfloat16")  # that are computed with, in float32
BITS = {8: "int64", 4: "uint32", 2: "uint16", 1: "uint8"}  # types that elements are moved as, by their bytes


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor in memory as a kernel walks it.

    Attributes:
        dtype: of an element.
        strides: elements from one index to the next, an axis each; 0 where the tensor is broadcast.
        start: element that index 0 of every axis is.
    """

    dtype: str
    strides: tuple[int, ...]
    start: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of an element."""
        return NBYTES[self.dtype]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def broadcast(shape: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor of `shape` that is read as one of shape `to`."""
    own = (0,) * (len(to) - len(shape)) + contiguous(shape)
    wide = (1,) * (len(to) - len(shape)) + tuple(shape)
    return tuple(0 if n == 1 else s for n, s in zip(wide, own))


def collapsed(
    extents: Sequence[int], operands: Sequence[Strided]
) -> tuple[tuple[int, ...], tuple[Strided, ...]]:
    """The same walk with neighbouring axes merged where every operand allows it; at least one axis."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for axis, extent in enumerate(extents):
        steps = tuple(o.strides[axis] for o in operands)
        if extent == 1:
            continue
        if axes and all(outer == extent * inner for outer, inner in zip(axes[-1][1], steps)):
            axes[-1] = (axes[-1][0] * extent, steps)
        else:
            axes.append((extent, steps))
    if not axes:
        axes = [(1, (1,) * len(operands))]
    moved = tuple(replace(o, strides=tuple(steps[i] for _, steps in axes)) for i, o in enumerate(operands))
    return tuple(n for n, _ in axes), moved


def vector_width(extents: Sequence[int], operands: Sequence[Strided], most: int = WIDEST) -> int:
    """Neighbours on the innermost axis that a thread handles at once: a power of two.

    As many as 16 bytes of the smallest element hold. Every access is aligned, given operands whose
    element 0 is at a multiple of 16 bytes. Of a single axis a rest may remain, of several none does.
    """
    streams = [o for o in operands if o.strides[-1]]
    if not streams or any(o.strides[-1] != 1 for o in streams):
        return 1
    width = min(most, WIDEST // min(o.nbytes for o in streams))
    while width > 1:
        aligned = all((s * o.nbytes) % min(width * o.nbytes, WIDEST) == 0
                      for o in streams for s in (*o.strides[:-1], o.start))  # fmt: skip
        if aligned and (len(extents) == 1 or extents[-1] % width == 0):
            break
        width //= 2
    return width


def unpacked(unit: str, extents: Sequence[int], names: Sequence[str]) -> list[str]:
    """Source lines: the indices `names` of a row-major number, which they consume; axis 0 is not bounded."""
    lines, rest = [], unit
    for axis in range(len(extents) - 1, 0, -1):
        lines.append(f"{names[axis]} = uint32({rest} % uint32({extents[axis]}))")
        lines.append(f"{unit}_{axis} = uint32({rest} // uint32({extents[axis]}))")
        rest = f"{unit}_{axis}"
    return [*lines, f"{names[0]} = {rest}"]


def place(names: Sequence[str], strides: Sequence[int], start: int = 0) -> str:
    """Source text of start + sum of index · stride as uint32."""
    text = f"uint32({start})" if start else ""
    for name, stride in zip(names, strides):
        if not stride:
            continue
        term = name if abs(stride) == 1 else f"{name} * uint32({abs(stride)})"
        text += (" - " if stride < 0 else " + " if text else "") + term
    return f"uint32({text or 0})"


def indented(lines: Sequence[str], levels: int = 1) -> list[str]:
    """Lines of a block."""
    return ["    " * levels + line for line in lines]


def check_size(what: str, elements: int) -> None:
    """Refuse what uint32 indices do not reach."""
    if elements > LIMIT:
        raise ValueError(f"{what} spans {elements} elements, indices reach {LIMIT}")


def check_spans(what: str, extents: Sequence[int], operands: Sequence[Strided]) -> None:
    """Refuse operands that reach beyond uint32 indices."""
    for o in operands:
        check_size(what, o.start + sum(max(n - 1, 0) * abs(s) for n, s in zip(extents, o.strides)) + 1)
    check_size(what, math.prod(extents))
