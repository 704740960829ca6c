"""Sums of integer products to what is stored of them, by recipes of a few operations on vectors.

A plain loop converts one register of sums at a time, because they are the widest elements, and stores a
quarter of a register. Here four are in work at once, and saturating packs make bytes of them where the CPU
has such.
"""

from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils

from app.kernels.cpu.codegen.instructions import I16, I32, number, typed
from app.kernels.cpu.epilogue import FIXED, ROWS, in_memory
from app.kernels.cpu.runtime.processor import compiled_for
from app.kernels.expressions import Recipe, kept, lines, prelude

LIMITS = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}
LARGE = 2.0**30  # beyond all limits, and within int32
_REAL, _BYTE = ll.FloatType(), ll.IntType(8)
_ELEMENTS = {"int32": I32, "int8": _BYTE, "uint8": _BYTE, "float32": _REAL}
_ARITHMETIC = {"Add": "fadd", "Sub": "fsub", "Mul": "fmul", "Div": "fdiv"}


_CONVERTED_RUN = """\
{prelude}
from numba import types

from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

N = types.int64


@shared(types.void(types.CPointer(types.{dtype}), types.CPointer(types.{stored}), N{types}))
def run(v, y, n{operands}):
    # y[j] = f(v[j], ...), j < n.
{fixed}
    for j in range(n):
{body}


@shared(types.void(types.CPointer(types.{dtype}), N, N, N, types.CPointer(types.{stored}), N{types}))
def run_rows(v_rows, row, m, n, y_rows, y_row{operands}):
{fixed}
    for i in range(m):
        v, y = at(v_rows, i * row), at(y_rows, i * y_row)
{rows}
        for j in range(n):
{row_body}
"""


_VECTOR_RUN = """\
from numba import types

from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.requantize import rows_of, run_of

N, WAY = types.int64, ({recipe}, {operands}, "{result}", {lanes})
of_run, of_rows = run_of(*WAY), rows_of(*WAY)


@shared(types.void(types.CPointer(types.int32), types.CPointer(types.{result}), N{types}))
def run(v, y, n{names}):
    of_run(v, y, n{names})


@shared(types.void(types.CPointer(types.int32), N, N, N, types.CPointer(types.{result}), N{types}))
def run_rows(v, row, m, n, y, y_row{names}):
    of_rows(v, row, m, n, y, y_row{names})
"""


def converted_run_library(
    dtype: str, result: str, recipe: Recipe, operands: tuple[tuple[str, str], ...], lanes: int
) -> str:
    """Defines `run(v, y, n, *operands)`: a recipe whose result may be of another type than its input 0.

    And `run_rows(v, row, m, n, y, y_row, *operands)`: m rows of n elements, `row` apart in v, `y_row` in y
    and in operands that are read by ROWS, with the same other operands.

    Args:
        dtype: of v, input 0.
        result: dtype of y, which may be an operand that is read ALONG but not v.
        recipe: not empty.
        operands: (ALONG, ROWS or FIXED, dtype) of its other inputs, as addresses where the run begins.
        lanes: float32 in a register.
    """
    pointers = "".join(f", types.CPointer(types.{in_memory(kind)})" for _, kind in operands)
    if dtype == "int32" and _computes(recipe, operands, result):
        names = "".join(f", o{i}" for i in range(len(operands)))
        return _VECTOR_RUN.format(
            recipe=recipe, operands=operands, result=result, lanes=lanes, types=pointers, names=names
        )
    fixed, moved, read = [], [], ["read(v, j)"]
    for i, (advance, _) in enumerate(operands):
        read.append(f"w{i}" if advance == FIXED else f"read(o{i}, j)")
        if advance == FIXED:
            fixed.append(f"    w{i} = o{i}[0]")
        if advance == ROWS:
            moved.append(f"        r{i} = at(o{i}, i * y_row)")
    dtypes = (dtype, *(kind for _, kind in operands))
    value = kept(result, f"v{len(read) + len(recipe) - 1}")

    def body(names: list[str], indent: int) -> str:
        text = (*lines(recipe, names, dtypes), f"write(y, j, {value})")
        return "\n".join(" " * indent + line for line in text)

    in_rows = [
        f"read(r{i}, j)" if way == ROWS else name
        for i, (name, (way, _)) in enumerate(zip(read[1:], operands))
    ]
    return _CONVERTED_RUN.format(
        prelude=prelude(),
        dtype=dtype,
        stored=in_memory(result),
        types=pointers,
        operands="".join(f", o{i}" for i in range(len(operands))),
        fixed="\n".join(fixed),
        body=body(read, 8),
        rows="\n".join(moved),
        row_body=body([read[0], *in_rows], 12),
    )


