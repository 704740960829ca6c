"""Register-tiled micro-kernels as explicit vector IR, built through numba intrinsics.

Plain loops never keep a tile of accumulators in registers; vector IR does, and LLVM splits or
widens it for the machine at hand. A generated module makes an intrinsic a global of its own and
calls it, so that numba's disk cache finds it again (see `compiler`).

Elements are float32, float64 or integers; `lanes` is the number of elements in a vector.
"""

import re
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.tiles import (
    ACCUMULATE,
    ALPHA,
    BETA,
    CLAMP,
    COLUMN_BIAS,
    HIGH,
    LOW,
    RESIDUAL,
    ROW_BIAS,
    SCALE,
)

ELEMENTS = {
    "float32": (types.float32, ll.FloatType(), 4),
    "float64": (types.float64, ll.DoubleType(), 8),
    "int32": (types.int32, ll.IntType(32), 4),
    "uint32": (types.uint32, ll.IntType(32), 4),
    "int64": (types.int64, ll.IntType(64), 8),
    "uint64": (types.uint64, ll.IntType(64), 8),
}

PREFETCH = 16  # steps of the reduction ahead: rows of B lie apart, which no hardware prefetcher sees

_I1, _I32, _I64 = ll.IntType(1), ll.IntType(32), ll.IntType(64)


def _int(n: int) -> ll.Constant:
    return ll.Constant(_I64, n)


@intrinsic
def at(_context, pointer, index):
    """The address of pointer[index]."""

    def generate(_context, builder, _signature, values):
        return builder.gep(values[0], [values[1]])

    return pointer(pointer, types.int64), generate


