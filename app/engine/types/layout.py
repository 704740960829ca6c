"""How a tensor's elements lie in memory: a permutation of logical axes with blocked splits.

`NCHW16c` has order N, C, H, W and one block: axis C split by 16, innermost. A layout never
changes what a value means; it is a column of the plan, and sizes follow from it.

Grammar: `axes { lanes axis }`. Upper-case letters name each axis once, outermost first; then every
block is a number of lanes and the lower-case letter of the axis that it splits. An axis may be split
several times: in `NCHW4c8c` channels lie in blocks of 32, those in 4 parts of 8. Letters are those of
an image (`NCHW`), of weights (`OIHW`), or A, B, C ... for axes 0, 1, 2 ...

Source: the layout strings of apache/tvm (data_layout.cc) and the format tags of oneDNN.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
IMAGES, WEIGHTS = "NCHW", "OIHW"  # letters of axes 0, 1, 2, 3

_BLOCK = re.compile(r"(\d+)([a-z])")
_TEXT = re.compile(r"([A-Z]*)((?:\d+[a-z])*)")


@dataclass(frozen=True, slots=True)
class Layout:
    """Physical order of logical axes, outermost first, then blocks, innermost last.

    `order` is a permutation of the axes; `blocks` are (axis, lanes) pairs, in memory order. A later
    block of an axis splits what an earlier one leaves.
    """

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if sorted(self.order) != list(range(len(self.order))):
            raise ValueError(
                f"layout order must be a permutation of 0..{len(self.order) - 1}, found {self.order}"
            )
        for axis, lanes in self.blocks:
            if axis not in self.order or lanes < 2:
                raise ValueError(
                    f"layout block ({axis}, {lanes}): the axis must exist and hold at least 2 lanes"
                )

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """The layout that a text names; `str` and `spelled` are its inverses.

        Raises:
            ValueError: the text does not follow the grammar.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(
                f"layout {text!r}: expected upper-case axes, then blocks like '16c'; "
                f"cannot read {text[_TEXT.match(text).end() :]!r}"  # type: ignore[union-attr]  # matches ''
            )
        axes, tail = found.groups()
        letters = next(
            (known for known in (IMAGES, WEIGHTS, ALPHABET[: len(axes)]) if sorted(known) == sorted(axes)),
            None,
        )
        if letters is None:
            raise ValueError(
                f"layout {text!r}: expected each letter of {IMAGES}, {WEIGHTS} or "
                f"{ALPHABET[: len(axes)]} once, found {axes!r}"
            )
        blocks = []
        for lanes, letter in _BLOCK.findall(tail):
            if letter.upper() not in axes:
                raise ValueError(f"layout {text!r}: block '{lanes}{letter}' splits no axis of {axes!r}")
            if int(lanes) < 2:
                raise ValueError(f"layout {text!r}: block '{lanes}{letter}' must hold at least 2 lanes")
            blocks.append((letters.index(letter.upper()), int(lanes)))
        return cls(tuple(letters.index(a) for a in axes), tuple(blocks))

    def spelled(self, letters: str) -> str:
        """The text, with these letters for axes 0, 1, 2 ...: `OIHW16i16o` for weights."""
        return "".join(letters[a] for a in self.order) + "".join(
            f"{lanes}{letters[axis].lower()}" for axis, lanes in self.blocks
        )

    def __str__(self) -> str:
        return self.spelled(IMAGES if len(self.order) == len(IMAGES) else ALPHABET)

    @property
    def is_plain(self) -> bool:
        """True if elements lie in row-major order without padding."""
        return not self.blocks and self.order == tuple(range(len(self.order)))

    def lanes(self, axis: int) -> int:
        """Elements of an axis that all its blocks hold together; the axis is padded to a multiple."""
        return math.prod(lanes for split, lanes in self.blocks if split == axis)

    def padded_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Extents of the logical axes, padding included.

        Raises:
            ValueError: the shape has another number of axes.
        """
        if len(shape) != len(self.order):
            raise ValueError(
                f"layout {self} has {len(self.order)} axes, shape {tuple(shape)} has {len(shape)}"
            )
        wide = [self.lanes(axis) for axis in range(len(shape))]
        return tuple(-(-extent // lanes) * lanes for extent, lanes in zip(shape, wide))

    def physical_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Extents in memory order, padding included."""
        padded = self.padded_shape(shape)
        return (*(padded[axis] // self.lanes(axis) for axis in self.order), *(n for _, n in self.blocks))

    def elements(self, shape: Sequence[int]) -> int:
        """Elements that a tensor of this logical shape takes, padding included."""
        return _elements(self, tuple(shape))

    def nbytes(self, shape: Sequence[int], itemsize: int) -> int:
        """Bytes that such a tensor takes, padding included, for elements of `itemsize` byte."""
        return self.elements(shape) * itemsize

    def is_same_bytes(self, shape: Sequence[int]) -> bool:
        """True if a tensor of this logical shape lies as in row-major order."""
        parts = self._parts()
        physical = self.physical_shape(shape)
        wide = [part for part, extent in zip(parts, physical) if extent > 1]
        return wide == sorted(wide) and math.prod(physical) == math.prod(shape)

    def _parts(self) -> list[tuple[int, int]]:
        """(axis, how often it was split before) of every physical axis; sorted, they are row-major."""
        parts = [(axis, 0) for axis in self.order]
        splits: Counter[int] = Counter()
        for axis, _ in self.blocks:
            splits[axis] += 1
            parts.append((axis, splits[axis]))
        return parts

    def permutation(self) -> list[int]:
        """The physical axes as positions among the logical axes split up."""
        parts = self._parts()
        logical = {part: place for place, part in enumerate(sorted(parts))}
        return [logical[part] for part in parts]


@lru_cache(maxsize=4096)  # planning asks for the size of a few shapes many thousand times
def _elements(layout: Layout, shape: tuple[int, ...]) -> int:
    return math.prod(layout.physical_shape(shape))


@cache
def plain(rank: int) -> Layout:
    """Row-major order, no blocks."""
    return Layout(tuple(range(rank)))


@cache
def blocked(rank: int, lanes: int, axis: int = 1) -> Layout:
    """One axis is split, the others lie in row-major order: `NCHW8c` is `blocked(4, 8)`."""
    return Layout(tuple(range(rank)), ((axis, lanes),))


@cache
def channels_last(rank: int) -> Layout:
    """The channels of a pixel lie together: `NHWC` is `channels_last(4)`."""
    return Layout((0, *range(2, rank), 1))


LAST = channels_last(4)


def to_physical(array: Array, layout: Layout, fill: float = 0) -> Array:
    """An array's elements in memory order; padded lanes hold `fill`."""
    padded = layout.padded_shape(array.shape)
    wide = np.full(padded, fill, array.dtype)
    wide[tuple(slice(n) for n in array.shape)] = array
    permutation = layout.permutation()
    split = np.take(layout.physical_shape(array.shape), np.argsort(permutation))
    return np.asarray(wide.reshape(split).transpose(permutation), order="C")


def to_logical(physical: Array, layout: Layout, shape: Sequence[int]) -> Array:
    """The tensor of this logical shape behind elements in memory order; padded lanes are left out.

    Raises:
        ValueError: there are more or fewer elements than such a tensor takes.
    """
    expected = layout.physical_shape(shape)
    if physical.size != math.prod(expected):
        raise ValueError(
            f"a tensor {tuple(shape)} in {layout} takes {math.prod(expected)} elements {expected}, "
            f"found {physical.size}"
        )
    split = physical.reshape(expected).transpose(np.argsort(layout.permutation()))
    wide = split.reshape(layout.padded_shape(shape))
    return np.asarray(wide[tuple(slice(n) for n in shape)], order="C")


def convert(array: Array, source: Layout, target: Layout, shape: Sequence[int], fill: float = 0) -> Array:
    """Elements in `target`'s memory order from those in `source`'s, of a tensor of this logical shape.

    Padded lanes of the source are not read; those of the target hold `fill`.
    """
    return to_physical(to_logical(array, source, shape), target, fill)
