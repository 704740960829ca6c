"""Register-tiled micro-kernels as explicit vector IR, built through numba intrinsics.

Plain loops never keep a tile of accumulators in registers; vector IR does, and LLVM splits or
widens it for the machine at hand. A generated module makes an intrinsic a global of its own and
calls it, so that numba's disk cache finds it again (see `compiler`).
"""

import itertools
import re
from dataclasses import dataclass
from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.extending import intrinsic

from app.kernels.cpu.codegen import memory
from app.kernels.cpu.codegen.instructions import ELEMENTS, Vectors, choose, number, repeat, typed
from app.kernels.cpu.codegen.tiles import (
    ACCUMULATE,
    ALPHA,
    BETA,
    CLAMP,
    COLUMN_BIAS,
    HIGH,
    LINE,
    LOW,
    RESIDUAL,
    ROW_BIAS,
    SCALE,
    right_bytes,
    right_element,
    symbol,
)


@intrinsic
def at(_context, pointer, index):
    """The address of pointer[index]."""

    def generate(_context, builder, _signature, values):
        return builder.gep(values[0], [values[1]])

    return pointer(pointer, types.int64), generate


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
    part: int = 0  # elements of a vector that are read; 0 for all

    def apply(self, v: Vectors, values: list[Any], places: list[tuple[int, int]]) -> list[Any]:
        """The epilogue on vectors at (row, first column)."""
        b = v.b

        def has(flag: int) -> Any:
            return b.icmp_unsigned("!=", b.and_(self.flags, number(flag)), number(0))

        def load(pointer: Any) -> Any:
            return v.load_part(pointer, self.part or v.lanes)

        def cell(base: Any, step: Any, place: tuple[int, int]) -> Any:
            return load(v.at(v.at(base, b.mul(number(place[0]), step)), place[1]))

        def scalar(index: int) -> Any:
            return v.broadcast(v.at(self.scalars, index))

        def row(place: tuple[int, int]) -> Any:
            return v.broadcast(v.at(self.rows, b.mul(number(place[0]), self.rows_step)))

        def residual(place: tuple[int, int]) -> Any:
            return cell(self.residual, self.residual_step, place)

        stages = (
            (ACCUMULATE, lambda i, x: v.add(x, cell(self.sums, self.sums_step, places[i]))),
            (SCALE, lambda _i, x: v.multiply(x, scalar(ALPHA))),
            (ROW_BIAS, lambda i, x: v.add(x, row(places[i]))),
            (COLUMN_BIAS, lambda i, x: v.add(x, load(v.at(self.columns, places[i][1])))),
            (RESIDUAL, lambda i, x: v.fma(scalar(BETA), residual(places[i]), x)),
            (CLAMP, lambda _i, x: v.clamp(x, scalar(LOW), scalar(HIGH))),
        )
        for flag, stage in stages:
            if flag != CLAMP or v.floating:
                values = choose(b, has(flag), values, stage)
        return values


