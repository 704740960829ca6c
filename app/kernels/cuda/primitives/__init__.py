"""The names that a kernel may use, as numba intrinsics: PTX and LLVM IR.

`tests/kernels/cuda/twins.py` has the same names in plain Python for the simulator. bfloat16 and float16
travel as uint16, pairs of them as uint32 (the first in the low half). Pointers are `CPointer`s: one
parameter each and no code for negative indexes; (pointer, index) pairs count elements of the pointer's
type. A vector access must be aligned to its own size.
Index arithmetic of numba is 64 bits wide: write `uint32(...)` around what is divided, shifted or kept.

Importing this module imports numba's CUDA target (seconds): only the compiler does.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.typing import signature

from app.kernels.cuda.primitives.definition import (
    F32,
    I32,
    I64,
    LLVM,
    NAMES,
    SCALARS,
    VOID,
    assembly,
    call,
    element_address,
    primitive,
    shared_address,
    type_of,
)

__all__ = ["NAMES", "type_of"]


def _special(builder: Any, name: str, returns: Any = I32) -> Any:
    """Result of an NVVM function without parameters: a special register, a barrier."""
    function = ir.FunctionType(returns, [])
    return builder.call(cgutils.get_or_insert_function(builder.module, function, f"llvm.nvvm.{name}"), [])


def register(name: str, register: str) -> None:
    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        return _special(builder, f"read.ptx.sreg.{register}")

    primitive(name, "u", "", lower)


# --- where a thread is ----------------------------------------------------------------------------
register("thread", "tid.x")
for _axis in "xyz":
    register(f"block_{_axis}", f"ctaid.{_axis}")
    register(f"grid_{_axis}", f"nctaid.{_axis}")


def _lane(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return builder.and_(_special(builder, "read.ptx.sreg.tid.x"), ir.Constant(I32, 31))


def _warp(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return builder.lshr(_special(builder, "read.ptx.sreg.tid.x"), ir.Constant(I32, 5))


primitive("lane", "u", "", _lane)  # thread % 32
primitive("warp", "u", "", _warp)  # thread // 32

# --- barriers, shuffles, atomics ------------------------------------------------------------------


def _barrier(context: Any, builder: Any, kinds: Any, values: Any) -> None:
    _special(builder, "barrier0", VOID)


primitive("sync", "v", "", _barrier)
assembly("sync_warp", "v", "", "bar.warp.sync 0xffffffff;", effect=True)
# Tells that all lanes of a warp are here; belongs at the end of a loop's body. For sm_80 the compiler does
# not see that lanes are together after a turn: it copies what lies between the shuffles of the loop, for
# lanes that run apart, which costs up to a hundred registers. An instruction that only whole warps may run
# proves it. Its result is not read, so that nothing is left of it.
assembly(
    "converged",
    "v",
    "",
    "{ .reg .b32 t; mov.b32 t, 0; movmatrix.sync.aligned.m8n8.trans.b16 t, t; }",
    effect=True,
)
for _kind in "fi":
    _word = {"f": "f32", "i": "i32"}[_kind]
    _shuffle = "shfl.sync.{} $0, $1, $2, {}, 0xffffffff;"
    assembly(f"shfl_xor_{_word}", _kind, f"{_kind} u", _shuffle.format("bfly.b32", 31), effect=True)
    assembly(f"shfl_{_word}", _kind, f"{_kind} u", _shuffle.format("idx.b32", 31), effect=True)
    assembly(f"shfl_up_{_word}", _kind, f"{_kind} u", _shuffle.format("up.b32", 0), effect=True)
    assembly(f"shfl_down_{_word}", _kind, f"{_kind} u", _shuffle.format("down.b32", 31), effect=True)
assembly(
    "ballot",  # bit i: whether lane i's number is not 0
    "u",
    "i",
    "{ .reg .pred p; setp.ne.s32 p, $1, 0; vote.sync.ballot.b32 $0, p, 0xffffffff; }",
    effect=True,
)
assembly("atomic_add_f32", "f", "p u f", "atom.global.add.f32 $0, [$1], $2;", space="g")
assembly("atomic_add_i32", "i", "p u i", "atom.global.add.s32 $0, [$1], $2;", space="g")


# --- shared memory: one dynamic block, addressed by byte offset --------------------------------------
def _window(element: str) -> None:
    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        name = "stowplan_shared"
        if name in builder.module.globals:
            memory = builder.module.globals[name]
        else:
            memory = ir.GlobalVariable(builder.module, ir.ArrayType(ir.IntType(8), 0), name, 3)
            memory.align = 1024  # that of what warpgroups multiply
            memory.linkage = "external"
        base = builder.gep(memory, [ir.Constant(I32, 0), values[0]])
        generic = builder.addrspacecast(base, ir.PointerType(ir.IntType(8)), "generic")
        return builder.bitcast(generic, context.get_data_type(types.CPointer(SCALARS[element])))

    short = {"float32": "f32", "uint16": "u16", "uint32": "u32", "int32": "i32", "uint8": "u8"}[element]
    primitive(f"shared_{short}", f"p:{element}", "u", lower)


for _element in ("float32", "uint16", "uint32", "int32", "uint8"):
    _window(_element)


# --- pointers and vector accesses, for global and shared memory alike -------------------------------
def _define_advance() -> None:
    @intrinsic
    def advance(typingctx: Any, pointer: Any, elements: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, values: Any) -> Any:
            return builder.gep(values[0], [values[1]])

        return signature(pointer, pointer, types.int64), generate

    NAMES["advance"] = advance  # pointer + elements, 64 bits wide


_define_advance()


def _vector(letter: str, count: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    kind = LLVM[letter]
    vector = ir.VectorType(kind, count) if count > 1 else kind

    def at(builder: Any, kinds: Any, values: Any) -> Any:
        pointer = element_address(builder, kinds[0], values[0], values[1])
        return builder.bitcast(pointer, ir.PointerType(vector))

    def load(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        value = builder.load(at(builder, kinds, values), align=4 * count)
        if count == 1:
            return value
        return [builder.extract_element(value, ir.Constant(I32, i)) for i in range(count)]

    def store(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        value = values[2] if count == 1 else ir.Constant(vector, ir.Undefined)
        if count > 1:
            for i in range(count):
                value = builder.insert_element(value, values[2 + i], ir.Constant(I32, i))
        builder.store(value, at(builder, kinds, values), align=4 * count)

    return load, store


# ld_f32x4(p, i) -> 4 floats; ld_u32x4 / x2 / x1 -> words: of 8, 4 or 2 elements of 16 bits, say.
for _name, _letter, _count in (
    ("f32x4", "f", 4),
    ("f32x2", "f", 2),
    ("u32x4", "u", 4),
    ("u32x2", "u", 2),
    ("u32x1", "u", 1),
):
    _load, _store = _vector(_letter, _count)
    _tuple = f"{_letter}{_count}" if _count > 1 else _letter
    primitive(f"ld_{_name}", _tuple, "p u", _load)
    primitive(f"st_{_name}", "v", f"p u {' '.join(_letter * _count)}", _store)

# The same from shared memory with addresses of 32 bits, whose constant parts the instruction takes.
assembly("lds_f32x4", "f4", "p u", "ld.shared.v4.f32 {$0,$1,$2,$3}, [$4];", space="s")
assembly("lds_u32", "u", "p u", "ld.shared.b32 $0, [$1];", space="s")
assembly("lds_f32x2", "f2", "p u", "ld.shared.v2.f32 {$0,$1}, [$2];", space="s")

# --- asynchronous copies: to shared, from global, `nbytes` of 16 (or 4), the rest zeros ---------------
assembly("cp_async16", "v", "p u p u i", "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;", space="sg")
assembly(
    "cp_async16_if",  # 16 bytes, or zeros where the last argument is 0: far fewer instructions than the above
    "v",
    "p u p u i",
    "{ .reg .pred p; setp.eq.s32 p, $2, 0; cp.async.cg.shared.global.L2::128B [$0], [$1], 16, p; }",
    space="sg",
)
assembly("cp_async4", "v", "p u p u i", "cp.async.ca.shared.global [$0], [$1], 4, $2;", space="sg")
assembly("cp_commit", "v", "", "cp.async.commit_group;", effect=True)
assembly("cp_wait", "v", "n", "cp.async.wait_group $0;", effect=True)  # until so many groups are under way

# --- tensor cores -------------------------------------------------------------------------------------
assembly(
    "ldmatrix_x4", "u4", "p u", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];", space="s"
)
assembly(
    "ldmatrix_x4_trans",
    "u4",
    "p u",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];",
    space="s",
)


def _mma_x2(text: str) -> Callable[..., Any]:
    constraints = ",".join(["=f"] * 4 + ["f"] * 4 + ["r"] * 6)

    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        c, a, b = ([builder.extract_value(v, i) for i in range(n)] for v, n in zip(values, (8, 4, 4)))
        out = []
        for i in range(2):
            operands = [*c[4 * i : 4 * i + 4], *a, *b[2 * i : 2 * i + 2]]
            kind = ir.LiteralStructType([F32] * 4)
            value = call(builder, kind, text, constraints, operands, effect=False)
            out += [builder.extract_value(value, j) for j in range(4)]
        return out

    return lower


for _kind, _shape in (
    ("bf16", "m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("f16", "m16n8k16.row.col.f32.f16.f16.f32"),
    ("tf32", "m16n8k8.row.col.f32.tf32.tf32.f32"),
):
    _text = f"mma.sync.aligned.{_shape} {{$0,$1,$2,$3}}, {{$8,$9,$10,$11}}, {{$12,$13}}, {{$4,$5,$6,$7}};"
    assembly(f"mma_{_kind}", "f4", "f4 u4 u2", _text)  # (c, a, b) -> c + a b
    # Two neighbouring tiles with the same a: one statement, and b as `ldmatrix_x4` gives it.
    primitive(f"mma_{_kind}_x2", "f8", "f8 u4 u4", _mma_x2(_text))


# Warpgroups: four warps multiply 64 rows of a by n rows of b, both in shared memory, while they go on. Rows
# are 128 bytes of the reduction whose 16-byte chunks are exchanged (chunk ^ row % 8); both operands begin at
# multiples of 1,024 bytes. One statement multiplies whole rows. Source: PTX ISA 9.0, "Asynchronous Warpgroup
# Level Matrix Multiply-Accumulate Instructions" and "Matrix Descriptor Format".
_SWIZZLED, _NEXT_ROWS = (
    1 << 62,
    64 << 32,
)  # chunks exchanged in 128 bytes; eight rows are 64 chunks of 16 bytes
_STEPS, _STEP = 4, 2  # instructions for a row, each of 32 bytes: chunks of 16


def _descriptor(builder: Any, kind: Any, pointer: Any, index: Any) -> Any:
    """Description of rows in shared memory that begin at an element."""
    chunk = builder.lshr(shared_address(builder, kind, pointer, index), ir.Constant(I32, 4))
    return builder.or_(builder.zext(chunk, I64), ir.Constant(I64, _SWIZZLED | _NEXT_ROWS | 1 << 16))


def _tied(builder: Any, text: str, sums: Any, given: Sequence[Any] = ()) -> Any:
    """A text of PTX whose results take the registers of as many sums; `given` are 64 bits wide."""
    count = sums.type.count
    ties = [*["=f"] * count, *map(str, range(count)), *["l"] * len(given), "~{memory}"]
    values = [*(builder.extract_value(sums, i) for i in range(count)), *given]
    kind = ir.LiteralStructType([F32] * count)
    found = call(builder, kind, text, ",".join(ties), values, effect=True)
    return [builder.extract_value(found, i) for i in range(count)]


def _warpgroup(kind: str, n: int) -> None:
    count = n // 2  # sums of a thread

    def multiply(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        pairs = ((kinds[i], values[i], values[i + 1]) for i in (1, 3))
        rows = [_descriptor(builder, *pair) for pair in pairs]
        sums = ", ".join(f"${i}" for i in range(count))
        lines = ["{ .reg .b64 a, b;", "wgmma.fence.sync.aligned;"]
        for step in range(_STEPS):
            lines += [f"add.s64 {name}, ${2 * count + i}, {_STEP * step};" for i, name in enumerate("ab")]
            shape = f"m64n{n}k16.f32.{kind}.{kind}"
            lines.append(f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, a, b, 1, 1, 1, 0, 0;")
        lines.append("wgmma.commit_group.sync.aligned; }")
        return _tied(builder, " ".join(lines), values[0], rows)

    primitive(f"wgmma_{kind}_n{n}", f"f{count}", f"f{count} p u p u", multiply)


def _all_done(n: int) -> None:
    def wait(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        return _tied(builder, "wgmma.wait_group.sync.aligned 0;", values[0])

    primitive(f"wgmma_sums_n{n}", f"f{n // 2}", f"f{n // 2}", wait)


for _n in (64, 128, 256):
    _all_done(_n)  # the sums, when nothing is under way any more
    for _kind in ("bf16", "f16"):
        _warpgroup(_kind, _n)  # sums + a b, which nobody may read before
assembly(
    "wgmma_wait", "v", "n", "wgmma.wait_group.sync.aligned $0;", effect=True
)  # until so many are under way
# Fence of what this thread has written to shared memory: warpgroups multiply it after a barrier.
assembly("fence_shared", "v", "", "fence.proxy.async.shared::cta;", effect=True)


def _rounded(builder: Any, value: Any) -> Any:
    return call(builder, I32, "cvt.rna.tf32.f32 $0, $1;", "=r,f", [value], effect=False)


def _tf32(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    words = [builder.extract_value(values[0], i) for i in range(4)]
    return [_rounded(builder, builder.bitcast(word, F32)) for word in words]


def _tf32_high(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    out = []
    for i in range(4):
        word = builder.extract_value(values[0], i)
        magnitude = builder.and_(word, I32(0x7FFFFFFF))
        one = builder.or_(builder.and_(word, I32(0x80000000)), I32(0x3F800000))
        rounds = builder.icmp_unsigned("<=", magnitude, I32(0x7F7FEFFF))
        out.append(builder.select(rounds, _rounded(builder, builder.bitcast(word, F32)), one))
    return out


def _tf32_rest(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    pairs = [[builder.bitcast(builder.extract_value(v, i), F32) for v in values] for i in range(4)]
    rest = [builder.bitcast(builder.fsub(whole, high), I32) for whole, high in pairs]
    return [builder.and_(word, I32(0xFFFFE000)) for word in rest]


primitive("tf32_x4", "u4", "u4", _tf32)  # float32 bits, rounded
# The parts of float32 bits that 3xtf32 multiplies: rounded, and what that dropped, cut off. An infinity x
# is the parts 1 and x (with its sign), so that in x_low y_high + x_high y_low + x_high y_high no infinity
# meets a zero that y is not; so is what would round to an infinity.
primitive("tf32_high_x4", "u4", "u4", _tf32_high)
primitive("tf32_rest_x4", "u4", "u4 u4", _tf32_rest)


def _sum8(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return [builder.fadd(*(builder.extract_value(v, i) for v in values)) for i in range(8)]


primitive("add_x8", "f8", "f8 f8", _sum8)
assembly("f32_tf32", "u", "f", "cvt.rna.tf32.f32 $0, $1;")


def _cast(kind: Any) -> Callable[..., Any]:
    return lambda _context, builder, _kinds, values: builder.bitcast(values[0], kind)


primitive("bits_f32", "f", "u", _cast(F32))  # the float of these bits
primitive("f32_bits", "u", "f", _cast(I32))

# --- 16-bit floats ------------------------------------------------------------------------------------
assembly("f32_bf16x2", "u", "f f", "cvt.rn.bf16x2.f32 $0, $2, $1;")
assembly("f32_f16x2", "u", "f f", "cvt.rn.f16x2.f32 $0, $2, $1;")
assembly("f32_bf16", "h", "f", "cvt.rn.bf16.f32 $0, $1;")
assembly("f32_f16", "h", "f", "cvt.rn.f16.f32 $0, $1;")


def _widened(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    return builder.bitcast(builder.shl(builder.zext(values[0], I32), ir.Constant(I32, 16)), F32)


primitive("bf16_f32", "f", "h", _widened)
assembly("f16_f32", "f", "h", "cvt.f32.f16 $0, $1;")


def _halves(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    low = builder.shl(values[0], ir.Constant(I32, 16))
    high = builder.and_(values[0], ir.Constant(I32, 0xFFFF0000))
    return [builder.bitcast(low, F32), builder.bitcast(high, F32)]


primitive("bf16x2_f32", "f2", "u", _halves)
assembly(
    "f16x2_f32",
    "f2",
    "u",
    "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
)

# --- arithmetic ---------------------------------------------------------------------------------------
# The same number, of which the compiler knows nothing: it does not compute it again inside a loop.
assembly("opaque", "u", "u", "mov.b32 $0, $1;")
assembly("maximum", "f", "f f", "max.NaN.f32 $0, $1, $2;")  # NaN if either is
assembly("minimum", "f", "f f", "min.NaN.f32 $0, $1, $2;")
assembly("fma", "f", "f f f", "fma.rn.f32 $0, $1, $2, $3;")
assembly("exp2_approx", "f", "f", "ex2.approx.ftz.f32 $0, $1;")
assembly("log2_approx", "f", "f", "lg2.approx.f32 $0, $1;")
assembly("rcp_approx", "f", "f", "rcp.approx.ftz.f32 $0, $1;")
assembly("rsqrt_approx", "f", "f", "rsqrt.approx.f32 $0, $1;")
assembly("tanh_approx", "f", "f", "tanh.approx.f32 $0, $1;")  # relative error 2^-11
assembly("floor_f32", "f", "f", "cvt.rmi.f32.f32 $0, $1;")
assembly("ceil_f32", "f", "f", "cvt.rpi.f32.f32 $0, $1;")
assembly("round_f32", "f", "f", "cvt.rni.f32.f32 $0, $1;")  # half to even
assembly("trunc_f32", "f", "f", "cvt.rzi.f32.f32 $0, $1;")


def _outer(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    parts = [builder.extract_value(values[0], i) for i in range(16)]
    b = [builder.extract_value(values[5], j) for j in range(4)]
    return [builder.fma(values[1 + i], b[j], parts[4 * i + j]) for i in range(4) for j in range(4)]


# c[4i + j] += a_i b[j] in one statement: numba's compile time goes by statements.
primitive("outer_4x4", "f16", "f16 f f f f f4", _outer)


def _dot(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
    a, b = ([builder.extract_value(values[k], i) for i in range(4)] for k in (1, 2))
    return reduce(lambda s, i: builder.fma(a[i], b[i], s), range(4), values[0])


primitive("dot_4", "f", "f f4 f4", _dot)  # s + a . b


def _warp_reduction(name: str, combine: Callable[[Any, Any, Any], Any]) -> None:
    def lower(context: Any, builder: Any, kinds: Any, values: Any) -> Any:
        value = values[0]
        for step in (16, 8, 4, 2, 1):
            other = call(
                builder,
                F32,
                f"shfl.sync.bfly.b32 $0, $1, {step}, 31, 0xffffffff;",
                "=f,f,~{memory}",
                [value],
                effect=True,
            )
            value = combine(builder, value, other)
        return value

    primitive(name, "f", "f", lower)


_warp_reduction("warp_sum_f32", lambda builder, a, b: builder.fadd(a, b))
_warp_reduction(
    "warp_max_f32",
    lambda builder, a, b: call(builder, F32, "max.NaN.f32 $0, $1, $2;", "=f,f,f", [a, b], effect=False),
)