class _Vectors:
    """Vector instructions on `lanes` elements, written by a builder."""

    def __init__(self, builder: Any, dtype: str, lanes: int) -> None:
        self.b = builder
        self.scalar, self.element, self.nbytes = ELEMENTS[dtype]
        self.lanes = lanes
        self.floating = dtype.startswith("float")
        self.type = ll.VectorType(self.element, lanes)
        self.zero = ll.Constant(self.type, [0.0 if self.floating else 0] * lanes)
        self.suffix = f"v{lanes}{'f' if self.floating else 'i'}{self.nbytes * 8}"

    def _function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return cgutils.get_or_insert_function(self.b.module, ll.FunctionType(result, arguments), name)

    def at(self, pointer: Any, index: Any) -> Any:
        index = _int(index) if isinstance(index, int) else index
        return self.b.gep(pointer, [index], inbounds=True)

    def load(self, pointer: Any, lanes: int = 0) -> Any:
        kind = ll.VectorType(self.element, lanes) if lanes else self.type
        return self.b.load(self.b.bitcast(pointer, kind.as_pointer()), align=self.nbytes)

    def store(self, value: Any, pointer: Any) -> None:
        self.b.store(value, self.b.bitcast(pointer, value.type.as_pointer()), align=self.nbytes)

    def splat(self, value: Any) -> Any:
        undefined = ll.Constant(self.type, ll.Undefined)
        first = self.b.insert_element(undefined, value, ll.Constant(_I32, 0))
        return self.b.shuffle_vector(
            first, undefined, ll.Constant(ll.VectorType(_I32, self.lanes), [0] * self.lanes)
        )

    def prefetch(self, pointer: Any, *, write: bool = False) -> None:
        """Ask for the cache line of an address, which need not be valid."""
        flat = self.b.bitcast(pointer, ll.IntType(8).as_pointer())
        function = self._function("llvm.prefetch.p0", ll.VoidType(), [flat.type, _I32, _I32, _I32])
        self.b.call(function, [flat, *(ll.Constant(_I32, i) for i in (int(write), 3, 1))])

    def broadcast(self, pointer: Any) -> Any:
        return self.splat(self.b.load(pointer, align=self.nbytes))

    def add(self, x: Any, y: Any) -> Any:
        return self.b.fadd(x, y) if self.floating else self.b.add(x, y)

    def multiply(self, x: Any, y: Any) -> Any:
        return self.b.fmul(x, y) if self.floating else self.b.mul(x, y)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        if not self.floating:
            return self.b.add(self.b.mul(x, y), z)
        function = self._function(f"llvm.fma.{self.suffix}", self.type, [self.type] * 3)
        return self.b.call(function, [x, y, z])

    def clamp(self, x: Any, low: Any, high: Any) -> Any:
        """NaN stays NaN."""
        x = self.b.select(self.b.fcmp_ordered("<", x, low), low, x)
        return self.b.select(self.b.fcmp_ordered(">", x, high), high, x)

    def below(self, bound: Any, offset: int = 0, lanes: int = 0, divide: int = 1) -> Any:
        """Mask of the lanes whose number (divided, plus offset) is below `bound`, which fits 31 bits."""
        lanes = lanes or self.lanes
        kind = ll.VectorType(_I32, lanes)
        undefined = ll.Constant(kind, ll.Undefined)
        first = self.b.insert_element(undefined, self.b.trunc(bound, _I32), ll.Constant(_I32, 0))
        spread = self.b.shuffle_vector(first, undefined, ll.Constant(kind, [0] * lanes))
        return self.b.icmp_signed(
            "<", ll.Constant(kind, [i // divide + offset for i in range(lanes)]), spread
        )

    def masked_load(self, pointer: Any, mask: Any, lanes: int = 0) -> Any:
        """Zero where the mask is off; nothing is read there."""
        lanes = lanes or self.lanes
        kind = ll.VectorType(self.element, lanes)
        address = self.b.bitcast(pointer, kind.as_pointer())
        suffix = self.suffix.replace(f"v{self.lanes}", f"v{lanes}", 1)
        function = self._function(
            f"llvm.masked.load.{suffix}.p0",
            kind,
            [kind.as_pointer(), _I32, ll.VectorType(_I1, lanes), kind],
        )
        zero = ll.Constant(kind, [0.0 if self.floating else 0] * lanes)
        return self.b.call(function, [address, ll.Constant(_I32, self.nbytes), mask, zero])


def _choose(builder: Any, condition: Any, values: list[Any], changed: Any) -> list[Any]:
    """`changed(i, value)` for all values where the condition holds, else the values."""
    before = builder.block
    do = builder.append_basic_block("do")
    after = builder.append_basic_block("after")
    builder.cbranch(condition, do, after)
    builder.position_at_end(do)
    new = [changed(i, v) for i, v in enumerate(values)]
    done = builder.block
    builder.branch(after)
    builder.position_at_end(after)
    result = []
    for old, fresh in zip(values, new):
        phi = builder.phi(old.type)
        phi.add_incoming(old, before)
        phi.add_incoming(fresh, done)
        result.append(phi)
    return result


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Addresses of a tile's epilogue operands; see `tile`."""

    sums: Any
    sums_step: Any
    rows: Any
    rows_step: Any
    columns: Any
    residual: Any
    residual_step: Any
    scalars: Any
    flags: Any

    def apply(self, v: _Vectors, values: list[Any], places: list[tuple[int, int]]) -> list[Any]:
        """The epilogue on vectors at (row, first column)."""
        b = v.b

        def has(flag: int) -> Any:
            return b.icmp_unsigned("!=", b.and_(self.flags, _int(flag)), _int(0))

        def cell(base: Any, step: Any, place: tuple[int, int]) -> Any:
            return v.load(v.at(v.at(base, b.mul(_int(place[0]), step)), place[1]))

        def scalar(index: int) -> Any:
            return v.broadcast(v.at(self.scalars, index))

        def row(place: tuple[int, int]) -> Any:
            return v.broadcast(v.at(self.rows, b.mul(_int(place[0]), self.rows_step)))

        def residual(place: tuple[int, int]) -> Any:
            return cell(self.residual, self.residual_step, place)

        stages = (
            (ACCUMULATE, lambda i, x: v.add(x, cell(self.sums, self.sums_step, places[i]))),
            (SCALE, lambda _i, x: v.multiply(x, scalar(ALPHA))),
            (ROW_BIAS, lambda i, x: v.add(x, row(places[i]))),
            (COLUMN_BIAS, lambda i, x: v.add(x, v.load(v.at(self.columns, places[i][1])))),
            (RESIDUAL, lambda i, x: v.fma(scalar(BETA), residual(places[i]), x)),
            (CLAMP, lambda _i, x: v.clamp(x, scalar(LOW), scalar(HIGH))),
        )
        for flag, stage in stages:
            if flag != CLAMP or v.floating:
                values = _choose(b, has(flag), values, stage)
        return values


def tile(
    dtype: str, lanes: int, rows: int, columns: int, unroll: int = 4, chains: int = 1, ahead: int = PREFETCH
) -> Any:
    """An intrinsic that computes `rows` x `columns * lanes` elements of a matrix product.

    It is called as
        tile(a, a_row, a_k, m, b, b_k, k, c, c_row,
             sums, sums_row, row_bias, row_bias_step, column_bias, residual, residual_row, scalars, flags)
    and computes c[i * c_row + j] for i < rows and j < columns * lanes as the sum over p < k of
    a[min(i, m - 1) * a_row + p * a_k] * b[p * b_k + j], plus what `flags` ask for:
    ACCUMULATE adds sums[i * sums_row + j], SCALE multiplies by alpha, ROW_BIAS adds
    row_bias[i * row_bias_step], COLUMN_BIAS adds column_bias[j], RESIDUAL adds
    beta * residual[i * residual_row + j], CLAMP limits to [low, high] (floats only).
    Each operand is read before c is written at that place, so c may be the residual or the sums.

    The reduction runs in `chains` independent sums, for tiles too small to hide the latency of a
    product; `ahead` steps of it are prefetched.
    """
    scalar = ELEMENTS[dtype][0]
    address, number = types.CPointer(scalar), types.int64
    signature = types.void(
        address, number, number, number, address, number, number, address, number,
        address, number, address, number, address, address, number, address, number,
    )  # fmt: skip

    def write(builder, values):
        a, a_row, a_k, m, b, b_k, k, c, c_row, *rest = values
        v = _Vectors(builder, dtype, lanes)
        epilogue = Epilogue(*rest)
        last = builder.sub(m, _int(1))
        starts = []
        for r in range(rows):
            row = builder.select(builder.icmp_signed("<", _int(r), m), _int(r), last)
            starts.append(v.at(a, builder.mul(row, a_row)) if r else a)

        def step(index: Any, pointer: Any, sums: list[Any]) -> list[Any]:
            vectors = [v.load(v.at(pointer, j * lanes)) for j in range(columns)]
            v.prefetch(builder.gep(pointer, [distance]))
            new = list(sums)
            for r in range(rows):
                x = v.broadcast(v.at(starts[r], index))
                for j in range(columns):
                    new[r * columns + j] = v.fma(x, vectors[j], new[r * columns + j])
            return new

        def loop(count: Any, index: Any, pointer: Any, sums: list[Any], times: int) -> Any:
            """`times` steps, `count` times; the test is at the top, so a count of zero is fine."""
            before = builder.block
            head, body, end = (builder.append_basic_block(s) for s in ("head", "body", "end"))
            builder.branch(head)
            builder.position_at_end(head)
            phis = [builder.phi(x.type) for x in (count, index, pointer, *sums)]
            for phi, x in zip(phis, (count, index, pointer, *sums)):
                phi.add_incoming(x, before)
            left, i, p, *new = phis
            builder.cbranch(builder.icmp_signed(">", left, _int(0)), body, end)
            builder.position_at_end(body)
            current, j, q = list(new), i, p
            for turn in range(times):
                own = slice(turn % chains * size, (turn % chains + 1) * size)
                current[own] = step(j, q, current[own])
                j, q = builder.add(j, a_k), v.at(q, b_k)
            done = builder.block
            for phi, x in zip(phis, (builder.sub(left, _int(1)), j, q, *current)):
                phi.add_incoming(x, done)
            builder.branch(head)
            builder.position_at_end(end)
            return i, p, new

        size = rows * columns
        distance = builder.mul(b_k, _int(ahead))
        for r in range(rows):
            v.prefetch(builder.gep(c, [builder.mul(_int(r), c_row)]), write=True)
        index, pointer, sums = loop(
            builder.sdiv(k, _int(unroll)), _int(0), b, [v.zero] * (size * chains), unroll
        )
        _, _, sums = loop(builder.srem(k, _int(unroll)), index, pointer, sums, 1)
        while len(sums) > size:
            sums = [v.add(x, y) for x, y in zip(sums[: len(sums) // 2], sums[len(sums) // 2 :])]

        places = [(r, j * lanes) for r in range(rows) for j in range(columns)]
        for x, (r, j) in zip(epilogue.apply(v, sums, places), places):
            v.store(x, v.at(v.at(c, builder.mul(_int(r), c_row)), j))
        builder.ret_void()

    def body(_context, a, a_row, a_k, m, b, b_k, k, c, c_row, sums, sums_row, row_bias, row_bias_step,
             column_bias, residual, residual_row, scalars, flags):  # fmt: skip
        return signature, _outlined(f"tile_{dtype}_{rows}x{columns}x{lanes}", write)

    return intrinsic(body)


def spills(assembly: str, function: str = "tile_") -> int:
    """Vector registers that functions of this prefix move to or from the stack, in x86 assembly."""
    move = re.compile(r"vmov\w+\s+(?:%[xyz]mm\d+, -?\d*\(%rsp\)|-?\d*\(%rsp\), %[xyz]mm\d+)")
    label = re.compile(r"^([A-Za-z_][^\s:]*):")
    count, inside = 0, False
    for line in assembly.splitlines():
        if found := label.match(line):
            inside = found.group(1).startswith(function)
        elif inside and move.search(line):
            count += 1
    return count


def copier(dtype: str, lanes: int, stride: int) -> Any:
    """An intrinsic that copies a row with zeros around its valid part.

    copy(y, x, low, high, n): y[i] = x[i * stride] for low <= i < high, 0 for the other i < n.
    Up to lanes - 1 elements after y[n] are overwritten. x is read at valid places only.
    """
    scalar = ELEMENTS[dtype][0]
    address, number = types.CPointer(scalar), types.int64
    signature = types.void(address, address, number, number, number)

    def generate(context, builder, _signature, values):
        y, x, low, high, n = values
        v = _Vectors(builder, dtype, lanes)
        every = ll.Constant(ll.VectorType(_I32, lanes), [i * stride for i in range(lanes)])
        wide = lanes * stride
        ours = ll.Constant(ll.VectorType(_I1, wide), [int(i % stride == 0) for i in range(wide)])

        def pick(vector: Any) -> Any:
            return builder.shuffle_vector(vector, ll.Constant(vector.type, ll.Undefined), every)

        def masked(begin: Any, end: Any) -> None:
            with cgutils.for_range_slice(builder, begin, end, _int(lanes)) as (start, _):
                mask = builder.and_(
                    v.below(builder.sub(high, start), lanes=wide, divide=stride),
                    builder.not_(v.below(builder.sub(low, start), lanes=wide, divide=stride)),
                )
                mask = builder.and_(mask, ours) if stride > 1 else mask
                source = v.at(x, builder.mul(start, _int(stride)))
                v.store(pick(v.masked_load(source, mask, wide)), v.at(y, start))

        def limited(value: Any, least: Any, most: Any) -> Any:
            value = builder.select(builder.icmp_signed("<", value, least), least, value)
            return builder.select(builder.icmp_signed(">", value, most), most, value)

        # Whole vectors lie in [inner, outer). A strided one ends with elements that belong to no
        # lane, so one more must be valid.
        up = builder.and_(builder.add(low, _int(lanes - 1)), _int(-lanes))
        down = builder.and_(builder.sub(high, _int(int(stride > 1))), _int(-lanes))
        inner = limited(up, _int(0), n)
        outer = limited(builder.select(builder.icmp_signed("<", n, down), n, down), inner, n)
        outer = builder.add(inner, builder.and_(builder.sub(outer, inner), _int(-lanes)))
        masked(_int(0), inner)
        with cgutils.for_range_slice(builder, inner, outer, _int(lanes)) as (start, _):
            source = v.at(x, builder.mul(start, _int(stride)))
            v.store(pick(v.load(source, wide)), v.at(y, start))
        masked(outer, n)
        return context.get_dummy_value()

    def body(_context, y, x, low, high, n):
        return signature, generate

    return intrinsic(body)


def rows_copier(dtype: str, lanes: int, stride: int) -> Any:
    """An intrinsic that copies rows.

    copy(y, y_row, x, x_row, rows, n): y[r * y_row + i] = x[r * x_row + i * stride] for r < rows,
    i < n. Up to lanes - 1 zeros follow each row. x is read at valid places only.
    """
    scalar = ELEMENTS[dtype][0]
    address, number = types.CPointer(scalar), types.int64
    signature = types.void(address, number, address, number, number, number)

    def generate(context, builder, _signature, values):
        y, y_row, x, x_row, rows, n = values
        v = _Vectors(builder, dtype, lanes)
        wide = lanes * stride
        every = ll.Constant(ll.VectorType(_I32, lanes), [i * stride for i in range(lanes)])
        ours = ll.Constant(ll.VectorType(_I1, wide), [int(i % stride == 0) for i in range(wide)])

        def pick(vector: Any) -> Any:
            return builder.shuffle_vector(vector, ll.Constant(vector.type, ll.Undefined), every)

        # A strided vector ends with elements that belong to no lane, so one more must be valid.
        whole = builder.and_(builder.sub(n, _int(int(stride > 1))), _int(-lanes))
        rest = builder.sub(n, whole)
        mask = builder.and_(v.below(rest, lanes=wide, divide=stride), ours)
        ragged = builder.icmp_signed(">", rest, _int(0))
        with cgutils.for_range(builder, rows) as row:
            source = v.at(x, builder.mul(row.index, x_row))
            target = v.at(y, builder.mul(row.index, y_row))
            with cgutils.for_range_slice(builder, _int(0), whole, _int(lanes)) as (start, _):
                part = v.load(v.at(source, builder.mul(start, _int(stride))), wide)
                v.store(pick(part), v.at(target, start))
            with builder.if_then(ragged):
                part = v.masked_load(v.at(source, builder.mul(whole, _int(stride))), mask, wide)
                v.store(pick(part), v.at(target, whole))
        return context.get_dummy_value()

    def body(_context, y, y_row, x, x_row, rows, n):
        return signature, generate

    return intrinsic(body)


def selector(dtype: str, lanes: int) -> Any:
    """An intrinsic that copies where a mask says so.

    select(y, x, mask, n, ahead): y[i] = x[i] where mask[i] is 255, 0 where it is 0, i < n.
    Up to lanes - 1 elements after y[n] are overwritten and bytes after mask[n] read; x is read
    where the mask is set. x[i + ahead] is prefetched.
    """
    scalar = ELEMENTS[dtype][0]
    address, number = types.CPointer(scalar), types.int64
    signature = types.void(address, address, types.CPointer(types.uint8), number, number)

    def generate(context, builder, _signature, values):
        y, x, mask, n, ahead = values
        v = _Vectors(builder, dtype, lanes)
        kind = ll.VectorType(ll.IntType(8), lanes)
        with cgutils.for_range_slice(builder, _int(0), n, _int(lanes)) as (start, _):
            v.prefetch(builder.gep(x, [builder.add(start, ahead)]))
            bytes_ = builder.load(builder.bitcast(v.at(mask, start), kind.as_pointer()), align=1)
            chosen = builder.icmp_signed("<", bytes_, ll.Constant(kind, [0] * lanes))
            v.store(v.masked_load(v.at(x, start), chosen), v.at(y, start))
        return context.get_dummy_value()

    def body(_context, y, x, mask, n, ahead):
        return signature, generate

    return intrinsic(body)


def taps_tile(dtype: str, lanes: int, rows: int, columns: int) -> Any:
    """An intrinsic that computes `rows` x `columns * lanes` pixels of one channel's convolution.

    It is called as
        tile(x, x_row, offsets, weights, taps, m, y, y_row, last_y, residual, residual_row, last_residual,
             bias, scalars, flags)
    and computes, for rows i < m, y[i * y_row + j] as the sum over taps t of
    weights[t] * x[i * x_row + offsets[t] + j], plus, as `flags` ask, bias[0] (ROW_BIAS) and
    residual[i * residual_row + j] (RESIDUAL), limited (CLAMP). Row m - 1 goes to `last_y` and takes
    `last_residual` instead. x must be readable for all rows.
    """
    scalar = ELEMENTS[dtype][0]
    address, number = types.CPointer(scalar), types.int64
    signature = types.void(
        address, number, types.CPointer(types.int64), address, number, number, address, number, address,
        address, number, address, address, address, number,
    )  # fmt: skip

    def write(builder, values):
        (x, x_row, offsets, weights, taps, m, y, y_row, last_y, residual, residual_row, last_residual,
         bias, scalars, flags) = values  # fmt: skip
        v = _Vectors(builder, dtype, lanes)
        starts = [v.at(x, builder.mul(_int(r), x_row)) for r in range(rows)]
        before = builder.block
        head, body, end = (builder.append_basic_block(s) for s in ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        t = builder.phi(_I64)
        t.add_incoming(_int(0), before)
        sums = [builder.phi(v.type) for _ in range(rows * columns)]
        for phi in sums:
            phi.add_incoming(v.zero, before)
        builder.cbranch(builder.icmp_signed("<", t, taps), body, end)
        builder.position_at_end(body)
        offset = builder.load(v.at(offsets, t))
        w = v.broadcast(v.at(weights, t))
        for i, phi in enumerate(sums):
            place = v.at(v.at(starts[i // columns], offset), i % columns * lanes)
            phi.add_incoming(v.fma(v.load(place), w, phi), body)
        t.add_incoming(builder.add(t, _int(1)), body)
        builder.branch(head)
        builder.position_at_end(end)

        def has(flag: int) -> Any:
            return builder.icmp_unsigned("!=", builder.and_(flags, _int(flag)), _int(0))

        ended = builder.append_basic_block("ended")
        for r in range(rows):
            go = builder.append_basic_block("row")
            builder.cbranch(builder.icmp_signed("<", _int(r), m), go, ended)
            builder.position_at_end(go)
            is_last = builder.icmp_signed("==", _int(r + 1), m)
            to = builder.select(is_last, last_y, v.at(y, builder.mul(_int(r), y_row)))
            add = builder.select(is_last, last_residual, v.at(residual, builder.mul(_int(r), residual_row)))
            row = list(sums[r * columns : (r + 1) * columns])
            row = _choose(builder, has(ROW_BIAS), row, lambda _j, u: v.add(u, v.broadcast(bias)))
            row = _choose(
                builder, has(RESIDUAL), row,
                lambda j, u, add=add: v.add(u, v.load(v.at(add, j * lanes))),
            )  # fmt: skip
            if v.floating:
                row = _choose(
                    builder, has(CLAMP), row,
                    lambda _j, u: v.clamp(
                        u, v.broadcast(v.at(scalars, LOW)), v.broadcast(v.at(scalars, HIGH))
                    ),
                )  # fmt: skip
            for j, u in enumerate(row):
                v.store(u, v.at(to, j * lanes))
        builder.branch(ended)
        builder.position_at_end(ended)
        builder.ret_void()

    def body(_context, x, x_row, offsets, weights, taps, m, y, y_row, last_y, residual, residual_row,
             last_residual, bias, scalars, flags):  # fmt: skip
        return signature, _outlined(f"taps_{dtype}_{rows}x{columns}x{lanes}", write)

    return intrinsic(body)


def _outlined(name: str, write: Any) -> Any:
    """Code for a call of a function of its own, so that registers are allotted to it alone."""

    def generate(context, builder, _signature, values):
        kind = ll.FunctionType(ll.VoidType(), [x.type for x in values])
        function = ll.Function(builder.module, kind, builder.module.get_unique_name(name))
        function.linkage = "internal"
        function.attributes.add("noinline")
        write(ll.IRBuilder(function.append_basic_block("entry")), function.args)
        builder.call(function, values)
        return context.get_dummy_value()

    return generate
