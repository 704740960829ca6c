"""Copies of rows that read at valid places only and leave zeros elsewhere: packing and padding."""

from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils

from app.kernels.cpu.codegen import memory
from app.kernels.cpu.codegen.instructions import ELEMENTS, I1, I32, Vectors, number, typed


def copier(dtype: str, lanes: int, stride: int) -> Any:
    """An intrinsic that copies a row with zeros around its valid part.

    copy(y, x, low, high, n): y[i] = x[i * stride] for low <= i < high, 0 for the other i < n.
    Up to lanes - 1 elements after y[n] are overwritten. x is read at valid places only.
    """
    scalar = ELEMENTS[dtype][0]
    address, size = types.CPointer(scalar), types.int64
    signature = types.void(address, address, size, size, size)

    def generate(context, builder, _signature, values):
        y, x, low, high, n = values
        v = Vectors(builder, dtype, lanes)
        every = ll.Constant(ll.VectorType(I32, lanes), [i * stride for i in range(lanes)])
        wide = lanes * stride
        ours = ll.Constant(ll.VectorType(I1, wide), [int(i % stride == 0) for i in range(wide)])

        def pick(vector: Any) -> Any:
            return builder.shuffle_vector(vector, ll.Constant(vector.type, ll.Undefined), every)

        def masked(begin: Any, end: Any) -> None:
            with cgutils.for_range_slice(builder, begin, end, number(lanes)) as (start, _):
                mask = builder.and_(
                    v.below(builder.sub(high, start), lanes=wide, divide=stride),
                    builder.not_(v.below(builder.sub(low, start), lanes=wide, divide=stride)),
                )
                mask = builder.and_(mask, ours) if stride > 1 else mask
                source = v.at(x, builder.mul(start, number(stride)))
                v.store(pick(v.masked_load(source, mask, wide)), v.at(y, start))

        def limited(value: Any, least: Any, most: Any) -> Any:
            value = builder.select(builder.icmp_signed("<", value, least), least, value)
            return builder.select(builder.icmp_signed(">", value, most), most, value)

        # Whole vectors lie in [inner, outer). A strided one ends with elements that belong to no
        # lane, so one more must be valid.
        up = builder.and_(builder.add(low, number(lanes - 1)), number(-lanes))
        down = builder.and_(builder.sub(high, number(int(stride > 1))), number(-lanes))
        inner = limited(up, number(0), n)
        outer = limited(builder.select(builder.icmp_signed("<", n, down), n, down), inner, n)
        outer = builder.add(inner, builder.and_(builder.sub(outer, inner), number(-lanes)))
        masked(number(0), inner)
        with cgutils.for_range_slice(builder, inner, outer, number(lanes)) as (start, _):
            source = v.at(x, builder.mul(start, number(stride)))
            v.store(pick(v.load(source, wide)), v.at(y, start))
        masked(outer, n)
        return context.get_dummy_value()

    return typed(signature, generate)


def lines_copier(dtype: str, lanes: int, stride: int) -> Any:
    """An intrinsic that copies short rows, all with zeros around the same valid part.

    copy(y, x, x_row, low, high, n, rows): y[r * n + i] = x[r * x_row + i * stride] for low <= i < high, 0 for
    the other i < n. Up to lanes - 1 elements after the last row are overwritten. x is read where it is valid.
    """
    scalar = ELEMENTS[dtype][0]
    address, size = types.CPointer(scalar), types.int64
    signature = types.void(address, address, size, size, size, size, size)

    def generate(context, builder, _signature, values):
        y, x, x_row, low, high, n, rows = values
        v = Vectors(builder, dtype, lanes)
        wide = lanes * stride
        every = ll.Constant(ll.VectorType(I32, lanes), [i * stride for i in range(lanes)])
        ours = ll.Constant(ll.VectorType(I1, wide), [int(i % stride == 0) for i in range(wide)])
        vectors = builder.sdiv(builder.add(n, number(lanes - 1)), number(lanes))
        # From the last vector to the first: what it writes behind its row the first of the next row follows.
        with cgutils.for_range_slice(builder, number(0), vectors, number(1)) as (i, _):
            start = builder.mul(builder.sub(builder.sub(vectors, number(1)), i), number(lanes))
            mask = builder.and_(
                v.below(builder.sub(high, start), lanes=wide, divide=stride),
                builder.not_(v.below(builder.sub(low, start), lanes=wide, divide=stride)),
            )
            mask = builder.and_(mask, ours) if stride > 1 else mask
            source, target = v.at(x, builder.mul(start, number(stride))), v.at(y, start)
            with cgutils.for_range(builder, rows) as row:
                found = v.masked_load(v.at(source, builder.mul(row.index, x_row)), mask, wide)
                found = builder.shuffle_vector(found, ll.Constant(found.type, ll.Undefined), every)
                v.store(found, v.at(target, builder.mul(row.index, n)))
        return context.get_dummy_value()

    return typed(signature, generate)


