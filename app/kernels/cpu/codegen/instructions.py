"""Vector instructions as LLVM IR, for intrinsics that numba compiles.

Elements are float32, float64, integers, several integers in one (`tiles.PACKED`), two bfloat16 in one
(`tiles.BFLOAT_PAIRS`), float32 beside fixed point (`tiles.FIXED_POINT`) or beside 16-bit floats
(`tiles.HALF_RIGHTS`); `lanes` is the number of elements in a vector, which LLVM splits or widens for the
machine at hand. What is loaded from an address of 16-bit floats, or stored there, is converted (`memory`).
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.ir as ll
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from app.kernels.cpu.codegen import memory
from app.kernels.cpu.codegen.memory import BfloatType
from app.kernels.cpu.codegen.tiles import (
    BFLOAT_PAIRS,
    BFLOATS,
    BOTH_SIGNED,
    BYTE_PAIRS,
    DOT,
    DOTS,
    FIXED_POINT,
    FIXED_STEPS,
    FIXED_WORDS,
    FLOAT_PAIRS,
    HALF_RIGHTS,
    LEFT_UNSIGNED,
    PACKED,
    PAIRS,
    RIGHT_UNSIGNED,
    SCALED_PAIRS,
    panel_sizes,
)
from app.kernels.cpu.runtime.processor import compiled_for

ELEMENTS = {
    "float32": (types.float32, ll.FloatType(), 4),
    "float64": (types.float64, ll.DoubleType(), 8),
    "int32": (types.int32, ll.IntType(32), 4),
    "uint32": (types.uint32, ll.IntType(32), 4),
    "int64": (types.int64, ll.IntType(64), 8),
    "uint64": (types.uint64, ll.IntType(64), 8),
    **dict.fromkeys(PACKED, (types.int32, ll.IntType(32), 4)),
    **dict.fromkeys((*FLOAT_PAIRS, FIXED_POINT, *HALF_RIGHTS), (types.float32, ll.FloatType(), 4)),
}
I1, I8, I16, I32, I64 = (ll.IntType(n) for n in (1, 8, 16, 32, 64))


def typed(signature: Any, generate: Callable[..., Any]) -> Any:
    """An intrinsic of one signature, whose code `generate(context, builder, signature, values)` writes."""

    def body(*_arguments: Any) -> Any:
        return signature, generate

    # numba counts the parameters, of which the first is the typing context.
    kind = inspect.Parameter.POSITIONAL_ONLY
    names = [inspect.Parameter(f"a{i}", kind) for i in range(len(signature.args) + 1)]
    body.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
    return intrinsic(body)


def number(n: int) -> ll.Constant:
    """A 64-bit constant."""
    return ll.Constant(I64, n)


def choose(builder: Any, condition: Any, values: list[Any], changed: Any) -> list[Any]:
    """`changed(i, value)` for all values where the condition holds, else the values."""
    return where(builder, condition, values, lambda: [changed(i, v) for i, v in enumerate(values)])


def where(builder: Any, condition: Any, values: list[Any], others: Callable[[], list[Any]]) -> list[Any]:
    """`others()`, as many, where the condition holds, else the values."""
    before = builder.block
    do, after = (builder.append_basic_block(name) for name in ("do", "after"))
    builder.cbranch(condition, do, after)
    builder.position_at_end(do)
    new = others()
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


class Distinct(ll.MDValue):
    """A metadata node that equals only itself, as access groups and loops must."""

    def __init__(self, module) -> None:
        super().__init__(module, (), name=str(len(module.metadata)))

    def descr(self, buf) -> None:
        """Write the text of the node."""
        operands = ", ".join(operand.get_reference() for operand in self.operands)
        buf += (f"distinct !{{ {operands} }}", "\n")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def not_unrolled(module):
    """Metadata of a loop that LLVM does not unroll: its steps are as many as registers and latency want."""
    loop = Distinct(module)
    loop.operands = (loop, module.add_metadata([ll.MetaDataString(module, "llvm.loop.unroll.disable")]))
    return loop


def repeat(builder: Any, count: Any, carried: list[Any], body: Any) -> list[Any]:
    """`body` on the carried values, `count` times; the test is at the top, so zero times is fine."""
    before = builder.block
    head, inside, end = (builder.append_basic_block(s) for s in ("head", "body", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    left = builder.phi(I64)
    phis = [builder.phi(c.type) for c in carried]
    for phi, c in zip((left, *phis), (count, *carried)):
        phi.add_incoming(c, before)
    builder.cbranch(builder.icmp_signed(">", left, number(0)), inside, end)
    builder.position_at_end(inside)
    new = body(phis)
    done = builder.block
    for phi, c in zip((left, *phis), (builder.sub(left, number(1)), *new)):
        phi.add_incoming(c, done)
    builder.branch(head).set_metadata("llvm.loop", not_unrolled(builder.module))
    builder.position_at_end(end)
    return phis


class Vectors:
    """Vector instructions on `lanes` elements, written by a builder."""

    def __init__(self, builder: Any, dtype: str, lanes: int) -> None:
        self.b = builder
        self.scalar, self.element, self.nbytes = ELEMENTS[dtype]
        self.lanes = lanes
        self.floating = not isinstance(self.element, ll.IntType)
        self.dtype = dtype
        fixed = dtype == FIXED_POINT
        self.together = FIXED_STEPS if fixed else 1  # steps of a reduction
        self.words = FIXED_WORDS if fixed else 1  # vectors that hold their second operands
        self.shorts = dtype == SCALED_PAIRS  # sums are int32
        self.scaled = fixed or self.shorts  # sums are multiplied by what follows the second operand
        self.type = ll.VectorType(self.element, lanes)
        self.zero = ll.Constant(self.type, [0.0 if self.floating else 0] * lanes)
        self.suffix = f"v{lanes}{'f' if self.floating else 'i'}{self.nbytes * 8}"

    @property
    def no_sum(self) -> Any:
        """Zero sums of `dot`."""
        return ll.Constant(ll.VectorType(I32, self.lanes), [0] * self.lanes) if self.shorts else self.zero

    def _function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        return cgutils.get_or_insert_function(self.b.module, ll.FunctionType(result, arguments), name)

    def at(self, pointer: Any, index: Any) -> Any:
        """The address of pointer[index]."""
        index = number(index) if isinstance(index, int) else index
        return self.b.gep(pointer, [index], inbounds=True)

    def load(self, pointer: Any, lanes: int = 0) -> Any:
        """A vector from an address, of another number of lanes if given."""
        if memory.is_half(pointer):
            return memory.load(self.b, pointer, lanes or self.lanes)
        kind = ll.VectorType(self.element, lanes) if lanes else self.type
        return self.b.load(self.b.bitcast(pointer, kind.as_pointer()), align=self.nbytes)

    def load_right(self, pointer: Any) -> Any:
        """The second operand of `dot` from an address, see `tiles.right_element`."""
        if self.dtype != BYTE_PAIRS:
            return self.load(pointer)
        narrow, wide = (ll.VectorType(kind, 2 * self.lanes) for kind in (I8, I16))
        pairs = self.b.load(self.b.bitcast(pointer, narrow.as_pointer()), align=2)
        return self.b.bitcast(self.b.sext(pairs, wide), self.type)

    def load_steps(self, pointer: Any) -> list[Any]:
        """The second operands of the steps that lie together, see `together`."""
        return self._load_fixed(pointer) if self.dtype == FIXED_POINT else [self.load_right(pointer)]

    def _load_fixed(self, pointer: Any) -> list[Any]:
        """See `tiles.pack_fixed`; what is summed is 256 times as large."""
        kind = ll.VectorType(I32, self.lanes)

        def all_(n: int) -> Any:
            return ll.Constant(kind, [n] * self.lanes)

        words = [
            self.b.load(self.b.bitcast(self.at(pointer, i * self.lanes), kind.as_pointer()), align=4)
            for i in range(FIXED_WORDS)
        ]
        fourth = self.b.shl(words[0], all_(24))
        for i, mask in ((1, 0xFF0000), (2, 0xFF00)):
            fourth = self.b.or_(fourth, self.b.and_(self.b.shl(words[i], all_(24 - 8 * i)), all_(mask)))
        return [self.b.sitofp(v, self.type) for v in (*words, fourth)]

    def scale(self, sums: list[Any], end: Any, columns: int, factors: Sequence[Any] = ()) -> list[Any]:
        """Rows of `columns` vectors of sums times what follows the last step of a panel, see `tiles`.

        `factors` are addresses of the scales of left operands, where they have some: of each row, or one.
        """
        if not self.scaled:
            return sums
        scales = [self.load(self.at(end, self.lanes * j)) for j in range(columns)]
        if self.shorts:
            scales = [self.multiply(x, y) for y in map(self.broadcast, factors) for x in scales]
            sums = [self.b.sitofp(x, self.type) for x in sums]
        return [self.multiply(x, scales[i % len(scales)]) for i, x in enumerate(sums)]

    def right(self, pointer: Any, index: int) -> Any:
        """The address of the second operand's pointer[index]."""
        return self.at(pointer, panel_sizes(self.dtype, index)[0])

    def store(self, value: Any, pointer: Any) -> None:
        """A vector to an address."""
        if memory.is_half(pointer):
            memory.store(self.b, value, pointer)
            return
        self.b.store(value, self.b.bitcast(pointer, value.type.as_pointer()), align=self.nbytes)

    def store_lines(self, lines: Sequence[Any], start: Any, apart: Any, count: Any) -> None:
        """The first `count` of some vectors, `apart` elements from one to the next."""
        ended = self.b.append_basic_block("ended")
        for i, line in enumerate(lines):
            go = self.b.append_basic_block("line")
            self.b.cbranch(self.b.icmp_signed("<", number(i), count), go, ended)
            self.b.position_at_end(go)
            self.store(line, self.at(start, self.b.mul(number(i), apart)))
        self.b.branch(ended)
        self.b.position_at_end(ended)

    def splat(self, value: Any) -> Any:
        """A scalar in every lane."""
        undefined = ll.Constant(self.type, ll.Undefined)
        first = self.b.insert_element(undefined, value, ll.Constant(I32, 0))
        return self.b.shuffle_vector(
            first, undefined, ll.Constant(ll.VectorType(I32, self.lanes), [0] * self.lanes)
        )

    def prefetch(self, pointer: Any, *, write: bool = False, level: int = 1) -> None:
        """Ask for the cache line of an address, which need not be valid, into this level of the caches."""
        flat = self.b.bitcast(pointer, ll.IntType(8).as_pointer())
        function = self._function("llvm.prefetch.p0", ll.VoidType(), [flat.type, I32, I32, I32])
        self.b.call(function, [flat, *(ll.Constant(I32, i) for i in (int(write), 4 - level, 1))])

    def broadcast(self, pointer: Any) -> Any:
        """The element at an address in every lane."""
        if memory.is_half(pointer):
            return self.splat(memory.load(self.b, pointer))
        return self.splat(self.b.load(pointer, align=self.nbytes))

    def add(self, x: Any, y: Any) -> Any:
        """The sum of two vectors."""
        return self.b.fadd(x, y) if self.floating else self.b.add(x, y)

    def add_sums(self, x: Any, y: Any) -> Any:
        """The sum of two sums of `dot`."""
        return self.b.add(x, y) if self.shorts else self.add(x, y)

    def multiply(self, x: Any, y: Any) -> Any:
        """The product of two vectors."""
        return self.b.fmul(x, y) if self.floating else self.b.mul(x, y)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        """The product of x and y, plus z; rounded once for floats."""
        if not self.floating:
            return self.b.add(self.b.mul(x, y), z)
        function = self._function(f"llvm.fma.{self.suffix}", self.type, [self.type] * 3)
        return self.b.call(function, [x, y, z])

    def dot(self, x: Any, y: Any, z: Any) -> Any:
        """A step of a reduction: x times y, plus z.

        Of several integers in one the sum of their products, plus z, which is an int32 as the result; of
        bfloat16 the same in float32, rounded after each product.
        """
        if self.dtype in BFLOAT_PAIRS:
            return self._bfloat_products(x, y, z)
        if self.shorts:
            kind = ll.VectorType(I32, self.lanes)
            x, y = (self.b.bitcast(v, kind) for v in (x, y))
        if self.shorts or self.dtype in (PAIRS, BYTE_PAIRS):
            return self.b.add(self.pair_products(x, y), z)
        if self.dtype in DOTS:
            return self._quad_dot(x, y, z)
        if self.dtype in PACKED:
            return self.b.add(self._quad_products(x, y), z)
        return self.fma(x, y, z)

    def _bfloat_products(self, x: Any, y: Any, z: Any) -> Any:
        """The product of the high halves is added first, as the instruction does."""
        if self.dtype == BFLOATS:
            pairs = ll.VectorType(BfloatType(), 2 * self.lanes)
            name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
            function = self._function(name, self.type, [self.type, pairs, pairs])
            return self.b.call(function, [z, *(self.b.bitcast(v, pairs) for v in (x, y))])
        kind = ll.VectorType(I32, self.lanes)
        bits = [self.b.bitcast(v, kind) for v in (x, y)]
        high, shift = (ll.Constant(kind, [n] * self.lanes) for n in (0xFFFF0000, 16))
        for half in ([self.b.and_(v, high) for v in bits], [self.b.shl(v, shift) for v in bits]):
            first, second = (self.b.bitcast(v, self.type) for v in half)
            z = self.fma(first, second, z)
        return z

    def narrow(self, x: Any) -> Any:
        """float32 rounded to bfloat16, the even one of two: a vector of half as many elements, in pairs."""
        half = ll.VectorType(self.element, self.lanes // 2)
        if self.dtype == BFLOATS:
            narrow = ll.VectorType(BfloatType(), self.lanes)
            name = f"llvm.x86.avx512bf16.cvtneps2bf16.{32 * self.lanes}"
            return self.b.bitcast(self.b.call(self._function(name, narrow, [self.type]), [x]), half)
        kind = ll.VectorType(I32, self.lanes)
        one, most, quiet, sixteen = (ll.Constant(kind, [n] * self.lanes) for n in (1, 0x7FFF, 0x400000, 16))
        bits = self.b.bitcast(x, kind)
        odd = self.b.and_(self.b.lshr(bits, sixteen), one)
        rounded = self.b.add(bits, self.b.add(odd, most))
        nan = self.b.fcmp_unordered("uno", x, x)  # which must not round to infinity
        bits = self.b.lshr(self.b.select(nan, self.b.or_(bits, quiet), rounded), sixteen)
        return self.b.bitcast(self.b.trunc(bits, ll.VectorType(I16, self.lanes)), half)

    def narrow_two(self, x: Any, y: Any) -> Any:
        """Two vectors of float32 rounded as `narrow` does, one after the other in one vector."""
        wide = ll.VectorType(BfloatType(), 2 * self.lanes)
        name = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * self.lanes}"
        function = self._function(name, wide, [self.type] * 2)
        return self.b.bitcast(self.b.call(function, [y, x]), self.type)

    def pair_products(self, x: Any, y: Any) -> Any:
        """Sums of two products of int16 as int32: one instruction where there is one (x86: vpmaddwd)."""
        narrow = ll.VectorType(I16, 2 * self.lanes)
        wide = ll.VectorType(I32, 2 * self.lanes)
        both = self.b.mul(*(self.b.sext(self.b.bitcast(v, narrow), wide) for v in (x, y)))
        parts = ll.VectorType(I32, self.lanes)
        even, odd = (
            self.b.shuffle_vector(both, both, ll.Constant(parts, list(range(first, 2 * self.lanes, 2))))
            for first in (0, 1)
        )
        return self.b.add(even, odd)

    def _quad_dot(self, x: Any, y: Any, z: Any) -> Any:
        """The sum of z and four products of bytes, exactly modulo 2 ** 32."""
        first, second = (y, x) if self.dtype.startswith(RIGHT_UNSIGNED) else (x, y)
        name = self._quad_instruction()
        if name is not None:
            bytes_ = ll.VectorType(I8, 4 * self.lanes)
            function = self._function(f"{name}.{32 * self.lanes}", self.type, [self.type, bytes_, bytes_])
            return self.b.call(function, [z, *(self.b.bitcast(v, bytes_) for v in (first, second))])
        halves = ll.VectorType(I16, 2 * self.lanes)
        eight, low = (ll.Constant(halves, [n] * (2 * self.lanes)) for n in (8, 0xFF))
        first, second = (self.b.bitcast(v, halves) for v in (first, second))

        def even(of: Any) -> Any:
            return self.b.ashr(self.b.shl(of, eight), eight)

        if self.dtype == BOTH_SIGNED + DOT:
            pairs = (even(first), even(second)), (self.b.ashr(first, eight), self.b.ashr(second, eight))
        else:
            pairs = (
                (self.b.and_(first, low), even(second)),
                (self.b.lshr(first, eight), self.b.ashr(second, eight)),
            )
        for pair in pairs:
            z = self.b.add(self.pair_products(*(self.b.bitcast(v, self.type) for v in pair)), z)
        return z

    def _quad_instruction(self) -> str | None:
        """The instruction that is `_quad_dot`, as LLVM names it for x86; None if the processor has none."""
        if self.dtype in (LEFT_UNSIGNED + DOT, RIGHT_UNSIGNED + DOT):
            return "llvm.x86.avx512.vpdpbusd"
        signed = self.dtype == BOTH_SIGNED + DOT and self.lanes in (4, 8)
        return "llvm.x86.avx2.vpdpbssd" if signed and "+avxvnniint8" in compiled_for().features else None

    def _quad_products(self, x: Any, y: Any) -> Any:
        """Sums of four products of unsigned and signed bytes as int32, on x86 only."""
        unsigned, signed = (x, y) if self.dtype == LEFT_UNSIGNED else (y, x)
        sums = self.b.bitcast(self.byte_products(unsigned, signed), self.type)
        return self.pair_products(sums, ll.Constant(self.type, [65537] * self.lanes))

    def byte_products(self, unsigned: Any, signed: Any) -> Any:
        """Sums of two products of bytes as int16, which saturate, on x86 only."""
        name = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}[self.lanes]
        narrow, wide = ll.VectorType(I8, 4 * self.lanes), ll.VectorType(I16, 2 * self.lanes)
        function = self._function(f"llvm.x86.{name}", wide, [narrow, narrow])
        return self.b.call(function, [self.b.bitcast(v, narrow) for v in (unsigned, signed)])

    def absolute(self, x: Any) -> Any:
        """Magnitudes of floats."""
        return self.b.call(self._function(f"llvm.fabs.{self.suffix}", self.type, [self.type]), [x])

    def rounded(self, x: Any) -> Any:
        """The nearest whole numbers as floats, the even one of two."""
        return self.b.call(self._function(f"llvm.roundeven.{self.suffix}", self.type, [self.type]), [x])

    def maximum(self, x: Any, y: Any) -> Any:
        """The larger of two floats, NaN if either is."""
        function = self._function(f"llvm.maximum.{self.suffix}", self.type, [self.type] * 2)
        return self.b.call(function, [x, y], fastmath=("nsz",))

    def largest(self, x: Any) -> Any:
        """The largest float of a vector, NaN if any is."""
        function = self._function(f"llvm.vector.reduce.fmaximum.{self.suffix}", self.element, [self.type])
        return self.b.call(function, [x], fastmath=("nsz",))

    def sum_of(self, x: Any) -> Any:
        """The sum of a vector of int32."""
        function = self._function(f"llvm.vector.reduce.add.v{self.lanes}i32", I32, [x.type])
        return self.b.call(function, [x])

    def clamp(self, x: Any, low: Any, high: Any) -> Any:
        """NaN stays NaN."""
        x = self.b.select(self.b.fcmp_ordered("<", x, low), low, x)
        return self.b.select(self.b.fcmp_ordered(">", x, high), high, x)

    def below(self, bound: Any, offset: int = 0, lanes: int = 0, divide: int = 1) -> Any:
        """Mask of the lanes whose number (divided, plus offset) is below `bound`, which fits 31 bits."""
        lanes = lanes or self.lanes
        kind = ll.VectorType(I32, lanes)
        undefined = ll.Constant(kind, ll.Undefined)
        first = self.b.insert_element(undefined, self.b.trunc(bound, I32), ll.Constant(I32, 0))
        spread = self.b.shuffle_vector(first, undefined, ll.Constant(kind, [0] * lanes))
        return self.b.icmp_signed(
            "<", ll.Constant(kind, [i // divide + offset for i in range(lanes)]), spread
        )

    def masked_load(self, pointer: Any, mask: Any, lanes: int = 0) -> Any:
        """Zero where the mask is off; nothing is read there."""
        lanes = lanes or self.lanes
        if memory.is_half(pointer):
            bits = self._masked(memory.bits_address(self.b, pointer, lanes), mask, 2, f"v{lanes}i16")
            return memory.widened(self.b, bits, pointer)
        address = self.b.bitcast(pointer, ll.VectorType(self.element, lanes).as_pointer())
        return self._masked(address, mask, self.nbytes, self.suffix.replace(f"v{self.lanes}", f"v{lanes}", 1))

    def _masked(self, address: Any, mask: Any, align: int, suffix: str) -> Any:
        kind = address.type.pointee
        function = self._function(f"llvm.masked.load.{suffix}.p0", kind, [address.type, I32, mask.type, kind])
        zero = ll.Constant(kind, [0 if isinstance(kind.element, ll.IntType) else 0.0] * kind.count)
        return self.b.call(function, [address, ll.Constant(I32, align), mask, zero])

    def load_part(self, pointer: Any, count: int) -> Any:
        """A vector whose first `count` elements are read, the others zero."""
        if count == self.lanes:
            return self.load(pointer)
        mask = ll.Constant(ll.VectorType(I1, self.lanes), [i < count for i in range(self.lanes)])
        return self.masked_load(pointer, mask)

    def store_part(self, value: Any, pointer: Any, count: int) -> None:
        """The first `count` elements of a vector, in pieces of powers of two: masked stores are slow."""
        done = 0
        for size in (2**i for i in reversed(range(count.bit_length()))):
            if not count & size:
                continue
            if size == self.lanes:
                self.store(value, pointer)
            elif size == 1:
                element = self.b.extract_element(value, ll.Constant(I32, done))
                self._store_one(element, self.at(pointer, done))
            else:
                places = ll.Constant(ll.VectorType(I32, size), list(range(done, done + size)))
                self.store(self.b.shuffle_vector(value, value, places), self.at(pointer, done))
            done += size

    def _store_one(self, element: Any, pointer: Any) -> None:
        if memory.is_half(pointer):
            memory.store(self.b, element, pointer)
        else:
            self.b.store(element, pointer, align=self.nbytes)
