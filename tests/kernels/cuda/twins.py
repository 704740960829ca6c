"""Every name of `app/kernels/cuda/primitives.py` in plain Python, for the simulator."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from greenlet import getcurrent

from tests.kernels.cuda.simulator import DTYPES, Memory, Pointer, SimulationError

F32 = np.float32


def to_bf16(x: np.ndarray) -> np.ndarray:
    """bfloat16 bits of float32, to nearest even."""
    bits = np.ascontiguousarray(x, F32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(x, F32)), np.uint16(0x7FFF), rounded)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(F32)


def to_f16(x: np.ndarray) -> np.ndarray:
    """float16 bits of float32."""
    return np.asarray(x, F32).astype(np.float16).view(np.uint16)


def from_f16(bits: np.ndarray) -> np.ndarray:
    return np.asarray(bits, np.uint16).view(np.float16).astype(F32)


def _tf32_word(bits: int) -> int:
    """float32 bits with 10 bits of mantissa, half away from zero, as `cvt.rna` does; NaN and infinity stay."""
    return bits if bits & 0x7F800000 == 0x7F800000 else (bits + 0x1000) & 0xFFFFE000


def _bits(x: Any) -> int:
    return int(np.asarray(x, F32).view(np.uint32))


def _float(bits: int) -> Any:
    return np.uint32(int(bits) & 0xFFFFFFFF).view(F32)


def _floats(words: Any) -> np.ndarray:
    return np.array(words, np.uint32).view(F32)


# How tensor cores add: this many products at a time and the sum so far are aligned to the largest of them, what
# lies below its 24 bits is cut off, and so is the sum's rest. Later generations keep one or two bits more and take
# more products at a time: a kernel that is right here is right there. Source: Fasi, Higham, Mikaitis and Pranesh,
# 2021, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330.
ADDED = {16: 8, 8: 4}  # products, by the depth of an instruction
KEPT = 24  # bits


def truncated_sum(c: np.ndarray, products: np.ndarray, each: int) -> np.ndarray:
    """float32 of c[...] + the sum over the last axis of products[..., k], `each` of them at a time."""
    c = np.asarray(c, np.float64)
    for first in range(0, products.shape[-1], each):
        terms = np.concatenate((c[..., None], products[..., first : first + each]), axis=-1)
        _, exponent = np.frexp(np.abs(terms).max(axis=-1, keepdims=True))
        with np.errstate(invalid="ignore", over="ignore"):
            c = np.ldexp(np.trunc(np.ldexp(terms, KEPT - exponent)), exponent - KEPT).sum(axis=-1)
            rounded = c.astype(F32)
            beyond = np.abs(rounded) > np.abs(c)
        c = np.where(beyond & np.isfinite(c), np.nextafter(rounded, F32(0)), rounded).astype(np.float64)
    return c.astype(F32)


def _mma(name: str, decode: Callable[[np.ndarray], np.ndarray], depth: int) -> Callable[..., Any]:
    """D = A B + C over the fragments that PTX's manual draws for m16n8k16 (16 bits) or m16n8k8 (tf32).

    `decode` makes the elements [..., registers, elements of each] of registers.
    """
    each = depth // 8
    lane, e = np.arange(32)[:, None, None], np.arange(each)
    g, t = lane // 4, lane % 4
    i, j = np.arange(4)[:, None], np.arange(2)[:, None]
    rows_a, columns_a = np.broadcast_arrays(g + 8 * (i % 2), i // 2 * depth // 2 + t * each + e)
    rows_b, columns_b = np.broadcast_arrays(j * depth // 2 + t * each + e, g)
    rows_c, columns_c = g[..., 0] + 8 * (i.T // 2), 2 * t[..., 0] + i.T % 2

    def multiply(values: list[Any]) -> list[Any]:
        A, B, C = np.empty((16, depth)), np.empty((depth, 8)), np.empty((16, 8))
        c, a, b = zip(*values, strict=True)
        C[rows_c, columns_c] = c
        A[rows_a, columns_a] = decode(np.array(a, np.uint32))
        B[rows_b, columns_b] = decode(np.array(b, np.uint32))
        with np.errstate(invalid="ignore"):
            products = A[:, None, :] * B.T[None, :, :]
        flat = tuple(truncated_sum(C, products, ADDED[depth])[rows_c, columns_c].ravel())
        return [flat[i : i + 4] for i in range(0, 128, 4)]

    return lambda c, a, b: getcurrent().together(name, (c, a, b), multiply)


def _halves(decode: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda words: decode(words.view(np.uint16)).reshape(*words.shape, 2)


def _tf32(words: np.ndarray) -> np.ndarray:
    """The tensor cores ignore the 13 low bits."""
    return (words & np.uint32(0xFFFFE000)).view(F32)[..., None]


def _ldmatrix(values: list[Any]) -> list[Any]:
    rows = np.stack(values).reshape(4, 8, 4)  # matrix, row, word
    return _fragments(rows)


def _fragments(rows: np.ndarray) -> list[Any]:
    """The word of each matrix that a lane gets."""
    return list(map(tuple, rows.reshape(4, 32).T.tolist()))


def _ldmatrix_trans(values: list[Any]) -> list[Any]:
    rows = np.stack(values).view(np.uint16).reshape(4, 8, 8)
    flipped = np.ascontiguousarray(rows.transpose(0, 2, 1)).view(np.uint32).reshape(4, 8, 4)
    return _fragments(flipped)


def _row(pointer: Pointer, index: int) -> np.ndarray:
    return pointer.words(index, 4, floating=False).copy()


def _shuffle(name: str, source: Callable[[int, int], int]) -> Callable[..., Any]:
    def move(values: list[Any]) -> list[Any]:
        out = []
        for lane, (_, amount) in enumerate(values):
            other = source(lane, int(amount))
            out.append(values[other if 0 <= other < 32 else lane][0])
        return out

    return lambda value, amount: getcurrent().together(name, (value, amount), move)


def _reduction(name: str, combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    lanes = np.arange(32)

    def reduce(values: list[Any]) -> list[Any]:
        totals = np.array(values, F32)
        for step in (16, 8, 4, 2, 1):
            totals = combine(totals, totals[lanes ^ step])
        return list(totals)

    return lambda value: getcurrent().together(name, F32(value), reduce)


def _copy(nbytes: int) -> Callable[..., None]:
    def copy(to: Pointer, to_index: int, source: Pointer, index: int, count: int) -> None:
        count, memory = int(count), source.memory
        if not 0 <= count <= nbytes:
            raise SimulationError(f"an asynchronous copy of {count} of {nbytes} bytes")
        target = to.vector(to_index, nbytes, write=True)
        if not to.memory.shared or memory.shared:
            raise SimulationError("an asynchronous copy goes from global to shared memory")
        at = source.start + int(index) * source.size
        if at % nbytes:
            raise SimulationError(f"'{memory.name}': asynchronous copy from byte {at}: not aligned")
        if count and not 0 <= at <= len(memory.bytes) - count:
            raise SimulationError(
                f"'{memory.name}': asynchronous copy of {count} bytes from byte {at} of {len(memory.bytes)}"
            )
        if memory.record is not None:
            memory.reads(at, count)
        target.fill(0xFF)  # in flight
        start = to.start + int(to_index) * to.size
        getcurrent().copies.append((to.memory, start, target, memory, at, count))

    return copy


def _commit() -> None:
    me = getcurrent()
    me.groups.append(me.copies)
    me.copies = []


def _wait(groups: int) -> None:
    me = getcurrent()
    while len(me.groups) > groups:
        for to, start, target, source, at, count in me.groups.popleft():
            me.landed.append(slice(start, start + len(target)))
            to.unfenced[me.landed[-1]] = True
            if to.record is not None:
                to.writes(start, len(target))
            if source.record is not None:
                source.reads(at, count)
            target[:count] = source.bytes[at : at + count]
            target[count:] = 0


def _fence() -> None:
    me = getcurrent()
    for copied in me.landed:
        me.block.shared.unfenced[copied] = False
    me.landed.clear()


class Sums(list[Any]):
    """Sums of a thread that its warpgroup may still add to: nobody reads them before `wgmma_sums`."""

    def __getitem__(self, index: Any) -> Any:
        raise SimulationError("sums of a warpgroup are read while it may still add to them")


WARPGROUP_ROWS, ROW = 64, 128  # rows of a; bytes of each row


def _rows(memory: Memory, start: int, rows: int) -> np.ndarray:
    """Elements of 16 bits of rows of 128 bytes, whose 16-byte chunks are exchanged (chunk ^ row % 8)."""
    chunks = memory.bytes[start : start + ROW * rows].reshape(rows, 8, 16)
    turned = np.arange(8) ^ np.arange(rows)[:, None] % 8
    return np.take_along_axis(chunks, turned[..., None], axis=1).reshape(rows, ROW).view(np.uint16)


def _warpgroup(name: str, decode: Callable[[np.ndarray], np.ndarray], n: int) -> Callable[..., Any]:
    """Sums + a[64, 64] b[n, 64]^T over the fragments that PTX's manual draws for wgmma.m64nNk16.

    It is computed when it is waited for: operands that change before are an error.
    """
    thread, e = np.arange(128)[:, None], np.arange(n // 2)
    rows = thread // 32 * 16 + thread % 32 // 4 + 8 * (e // 2 % 2)
    columns = e // 4 * 8 + 2 * (thread % 4) + e % 2

    def begin(values: list[Any]) -> list[Any]:
        before, memories, starts = zip(*values, strict=True)
        memory, (at_a, at_b) = memories[0], starts[0]
        if len(set(starts)) > 1 or (at_a | at_b) % 1024:
            raise SimulationError(f"{name}: rows at bytes {sorted(set(starts))}, expected one pair of 1024s")
        both = slice(at_a, at_a + ROW * WARPGROUP_ROWS), slice(at_b, at_b + ROW * n)
        if any(memory.unfenced[part].any() for part in both):
            raise SimulationError(f"{name} reads copies that no fence_shared() came after")
        a, b = _rows(memory, at_a, WARPGROUP_ROWS), _rows(memory, at_b, n)
        sums = [Sums() for _ in values]

        def finish() -> None:
            if sums[0]:
                return
            if (
                not (_rows(memory, at_a, WARPGROUP_ROWS) == a).all()
                or not (_rows(memory, at_b, n) == b).all()
            ):
                raise SimulationError(f"{name}: its operands were overwritten before it was waited for")
            total = np.empty((WARPGROUP_ROWS, n))
            total[rows, columns] = [[*own] for own in before]
            products = decode(a)[:, None, :].astype(np.float64) * decode(b)[None, :, :]
            found = truncated_sum(total, products, ADDED[16])[rows, columns]
            for own, computed in zip(sums, found, strict=True):
                own.extend(computed)

        return [(own, finish) for own in sums]

    def multiply(c: Any, a: Pointer, at_a: int, b: Pointer, at_b: int) -> Sums:
        me, memory = getcurrent(), a.memory
        if not memory.shared or b.memory is not memory:
            raise SimulationError(f"{name} multiplies shared memory")
        starts = a.start + int(at_a) * a.size, b.start + int(at_b) * b.size

        def read() -> None:
            if me.lane == 0:
                memory.reads(starts[0], ROW * WARPGROUP_ROWS)
                memory.reads(starts[1], ROW * n)

        def finished() -> None:
            read()
            finish()

        sums, finish = me.warpgroup(name, (c, memory, starts), begin)
        read()
        me.multiplying.append(finished)
        return sums

    return multiply


def _wgmma_wait(count: int) -> None:
    me = getcurrent()
    while len(me.multiplying) > count:
        me.multiplying.popleft()()


def _wgmma_sums(sums: Any) -> tuple[Any, ...]:
    _wgmma_wait(0)
    return (*sums,)


def _atomic_add(pointer: Pointer, index: int, value: Any) -> Any:
    i = pointer._check(index, 1)
    old = pointer.array[i]
    pointer.array[i] = old + value
    return old if pointer.floating else int(old)


def _shared(dtype: str) -> Callable[[int], Pointer]:
    kind = DTYPES[dtype]
    return lambda offset: getcurrent().block.shared.pointer(int(offset), kind)


def _load(dtype: Any, count: int) -> Callable[..., Any]:
    floating = dtype is F32
    if count == 1:
        return lambda pointer, index: pointer.words(index, 1, floating=floating).item()
    if floating:
        return lambda pointer, index: tuple(pointer.words(index, count, floating=True))
    return lambda pointer, index: tuple(pointer.words(index, count, floating=False).tolist())


def _store(dtype: Any, count: int) -> Callable[..., Any]:
    floating = dtype is F32

    def store(pointer: Pointer, index: int, *values: Any) -> None:
        assert len(values) == count
        pointer.words(index, count, floating=floating, write=True)[:] = values

    return store


def _math(function: Callable[..., float]) -> Callable[..., Any]:
    def compute(*x: Any) -> Any:
        try:
            return F32(function(*(float(v) for v in x)))
        except OverflowError:
            return F32(np.inf)
        except ValueError:
            return F32(np.nan)

    return compute


def _log(x: Any) -> Any:
    return F32(np.log(F32(x)))


def _unsigned(bits: int) -> Callable[[Any], int]:
    mask = (1 << bits) - 1
    return lambda x: x & mask if x.__class__ is int else int(x) & mask


def _signed(bits: int) -> Callable[[Any], int]:
    half, mask = 1 << (bits - 1), (1 << bits) - 1
    return lambda x: x if x.__class__ is int and -half <= x < half else ((int(x) + half) & mask) - half


def _maximum(a: Any, b: Any) -> Any:
    return np.maximum(F32(a), F32(b))


def _outer(c: Any, a0: Any, a1: Any, a2: Any, a3: Any, b: Any) -> Any:
    columns = [float(x) for x in b]
    products = [row * column for row in (float(a0), float(a1), float(a2), float(a3)) for column in columns]
    return np.add(c, products, dtype=np.float64).astype(F32)


def _dot(s: Any, a: Any, b: Any) -> Any:
    return F32(float(s) + sum([float(x) * float(y) for x, y in zip(a, b, strict=True)]))


def _pair(encode: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, Any], int]:
    def pack(low: Any, high: Any) -> int:
        a, b = encode(np.array([low, high], F32))
        return int(a) | int(b) << 16

    return pack


def _unpair(decode: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], Any]:
    return lambda word: tuple(decode(np.array([int(word) & 0xFFFF, int(word) >> 16], np.uint16)))


def _ballot(values: list[Any]) -> list[int]:
    return [sum(1 << i for i, v in enumerate(values) if v)] * 32


_COPY16 = _copy(16)
_MMA = {
    "mma_bf16": _mma("mma_bf16", _halves(from_bf16), 16),
    "mma_f16": _mma("mma_f16", _halves(from_f16), 16),
    "mma_tf32": _mma("mma_tf32", _tf32, 8),
}


def _twice(mma: Callable[..., Any]) -> Callable[..., Any]:
    return lambda c, a, b: mma(c[:4], a, b[:2]) + mma(c[4:], a, b[2:])


NAMES: dict[str, Any] = {
    "uint16": _unsigned(16),
    "uint32": _unsigned(32),
    "uint64": _unsigned(64),
    "int32": _signed(32),
    "int64": _signed(64),
    "float32": F32,
    "float64": np.float64,
    **{
        name: _math(getattr(math, name))
        for name in ("exp", "erf", "tanh", "sin", "cos", "pow", "expm1", "atan", "asin", "acos")
    },
    **{name: _math(getattr(math, name)) for name in ("sinh", "cosh", "tan")},
    "log": _log,
    "log1p": lambda x: F32(np.log1p(F32(x))),
    "sqrt": lambda x: F32(np.sqrt(F32(x))),
    "int8": _signed(8),
    "uint8": _unsigned(8),
    "int16": _signed(16),
    "fmod": _math(math.fmod),
    "device": lambda function: function,
    "min": min,
    "max": max,
    "range": range,
    "abs": abs,
    "thread": lambda: getcurrent().number,
    "lane": lambda: getcurrent().lane,
    "warp": lambda: getcurrent().warp,
    **{f"block_{axis}": (lambda i=i: getcurrent().position[i]) for i, axis in enumerate("xyz")},
    **{f"grid_{axis}": (lambda i=i: getcurrent().grid[i]) for i, axis in enumerate("xyz")},
    "sync": lambda: getcurrent().sync(),
    **{
        name: (lambda name=name: getcurrent().together(name, None, lambda values: values))
        for name in ("sync_warp", "converged")
    },
    **{
        f"shfl_{kind}{word}": _shuffle(f"shfl_{kind}{word}", source)
        for word in ("f32", "i32")
        for kind, source in (
            ("xor_", lambda lane, amount: lane ^ amount),
            ("", lambda lane, amount: amount & 31),
            ("up_", lambda lane, amount: lane - amount),
            ("down_", lambda lane, amount: lane + amount),
        )
    },
    "ballot": lambda value: getcurrent().together("ballot", int(value), _ballot),
    "atomic_add_f32": _atomic_add,
    "atomic_add_i32": _atomic_add,
    "shared_f32": _shared("float32"),
    "shared_u16": _shared("uint16"),
    "shared_u32": _shared("uint32"),
    "shared_i32": _shared("int32"),
    "shared_u8": _shared("uint8"),
    "advance": lambda pointer, n: pointer.advance(n),
    "ld_f32x4": _load(F32, 4),
    "ld_f32x2": _load(F32, 2),
    "ld_u32x4": _load(np.uint32, 4),
    "ld_u32x2": _load(np.uint32, 2),
    "ld_u32x1": _load(np.uint32, 1),
    "lds_f32x4": _load(F32, 4),
    "lds_f32x2": _load(F32, 2),
    "lds_u32": _load(np.uint32, 1),
    "st_f32x4": _store(F32, 4),
    "st_f32x2": _store(F32, 2),
    "st_u32x4": _store(np.uint32, 4),
    "st_u32x2": _store(np.uint32, 2),
    "st_u32x1": _store(np.uint32, 1),
    "cp_async16": _copy(16),
    "cp_async4": _copy(4),
    "cp_async16_if": lambda to, i, source, j, flag: _COPY16(to, i, source, j, 16 if flag else 0),
    "opaque": lambda x: int(x),
    "cp_commit": _commit,
    "cp_wait": _wait,
    "ldmatrix_x4": lambda p, i: getcurrent().together("ldmatrix_x4", _row(p, i), _ldmatrix),
    "ldmatrix_x4_trans": lambda p, i: getcurrent().together("ldmatrix_x4_trans", _row(p, i), _ldmatrix_trans),
    **_MMA,
    **{f"{name}_x2": _twice(mma) for name, mma in _MMA.items()},
    **{
        f"wgmma_{kind}_n{n}": _warpgroup(f"wgmma_{kind}_n{n}", decode, n)
        for n in (64, 128, 256)
        for kind, decode in (("bf16", from_bf16), ("f16", from_f16))
    },
    **{f"wgmma_sums_n{n}": _wgmma_sums for n in (64, 128, 256)},
    "wgmma_wait": _wgmma_wait,
    "fence_shared": _fence,
    "f32_tf32": lambda x: _tf32_word(int(F32(x).view(np.uint32))),
    "tf32_x4": lambda words: tuple([_tf32_word(w) for w in words]),
    "tf32_high_x4": lambda words: tuple(
        [_tf32_word(w) if w & 0x7FFFFFFF <= 0x7F7FEFFF else w & 0x80000000 | 0x3F800000 for w in words]
    ),
    "tf32_rest_x4": lambda words, high: tuple(
        ((_floats(words) - _floats(high)).view(np.uint32) & np.uint32(0xFFFFE000)).tolist()
    ),
    "add_x8": lambda a, b: tuple(np.add(a, b, dtype=F32)),
    "bits_f32": _float,
    "f32_bits": _bits,
    "f32_bf16x2": _pair(to_bf16),
    "f32_f16x2": _pair(to_f16),
    "f32_bf16": lambda x: int(to_bf16(np.array([x], F32))[0]),
    "f32_f16": lambda x: int(to_f16(np.array([x], F32))[0]),
    "bf16_f32": lambda h: _float(int(h) << 16),
    "f16_f32": lambda h: F32(np.uint16(h).view(np.float16)),
    "bf16x2_f32": _unpair(from_bf16),
    "f16x2_f32": _unpair(from_f16),
    "maximum": _maximum,
    "minimum": lambda a, b: np.minimum(F32(a), F32(b)),
    "fma": lambda a, b, c: F32(np.float64(a) * np.float64(b) + np.float64(c)),
    "exp2_approx": lambda x: np.exp2(F32(x)),
    "log2_approx": lambda x: np.log2(F32(x)),
    "rcp_approx": lambda x: F32(1) / F32(x),
    "rsqrt_approx": lambda x: F32(1) / np.sqrt(F32(x)),
    "tanh_approx": lambda x: np.tanh(F32(x)),
    "floor_f32": lambda x: np.floor(F32(x)),
    "ceil_f32": lambda x: np.ceil(F32(x)),
    "round_f32": lambda x: np.rint(F32(x)),
    "trunc_f32": lambda x: np.trunc(F32(x)),
    "outer_4x4": _outer,
    "dot_4": _dot,
    "warp_sum_f32": _reduction("warp_sum_f32", np.add),
    "warp_max_f32": _reduction("warp_max_f32", np.maximum),
}