def rows_copier(dtype: str, lanes: int, stride: int, source: str = "") -> Any:
    """An intrinsic that copies rows of x, whose elements may be 16-bit floats (`source`).

    copy(y, y_row, x, x_row, rows, n): y[r * y_row + i] = x[r * x_row + i * stride] for r < rows,
    i < n. Up to lanes - 1 zeros follow each row. x is read at valid places only.
    """
    scalar = ELEMENTS[dtype][0]
    address, size = types.CPointer(scalar), types.int64
    signature = types.void(address, size, memory.pointer(source) if source else address, size, size, size)

    def generate(context, builder, _signature, values):
        y, y_row, x, x_row, rows, n = values
        v = Vectors(builder, dtype, lanes)
        wide = lanes * stride
        every = ll.Constant(ll.VectorType(I32, lanes), [i * stride for i in range(lanes)])
        ours = ll.Constant(ll.VectorType(I1, wide), [int(i % stride == 0) for i in range(wide)])

        def pick(vector: Any) -> Any:
            return builder.shuffle_vector(vector, ll.Constant(vector.type, ll.Undefined), every)

        # A strided vector ends with elements that belong to no lane, so one more must be valid.
        whole = builder.and_(builder.sub(n, number(int(stride > 1))), number(-lanes))
        rest = builder.sub(n, whole)
        mask = builder.and_(v.below(rest, lanes=wide, divide=stride), ours)
        # Without any element, `whole` lies before the row.
        ragged = builder.and_(*(builder.icmp_signed(">", count, number(0)) for count in (rest, n)))
        with cgutils.for_range(builder, rows) as row:
            source = v.at(x, builder.mul(row.index, x_row))
            target = v.at(y, builder.mul(row.index, y_row))
            with cgutils.for_range_slice(builder, number(0), whole, number(lanes)) as (start, _):
                part = v.load(v.at(source, builder.mul(start, number(stride))), wide)
                v.store(pick(part), v.at(target, start))
            with builder.if_then(ragged):
                part = v.masked_load(v.at(source, builder.mul(whole, number(stride))), mask, wide)
                v.store(pick(part), v.at(target, whole))
        return context.get_dummy_value()

    return typed(signature, generate)


def selector(dtype: str, lanes: int) -> Any:
    """An intrinsic that copies where a mask says so.

    select(y, x, mask, n, ahead): y[i] = x[i] where mask[i] is 255, 0 where it is 0, i < n.
    Up to lanes - 1 elements after y[n] are overwritten and bytes after mask[n] read; x is read
    where the mask is set. x[i + ahead] is prefetched.
    """
    scalar = ELEMENTS[dtype][0]
    address, size = types.CPointer(scalar), types.int64
    signature = types.void(address, address, types.CPointer(types.uint8), size, size)

    def generate(context, builder, _signature, values):
        y, x, mask, n, ahead = values
        v = Vectors(builder, dtype, lanes)
        kind = ll.VectorType(ll.IntType(8), lanes)
        with cgutils.for_range_slice(builder, number(0), n, number(lanes)) as (start, _):
            v.prefetch(builder.gep(x, [builder.add(start, ahead)]))
            bytes_ = builder.load(builder.bitcast(v.at(mask, start), kind.as_pointer()), align=1)
            chosen = builder.icmp_signed("<", bytes_, ll.Constant(kind, [0] * lanes))
            v.store(v.masked_load(v.at(x, start), chosen), v.at(y, start))
        return context.get_dummy_value()

    return typed(signature, generate)


def turner(dtype: str, lanes: int, source: str = "") -> Any:
    """An intrinsic that turns a tile of x, whose elements may be 16-bit floats (`source`).

    turn(x, x_row, y, y_row, m): y[p * y_row + c] = x[c * x_row + p] for c, p below `lanes`, a power of two
    from four on. Only m >= 1 rows of x are read; beyond them y becomes what the last one holds.
    """
    address, size = types.CPointer(ELEMENTS[dtype][0]), types.int64
    signature = types.void(memory.pointer(source) if source else address, size, address, size, size)

    def generate(context, builder, _signature, values):
        x, x_row, y, y_row, m = values
        v = Vectors(builder, dtype, lanes)
        last = builder.sub(m, number(1))
        rows = []
        for c in range(lanes):
            row = builder.select(builder.icmp_signed("<", number(c), m), number(c), last)
            rows.append(v.load(v.at(x, builder.mul(row, x_row))))
        for p, vector in enumerate(transposed(v, rows)):
            v.store(vector, v.at(y, builder.mul(number(p), y_row)))
        return context.get_dummy_value()

    return typed(signature, generate)


def transposed(v: Vectors, rows: list[Any]) -> list[Any]:
    """The transpose of a square tile of as many vectors as they have lanes, a power of two.

    Groups of four become groups of four within 128 bits, which are then exchanged pairwise.
    """
    lanes = v.lanes

    def shuffle(a: Any, b: Any, picked: list[int]) -> Any:
        return v.b.shuffle_vector(a, b, ll.Constant(ll.VectorType(I32, lanes), picked))

    def unpack(a: Any, b: Any, width: int, upper: int) -> Any:
        """Elements of `width` of a and b in turn, from the lower or upper half of each 128 bits."""
        turns = [i % 4 // width for i in range(lanes)]
        place = [i // 4 * 4 + upper * 2 + t // 2 * width + i % width for i, t in enumerate(turns)]
        return shuffle(a, b, [p + t % 2 * lanes for p, t in zip(place, turns)])

    out = list(rows)
    for g in range(0, lanes, 4):
        a, b, c, d = rows[g : g + 4]
        ab = [unpack(a, b, 1, upper) for upper in (0, 1)]
        cd = [unpack(c, d, 1, upper) for upper in (0, 1)]
        out[g : g + 4] = [unpack(p, q, 2, upper) for p, q in zip(ab, cd) for upper in (0, 1)]
    distance = 4
    while distance < lanes:
        first = [k if not k & distance else k - distance + lanes for k in range(lanes)]
        second = [k + distance if not k & distance else k + lanes for k in range(lanes)]
        for i in range(lanes):
            if not i & distance:
                a, b = out[i], out[i + distance]
                out[i], out[i + distance] = shuffle(a, b, first), shuffle(a, b, second)
        distance *= 2
    return out