def tile(
    dtype: str,
    lanes: int,
    rows: int,
    columns: int,
    unroll: int = 4,
    chains: int = 1,
    part: int = 0,
    lines: int = 1,
) -> Any:
    """An intrinsic that computes `rows` x `columns * lanes` elements of a matrix product.

    It is called as
        tile(a, a_row, a_k, m, b, b_k, k, next, next_k, c, c_row,
             sums, sums_row, row_bias, row_bias_step, column_bias, residual, residual_row, scalars, flags)
    and computes c[i * c_row + j] for i < rows and j < columns * lanes as the sum over p < k of
    a[min(i, m - 1) * a_row + p * a_k] * b[p * b_k + j], plus what `flags` ask for:
    ACCUMULATE adds sums[i * sums_row + j], SCALE multiplies by alpha, ROW_BIAS adds
    row_bias[i * row_bias_step], COLUMN_BIAS adds column_bias[j], RESIDUAL adds
    beta * residual[i * residual_row + j], CLAMP limits to [low, high] (floats only).
    Each operand is read before c is written at that place, so c may be the residual or the sums.

    The reduction runs in `chains` independent sums, for tiles too small to hide the latency of a
    product. Step p of it asks for `lines` cache lines from next[p * next_k] on, which need not be valid.
    Of each vector of the result the first `part` elements are written, if it is not 0, and read of what is
    added.

    Where several steps lie together (`Vectors.together`) p counts such groups, whose elements of a are
    neighbours. Where rows of a have a scale (`tiles.SCALED_PAIRS`) it follows their last element.
    """
    scalar = ELEMENTS[dtype][0]
    address, size = types.CPointer(scalar), types.int64
    right = memory.pointer(right_element(dtype))
    own_line = LINE // right_bytes(dtype)
    signature = types.void(
        address, size, size, size, right, size, size, right, size, address, size,
        address, size, address, size, address, address, size, address, size,
    )  # fmt: skip

    def write(builder, values):
        a, a_row, a_k, m, b, b_k, k, ahead, ahead_k, c, c_row, *rest = values
        v = Vectors(builder, dtype, lanes)
        epilogue = Epilogue(*rest, part=part)
        last = builder.sub(m, number(1))
        starts = []
        for r in range(rows):
            row = builder.select(builder.icmp_signed("<", number(r), m), number(r), last)
            starts.append(v.at(a, builder.mul(row, a_row)) if r else a)

        cells = rows * columns

        def step(index: Any, pointer: Any, line: Any, sums: list[Any]) -> list[Any]:
            vectors = [v.load_steps(v.right(pointer, j * lanes)) for j in range(columns)]
            for ask in range(lines):
                v.prefetch(builder.gep(line, [number(ask * own_line)]))
            new = list(sums)
            for r, t in itertools.product(range(rows), range(v.together)):
                x = v.broadcast(v.at(v.at(starts[r], index), t))
                for j in range(columns):
                    new[r * columns + j] = v.dot(x, vectors[j][t], new[r * columns + j])
            return new

        def steps(times: int) -> Any:
            def body(state: list[Any]) -> list[Any]:
                index, pointer, line, *new = state
                for turn in range(times):
                    own = slice(turn % chains * cells, (turn % chains + 1) * cells)
                    new[own] = step(index, pointer, line, new[own])
                    index, pointer = builder.add(index, a_k), v.at(pointer, b_k)
                    line = builder.gep(line, [ahead_k])
                return [index, pointer, line, *new]

            return body

        for r in range(rows):
            v.prefetch(builder.gep(c, [builder.mul(number(r), c_row)]), write=True)
        state = [number(0), b, ahead, *[v.no_sum] * (cells * chains)]
        state = repeat(builder, builder.sdiv(k, number(unroll)), state, steps(unroll))
        done, end, _, *sums = repeat(builder, builder.srem(k, number(unroll)), state, steps(1))
        while len(sums) > cells:
            sums = [v.add_sums(x, y) for x, y in zip(sums[: len(sums) // 2], sums[len(sums) // 2 :])]
        sums = v.scale(sums, end, columns, [v.at(start, done) for start in starts])

        places = [(r, j * lanes) for r in range(rows) for j in range(columns)]
        for x, (r, j) in zip(epilogue.apply(v, sums, places), places):
            v.store_part(x, v.at(v.at(c, builder.mul(number(r), c_row)), j), part or lanes)
        builder.ret_void()

    return typed(signature, outlined(f"tile_{symbol(dtype)}_{rows}x{columns}x{lanes}", write))


def stream_tile(
    dtype: str, lanes: int, columns: int, streams: int, ahead: int = 0, level: int = 2, unroll: int = 2
) -> Any:
    """An intrinsic that computes one row of a matrix product over several panels at once.

    It is called as
        stream(a, a_k, b, b_k, b_panel, k, c, sums, row_bias, column_bias, residual, scalars, flags)
    and computes c[s * columns * lanes + j] for s < streams and j < columns * lanes as the sum over
    p < k of a[p * a_k] * b[s * b_panel + p * b_k + j], plus what `flags` ask for, see `tile`. A row
    takes every element of b once, from memory: that is fastest in several streams. Each asks for the
    elements of b that lie `ahead` of what it reads, into the cache of this level, if that is not 0.
    """
    scalar = ELEMENTS[dtype][0]
    address, size = types.CPointer(scalar), types.int64
    right = memory.pointer(right_element(dtype))
    signature = types.void(
        address, size, right, size, size, size, address, address, address, address, address, address, size
    )
    cells = streams * columns

    def write(b: Any, values: Any) -> None:
        a, a_k, panels, b_k, b_panel, k, c, sums, row_bias, column_bias, residual, scalars, flags = values
        v = Vectors(b, dtype, lanes)
        zero = number(0)
        epilogue = Epilogue(sums, zero, row_bias, zero, column_bias, residual, zero, scalars, flags)

        def steps(times: int) -> Any:
            def body(state: list[Any]) -> list[Any]:
                row, place, *new = state
                for turn in range(times):
                    xs = [v.broadcast(v.at(row, t)) for t in range(v.together)]
                    for s in range(streams):
                        panel = v.at(place, b.mul(number(s), b_panel))
                        for j in range(columns):
                            vector = v.right(panel, j * lanes)
                            for word in range(v.words if ahead else 0):
                                v.prefetch(v.at(vector, word * lanes + ahead), level=level)
                            i = turn * cells + s * columns + j
                            for x, y in zip(xs, v.load_steps(vector)):
                                new[i] = v.dot(x, y, new[i])
                    row, place = v.at(row, a_k), v.at(place, b_k)
                return [row, place, *new]

            return body

        state = [a, panels, *[v.no_sum] * (cells * unroll)]
        state = repeat(b, b.sdiv(k, number(unroll)), state, steps(unroll))
        done, end, *found = repeat(b, b.srem(k, number(unroll)), state, steps(1))
        for turn in range(1, unroll):
            own = found[turn * cells : (turn + 1) * cells]
            found[:cells] = [v.add_sums(x, y) for x, y in zip(found[:cells], own)]
        scaled = []
        for s in range(streams):
            own = found[s * columns : (s + 1) * columns]
            scaled += v.scale(own, v.at(end, b.mul(number(s), b_panel)), columns, [done])
        places = [(0, i * lanes) for i in range(cells)]
        for x, (_, j) in zip(epilogue.apply(v, scaled, places), places):
            v.store(x, v.at(c, j))
        b.ret_void()

    return typed(signature, outlined(f"stream_{symbol(dtype)}_{columns}x{lanes}", write))


def spills(assembly: str, function: str = "tile_") -> int:
    """Vector registers that the innermost loops of functions of this prefix keep on the stack.

    Counts moves to and from the stack in x86 assembly; those outside such loops cost nothing.
    """
    move = re.compile(r"vmov\w+\s+(?:%[xyz]mm\d+, -?\d*\(%rsp\)|-?\d*\(%rsp\), %[xyz]mm\d+)")
    label = re.compile(r"^([A-Za-z_.][^\s:]*):")
    jump = re.compile(r"^\s+j\w+\s+(\.L\S+)")
    count, inside = 0, False
    places: dict[str, int] = {}
    moves: list[int] = []  # line numbers
    innermost = -1  # first line of the last loop that closed
    for at, line in enumerate(assembly.splitlines()):
        if found := label.match(line):
            if not found.group(1).startswith("."):
                inside = found.group(1).startswith(function)
                places, moves, innermost = {}, [], -1
            places[found.group(1)] = at
        elif inside and move.search(line):
            moves.append(at)
        elif inside and (found := jump.match(line)) and found.group(1) in places:
            first = places[found.group(1)]
            if innermost < first:
                count += sum(first <= move_at for move_at in moves)
            innermost = max(innermost, first)
    return count


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
    address, size = types.CPointer(scalar), types.int64
    signature = types.void(
        address, size, types.CPointer(types.int64), address, size, size, address, size, address,
        address, size, address, address, address, size,
    )  # fmt: skip

    def write(builder, values):
        (x, x_row, offsets, weights, taps, m, y, y_row, last_y, residual, residual_row, last_residual,
         bias, scalars, flags) = values  # fmt: skip
        v = Vectors(builder, dtype, lanes)
        starts = [v.at(x, builder.mul(number(r), x_row)) for r in range(rows)]

        def tap(state: list[Any]) -> list[Any]:
            offset_at, weight_at, *new = state
            offset, w = builder.load(offset_at), v.broadcast(weight_at)
            for i, x in enumerate(new):
                place = v.at(v.at(starts[i // columns], offset), i % columns * lanes)
                new[i] = v.dot(v.load(place), w, x)
            return [v.at(offset_at, 1), v.at(weight_at, 1), *new]

        state = [offsets, weights, *[v.zero] * (rows * columns)]
        _, _, *sums = repeat(builder, taps, state, tap)

        def has(flag: int) -> Any:
            return builder.icmp_unsigned("!=", builder.and_(flags, number(flag)), number(0))

        ended = builder.append_basic_block("ended")
        for r in range(rows):
            go = builder.append_basic_block("row")
            builder.cbranch(builder.icmp_signed("<", number(r), m), go, ended)
            builder.position_at_end(go)
            is_last = builder.icmp_signed("==", number(r + 1), m)
            to = builder.select(is_last, last_y, v.at(y, builder.mul(number(r), y_row)))
            add = builder.select(is_last, last_residual, v.at(residual, builder.mul(number(r), residual_row)))
            row = list(sums[r * columns : (r + 1) * columns])
            row = choose(builder, has(ROW_BIAS), row, lambda _j, u: v.add(u, v.broadcast(bias)))
            row = choose(
                builder, has(RESIDUAL), row,
                lambda j, u, add=add: v.add(u, v.load(v.at(add, j * lanes))),
            )  # fmt: skip
            if v.floating:
                row = choose(
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

    return typed(signature, outlined(f"taps_{dtype}_{rows}x{columns}x{lanes}", write))


def outlined(name: str, write: Any) -> Any:
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
