"""Transposes of bytes in registers: 16 channels of 16 pixels, between planes and channels last."""

from typing import Any

import llvmlite.ir as ll
from numba import types

from app.kernels.cpu.codegen.instructions import I8, I16, I32, number, typed

TILE = 16  # channels, and pixels
_BYTES = ll.VectorType(I8, TILE)
_N = types.int64


def _transposed(b: Any, rows: list[Any]) -> list[Any]:
    """The transpose of 16 vectors of 16 bytes: rows i and i + 8 in turn, four times."""
    halves = [
        ll.Constant(ll.VectorType(I32, TILE), [first + i // 2 + i % 2 * TILE for i in range(TILE)])
        for first in (0, TILE // 2)
    ]
    for _ in range(4):
        pairs = zip(rows[: TILE // 2], rows[TILE // 2 :])
        rows = [b.shuffle_vector(low, high, half) for low, high in pairs for half in halves]
    return rows


def _at(b: Any, pointer: Any, index: Any) -> Any:
    return b.gep(pointer, [index], inbounds=True)


def _store(b: Any, vector: Any, pointer: Any, count: int) -> None:
    """The first `count` elements of a vector, in pieces of powers of two."""
    done = 0
    for size in (1 << i for i in reversed(range(count.bit_length()))):
        if count & size:
            picked = ll.Constant(ll.VectorType(I32, size), list(range(done, done + size)))
            piece = vector if size == TILE else b.shuffle_vector(vector, vector, picked)
            place = b.bitcast(_at(b, pointer, number(done)), piece.type.as_pointer())
            b.store(piece, place, align=1)
            done += size


def _lines(b: Any, lines: list[Any], start: Any, apart: Any, count: Any, width: int) -> None:
    """The first `count` vectors, each to an address `apart` elements from the one before."""
    ended = b.append_basic_block("ended")
    for i, line in enumerate(lines):
        go = b.append_basic_block("line")
        b.cbranch(b.icmp_signed("<", number(i), count), go, ended)
        b.position_at_end(go)
        _store(b, line, _at(b, start, b.mul(number(i), apart)), width)
    b.branch(ended)
    b.position_at_end(ended)


def _load(b: Any, pointer: Any) -> Any:
    return b.load(b.bitcast(pointer, _BYTES.as_pointer()), align=1)


def _splat(b: Any, value: Any, kind: Any) -> Any:
    undefined = ll.Constant(kind, ll.Undefined)
    first = b.insert_element(undefined, value, ll.Constant(I32, 0))
    return b.shuffle_vector(first, undefined, ll.Constant(ll.VectorType(I32, kind.count), [0] * kind.count))


def to_pixels(dtype: str, channels: int, width: int, *, wide: bool) -> Any:
    """An intrinsic that gathers the channels of up to 16 pixels.

    tile(x, x_row, y, y_row, count, shift): y[p * y_row + c] = x[c * x_row + p] + shift, p < count, c < width;
    bytes modulo 256, or int16 where `wide`. Reads 16 pixels of each of `channels` channels; what has none is
    anything.
    """
    source = types.CPointer(types.uint8 if dtype == "uint8" else types.int8)
    result = types.CPointer(types.int16 if wide else types.uint8)
    signature = types.void(source, _N, result, _N, _N, _N)

    def generate(context: Any, b: Any, _signature: Any, values: Any) -> Any:
        x, x_row, y, y_row, count, shift = values
        nothing = ll.Constant(_BYTES, [0] * TILE)
        rows = [_load(b, _at(b, x, b.mul(number(c), x_row))) for c in range(channels)]
        pixels = _transposed(b, rows + [nothing] * (TILE - channels))
        kind = ll.VectorType(I16 if wide else I8, TILE)
        if wide:
            widen = b.zext if dtype == "uint8" else b.sext
            pixels = [widen(p, kind) for p in pixels]
        added = _splat(b, b.trunc(shift, kind.element), kind)
        _lines(b, [b.add(p, added) for p in pixels], y, y_row, count, width)
        return context.get_dummy_value()

    return typed(signature, generate)


def to_few(dtype: str, channels: int, width: int, *, wide: bool) -> Any:
    """An intrinsic that gathers up to four channels of 16 pixels, which follow one another.

    tile(x, x_row, y, shift): as `to_pixels` with y_row = width <= 4.
    """
    source = types.CPointer(types.uint8 if dtype == "uint8" else types.int8)
    result = types.CPointer(types.int16 if wide else types.uint8)

    def generate(context: Any, b: Any, _signature: Any, values: Any) -> Any:
        x, x_row, y, shift = values
        nothing = ll.Constant(_BYTES, [0] * TILE)
        rows = [_load(b, _at(b, x, b.mul(number(c), x_row))) for c in range(channels)]
        rows += [nothing] * (4 - channels)

        def both(low: Any, high: Any, picked: list[int]) -> Any:
            return b.shuffle_vector(low, high, ll.Constant(ll.VectorType(I32, len(picked)), picked))

        halves = [both(rows[i], rows[i + 1], list(range(2 * TILE))) for i in (0, 2)]
        pixels = both(halves[0], halves[1], [p + c * TILE for p in range(TILE) for c in range(width)])
        kind = ll.VectorType(I16 if wide else I8, TILE * width)
        if wide:
            pixels = (b.zext if dtype == "uint8" else b.sext)(pixels, kind)
        added = b.add(pixels, _splat(b, b.trunc(shift, kind.element), kind))
        b.store(added, b.bitcast(y, kind.as_pointer()), align=kind.element.width // 8)
        return context.get_dummy_value()

    return typed(types.void(source, _N, result, _N), generate)


def to_planes(dtype: str) -> Any:
    """An intrinsic that writes 16 pixels of up to 16 planes.

    tile(x, x_row, y, y_row, count): y[c * y_row + p] = x[p * x_row + c], c < count. Reads 16 channels.
    """
    pointer = types.CPointer(types.uint8 if dtype == "uint8" else types.int8)
    signature = types.void(pointer, _N, pointer, _N, _N)

    def generate(context: Any, b: Any, _signature: Any, values: Any) -> Any:
        x, x_row, y, y_row, count = values
        rows = [_load(b, _at(b, x, b.mul(number(p), x_row))) for p in range(TILE)]
        _lines(b, _transposed(b, rows), y, y_row, count, TILE)
        return context.get_dummy_value()

    return typed(signature, generate)