def _computes(recipe: Recipe, operands: tuple[tuple[str, str], ...], result: str) -> bool:
    """True if vectors of int32 sums become what is stored by operations that there are for them.

    `operands`: how each advances, and its dtype. Numbers that are stored as bytes are rounded, with nothing
    after it but a zero point of 8 bits.
    """
    kinds = ["int32", *(kind for _, kind in operands)]
    if not all(kind in _ELEMENTS for kind in kinds):
        return False
    for op, arguments, parameters in recipe:
        read = [kinds[i] for i in arguments]
        if op == "Cast" and parameters == ("float32",):
            kinds.append("float32")
        elif op == "Add" and set(read) == {"int32"}:
            kinds.append("int32")
        elif (op in _ARITHMETIC or op == "Round") and set(read) == {"float32"}:
            kinds.append("float32")
        elif op == "Saturate" and read == ["float32"] and parameters[-1] in LIMITS:
            kinds.append(str(parameters[-1]))
        else:
            return False
    if result == "float32":
        return kinds[-1] == "float32" and bool(recipe)
    return bool(recipe) and recipe[-1][0] == "Saturate" and _rounded(recipe, operands) is not None


def _rounded(recipe: Recipe, operands: tuple[tuple[str, str], ...]) -> tuple[int, int] | None:
    """Value that is rounded before the last step limits it, and the operand added after that; 0 for none.

    None if something else comes before the last step.
    """
    inputs = 1 + len(operands)

    def step(i: int) -> tuple[str, tuple[int, ...]]:
        return recipe[i - inputs][:2] if i >= inputs else ("", ())

    last, zero = recipe[-1][1][0], 0
    if step(last)[0] == "Add":
        last, cast = step(last)[1]
        op, of = step(cast)
        zero = of[0] if op == "Cast" else 0
        if not 1 <= zero < inputs or operands[zero - 1] not in ((FIXED, "int8"), (FIXED, "uint8")):
            return None
    op, of = step(last)
    return (of[0], zero) if op == "Round" else None


def _pointer(dtype: str) -> Any:
    return types.CPointer(getattr(types, dtype))


def run_of(recipe: Recipe, operands: tuple[tuple[str, str], ...], result: str, lanes: int) -> Any:
    """An intrinsic that computes a run of results from a run of sums.

    run(v, y, n, *operands): y[j] = the recipe of v[j], j < n. y may be an operand that is read ALONG.
    """
    pointers = [_pointer(kind) for _, kind in operands]
    signature = types.void(_pointer("int32"), _pointer(result), types.int64, *pointers)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        v, y, n, *sources = values
        vector = _Recipe(builder, recipe, operands, result, lanes)
        done = number(0)
        for width in (4 * lanes, lanes, 1):
            stop = builder.and_(n, number(-width))
            with cgutils.for_range_slice(builder, done, stop, number(width)) as (start, _):
                vector.store(v, [start], vector.loaded(sources, start, width), y, [start], width)
            done = stop
        return context.get_dummy_value()

    return typed(signature, generate)


def rows_of(recipe: Recipe, operands: tuple[tuple[str, str], ...], result: str, lanes: int) -> Any:
    """An intrinsic that computes rows of results; what does not vary by row stays in registers.

    rows(v, row, m, n, y, y_row, *operands): as `run_of` does y[i * y_row + j] from v[i * row + j], i < m and
    j < n; operands that advance by ROWS lie as y does, and may be it.
    """
    size, pointers = types.int64, [_pointer(kind) for _, kind in operands]
    signature = types.void(_pointer("int32"), size, size, size, _pointer(result), size, *pointers)

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        v, row, m, n, y, y_row, *sources = values
        vector = _Recipe(builder, recipe, operands, result, lanes)

        def columns(width: int, column: Any) -> None:
            kept, done = vector.loaded(sources, column, width), number(0)
            for rows in dict.fromkeys((4 * lanes // width if width >= lanes // 2 else 1, 1)):
                stop = builder.and_(m, number(-rows))
                with cgutils.for_range_slice(builder, done, stop, number(rows)) as (first, _):
                    each = [builder.add(first, number(i)) for i in range(rows)]
                    places, to = (
                        [builder.add(builder.mul(i, step), column) for i in each] for step in (row, y_row)
                    )
                    read = [
                        vector.joined([vector.load(source, start, width, kind) for start in to])
                        if way == ROWS
                        else vector.joined([known] * rows)
                        for known, source, (way, kind) in zip(kept, sources, operands)
                    ]
                    vector.store(v, places, read, y, to, width)
                done = stop

        done = number(0)
        for width in dict.fromkeys((4 * lanes, lanes, lanes // 2, max(lanes // 4, 1), 1)):
            stop = builder.and_(n, number(-width))
            with cgutils.for_range_slice(builder, done, stop, number(width)) as (column, _):
                columns(width, column)
            done = stop
        return context.get_dummy_value()

    return typed(signature, generate)


class _Recipe:
    """Instructions that compute vectors of results."""

    def __init__(
        self, builder: Any, recipe: Recipe, operands: tuple[tuple[str, str], ...], result: str, lanes: int
    ) -> None:
        self.b = builder
        self.recipe, self.operands, self.result, self.lanes = recipe, operands, result, lanes
        self.rounded, self.zero = _rounded(recipe, operands) or (0, 0)

    def splat(self, scalar: Any, width: int) -> Any:
        """A scalar in every lane."""
        kind = ll.VectorType(scalar.type, width)
        undefined = ll.Constant(kind, ll.Undefined)
        first = self.b.insert_element(undefined, scalar, ll.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, ll.Constant(ll.VectorType(I32, width), [0] * width))

    def load(self, source: Any, start: Any, width: int, dtype: str) -> Any:
        """A vector from an index on."""
        kind = ll.VectorType(_ELEMENTS[dtype], width).as_pointer()
        return self.b.load(self.b.bitcast(self.b.gep(source, [start]), kind), align=_align(dtype))

    def loaded(self, sources: list[Any], start: Any, width: int) -> list[Any]:
        """Operands from an index on."""
        return [
            self.splat(self.b.load(source), width) if way == FIXED else self.load(source, start, width, kind)
            for source, (way, kind) in zip(sources, self.operands)
        ]

    def joined(self, parts: list[Any]) -> Any:
        """Vectors one after the other as one; a power of two of them."""
        while len(parts) > 1:
            order = _indices(range(2 * parts[0].type.count))
            parts = [self.b.shuffle_vector(x, y, order) for x, y in zip(parts[::2], parts[1::2])]
        return parts[0]

    def store(
        self, v: Any, places: list[Any], operands: list[Any], y: Any, to: list[Any], width: int
    ) -> None:
        """Results of `width` sums from each of some places on; operands are vectors of all of them."""
        b, whole = self.b, width * len(places)
        values = [self.joined([self.load(v, place, width, "int32") for place in places]), *operands]
        kinds = ["int32", *(kind for _, kind in self.operands)]
        steps = self.recipe if self.result == "float32" else self.recipe[:-1]
        for op, arguments, parameters in steps:
            read = [values[i] for i in arguments]
            integer = op == "Add" and kinds[arguments[0]] == "int32"
            if integer:
                values.append(b.add(*read))
            elif op == "Cast":
                values.append(self._real(read[0], kinds[arguments[0]], whole))
            elif op == "Saturate":
                values.append(self._limited(read[0], LIMITS[str(parameters[-1])], whole))
            elif op == "Round":
                values.append(self._call(f"llvm.rint.v{whole}f32", read[0].type, read))
            else:
                values.append(getattr(b, _ARITHMETIC[op])(*read))
            kinds.append("int32" if integer else "float32")  # limited numbers, too, stay in that type
        found = values[-1] if self.result == "float32" else self._bytes(values, whole)
        for i, place in enumerate(to):
            part = b.shuffle_vector(found, found, _indices(range(i * width, (i + 1) * width)))
            b.store(part, b.bitcast(b.gep(y, [place]), part.type.as_pointer()), align=_align(self.result))

    def _call(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind = ll.FunctionType(result, [a.type for a in arguments])
        return self.b.call(cgutils.get_or_insert_function(self.b.module, kind, name), arguments)

    def _real(self, value: Any, dtype: str, width: int) -> Any:
        if dtype == "float32":
            return value
        if value.type.element == _BYTE:
            widen = self.b.zext if dtype == "uint8" else self.b.sext
            value = widen(value, ll.VectorType(I32, width))
        return self.b.sitofp(value, ll.VectorType(_REAL, width))

    def _limited(self, x: Any, limits: tuple[float, float], width: int) -> Any:
        """The number within limits, the lower one of NaN; no negative zero."""
        least, most = (self.splat(ll.Constant(_REAL, limit), width) for limit in limits)
        x = self.b.select(self.b.fcmp_ordered(">", x, least), x, least)
        x = self.b.select(self.b.fcmp_ordered("<", x, most), x, most)
        return self.b.fadd(x, self.splat(ll.Constant(_REAL, 0.0), width))

    def _bytes(self, values: list[Any], width: int) -> Any:
        """The numbers that the last step limits, as bytes."""
        x, zero = values[self.rounded], values[self.zero] if self.zero else None
        if width == 4 * self.lanes and self._packs():
            return self._packed(x, zero)
        b = self.b
        integers = ll.VectorType(I32, width)
        limits = [self.splat(ll.Constant(_REAL, limit), width) for limit in LIMITS[self.result]]
        origin = ll.Constant(integers, [0] * width)
        if zero is not None:
            kind = self.operands[self.zero - 1][1]
            limits = [b.fsub(limit, self._real(zero, kind, width)) for limit in limits]
            origin = self._integers(zero, I32)
        least, most = limits
        x = b.select(b.fcmp_ordered(">", x, least), x, least)
        x = b.select(b.fcmp_ordered("<", x, most), x, most)
        levels = b.add(self._nearest(x), origin)
        return b.trunc(levels, ll.VectorType(_BYTE, width))

    def _integers(self, bytes_: Any, kind: Any) -> Any:
        """Zero points as wider integers."""
        widen = self.b.zext if self.operands[self.zero - 1][1] == "uint8" else self.b.sext
        return widen(bytes_, ll.VectorType(kind, bytes_.type.count))

    def _nearest(self, x: Any) -> Any:
        width = x.type.count
        return self._call(f"llvm.lrint.v{width}i32.v{width}f32", ll.VectorType(I32, width), [x])

    def _packs(self) -> bool:
        """True if the processor narrows integers with saturation, two registers to one."""
        feature = {8: "+avx2", 16: "+avx512bw"}.get(self.lanes, "")
        return bool(feature) and feature in compiled_for().features.split(",")

    def _packed(self, x: Any, zero: Any) -> Any:
        """Four registers of numbers as one of bytes. NaN, and what is below int32, become the least."""
        b, lanes = self.b, self.lanes
        large = self.splat(ll.Constant(_REAL, LARGE), 4 * lanes)
        levels = self._nearest(b.select(b.fcmp_ordered("<", large, x), large, x))
        quarters = [
            b.shuffle_vector(levels, levels, _indices(range(i * lanes, (i + 1) * lanes))) for i in range(4)
        ]
        # Intrinsics of AVX2 have no width in their names.
        prefix, suffix = ("avx512", ".512") if lanes == 16 else ("avx2", "")
        halves = [
            self._call(f"llvm.x86.{prefix}.packssdw{suffix}", ll.VectorType(I16, 2 * lanes), two)
            for two in (quarters[:2], quarters[2:])
        ]
        if zero is not None:
            origin = self._integers(b.shuffle_vector(zero, zero, _indices(range(2 * lanes))), I16)
            halves = [self._call(f"llvm.sadd.sat.v{2 * lanes}i16", h.type, [h, origin]) for h in halves]
        name = "packuswb" if self.result == "uint8" else "packsswb"
        packed = self._call(f"llvm.x86.{prefix}.{name}{suffix}", ll.VectorType(_BYTE, 4 * lanes), halves)
        # Packs work within 128 bits: four numbers of each register lie together.
        fours = b.bitcast(packed, ll.VectorType(I32, lanes))
        order = [part * 4 + i for i in range(4) for part in range(lanes // 4)]
        return b.bitcast(b.shuffle_vector(fours, fours, _indices(order)), packed.type)


def _align(dtype: str) -> int:
    return 1 if dtype in LIMITS else 4


def _indices(places: Any) -> Any:
    places = list(places)
    return ll.Constant(ll.VectorType(I32, len(places)), places)
