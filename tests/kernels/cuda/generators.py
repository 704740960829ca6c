"""Launches of every generator of kernels for GPUs, and what their machine code must be.

`EVERYDAY` runs every line that makes kernels, and has what is hardest on registers; the tests compile it.
`REST` are the other tiles, widths, sizes and types that are offered: `make cuda-kernels` compiles both, and
the kernels of whole networks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from app.engine.backends.cuda.dispatch import offered
from app.kernels.cuda.attention import attention
from app.kernels.cuda.attention_decode import attention_decode
from app.kernels.cuda.attention_exact import attention_exact
from app.kernels.cuda.attention_mma import DEPTHS, MASKED
from app.kernels.cuda.attention_problem import Attention, Heads, Mask
from app.kernels.cuda.conv import Conv, conv
from app.kernels.cuda.conv_transpose import ConvTranspose, conv_transpose
from app.kernels.cuda.elementwise import copy, elementwise
from app.kernels.cuda.epilogue import ACTIVATIONS, Epilogue
from app.kernels.cuda.functions import unsupported
from app.kernels.cuda.gather import gather_elements, gather_nd, scatter_elements, scatter_nd
from app.kernels.cuda.gemm import dtype_of, gemm
from app.kernels.cuda.gemv import gemv
from app.kernels.cuda.geometry import NBYTES, Strided, contiguous
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.normalize import group_norm, row_norm
from app.kernels.cuda.product import Product
from app.kernels.cuda.recurrent import Recurrent, recurrent
from app.kernels.cuda.reduce import REDUCTIONS, argument, reduce
from app.kernels.cuda.resample import blend, lookup
from app.kernels.cuda.scan import cumulative_sum, top_k
from app.kernels.cuda.softmax import softmax
from app.kernels.cuda.tiles import SIMT_TILES, TENSOR_TILES, WARPGROUP_TILES
from app.kernels.cuda.windows import Axis, depthwise, pool
from app.kernels.expressions import EXPRESSIONS, result_dtypes, template
from tests.kernels.cuda.values import transpose

PRECISIONS = ("bf16", "fp16", "tf32", "3xtf32", "f32")
FLOATS = ("float32", "float16", "bfloat16")
HALVES = ("float16", "bfloat16")
ASYNCHRONOUS = "LDGSTS.E.BYPASS"
# Instructions that products consist of; 16-bit operands in rows come to the tensor cores by LDSM.
TENSOR = ("HMMA", ASYNCHRONOUS, "LDSM.16.M88.4")
WARPGROUP = ("HGMMA", ASYNCHRONOUS)
EXACT = ("FFMA", ASYNCHRONOUS)
WIDE = ("LDG.E.128", "STG.E.128")
FUNCTIONS = ("CALL.ABS",)  # of the library: exact divisions and the like. CALL.REL is a jump out of a loop
WAITING = ("MEMBAR.ALL.GPU",)  # for all memory, where shared memory is meant
# Jumps to a second copy of shuffles, for lanes that run apart, and what is left of `converged()`.
COPIES = ("BRA.DIV", "MOVM")
ANGLES_STACK = 32  # bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A launch, and what is claimed of it.

    Attributes:
        name: unique.
        made: the launches.
        warps: of a multiprocessor that must fit its registers, by blocks that are whole.
        expected: beginnings of instructions that the kernels must have between them.
        stack: bytes of a thread that are no spill: the library reduces large angles in an array.
        refused: beginnings of instructions that no kernel may have.
    """

    name: str
    made: Callable[[], Launches]
    warps: int = 32
    expected: tuple[str, ...] = ()
    stack: int = 0
    refused: tuple[str, ...] = ()


# Blocks of products on one multiprocessor: of 16 bits and of exact float32 those that the tiles name. Conversions
# to tf32 take registers of the other blocks; what is left is this.
CONVERTED = {"128x256": 1, "128x128w4": 2, "128x128": 1, "128x64": 2, "64x64": 2, "32x64": 3}


ISA = ("sm_90",)


def product_warps(precision: str, tile: str) -> int:
    """Warps of a multiprocessor while a product runs."""
    shape = SIMT_TILES[tile] if precision == "f32" else {**TENSOR_TILES, **WARPGROUP_TILES}[tile]
    blocks = CONVERTED[tile] if precision in ("tf32", "3xtf32") else shape.minimum_blocks
    return blocks * shape.threads // 32


SQUARE = Product(512, 512, 512, 512, 512, 512, 512)


def _ending(precision: str, *activation: str | float) -> Epilogue:
    """All that can follow a sum."""
    return Epilogue(dtype_of(precision), bias=True, residual="before", activation=activation or ("relu",))


def _image(channels: int, **more: int) -> Conv:
    return Conv(8, 56, 56, channels, 512, (3, 3), (1, 1), (1, 1, 1, 1), **more)


# Name: (channels, or elements of the reduction, launches of them, a precision and a tile).
PRODUCTS: dict[str, tuple[int, Callable[[int, str, str], Launches]]] = {
    "gemm": (512, lambda k, p, tile: gemm(replace(SQUARE, k=k), p, _ending(p), tile)),
    "gemm ragged": (509, lambda k, p, tile: gemm(replace(SQUARE, k=k), p, _ending(p), tile)),
    "gemm shared": (512, lambda k, p, tile: gemm(replace(SQUARE, k=k), p, _ending(p), tile, 4)),
    "gemm odd": (512, lambda k, p, tile: gemm(replace(SQUARE, n=511, y_row=511), p, _ending(p), tile)),
    "gemm columns": (512, lambda k, p, tile: gemm(SQUARE, p, _ending(p), tile, columns=True)),
    "gemm columns shared": (512, lambda k, p, tile: gemm(SQUARE, p, _ending(p), tile, 4, columns=True)),
    "gemm columns ragged": (
        509,
        lambda k, p, tile: gemm(replace(SQUARE, k=k), p, _ending(p), tile, columns=True),
    ),
    "conv": (64, lambda c, p, tile: conv(_image(c), p, _ending(p), tile)),
    "conv ragged": (61, lambda c, p, tile: conv(_image(c, x_pixel=64), p, _ending(p), tile)),
    "conv shared": (64, lambda c, p, tile: conv(_image(c), p, _ending(p), tile, 4)),
    "conv copied": (61, lambda c, p, tile: conv(_image(c), p, _ending(p), tile)),
    "conv of groups": (
        128,
        lambda c, p, tile: conv(replace(_image(c), groups=2), p, _ending(p), tile),
    ),
    "conv transpose": (64, lambda c, p, tile: conv_transpose(
        ConvTranspose(8, 28, 28, c, 512, (2, 2), (2, 2)), p, Epilogue(dtype_of(p), bias=True), tile
    )),
    "conv transpose ragged": (61, lambda c, p, tile: conv_transpose(
        ConvTranspose(8, 28, 28, c, 512, (3, 3), (2, 2), x_pixel=64), p, Epilogue(dtype_of(p), bias=True), tile
    )),
}  # fmt: skip


def _product(name: str, precision: str, tile: str) -> Row:
    depth, made = PRODUCTS[name]
    expected = EXACT if precision == "f32" else WARPGROUP if tile in WARPGROUP_TILES else TENSOR
    if "columns" in name and precision in ("tf32", "3xtf32"):
        expected = (*TENSOR, "LDS")  # elements one by one: no instruction transposes 32 bits
    warps = product_warps(precision, tile)
    label = f"{name} {precision} {tile}"
    return Row(label, lambda: made(depth, precision, tile), warps, expected, refused=(*FUNCTIONS, *WAITING))


def _products() -> Iterator[Row]:
    """Every kind of product on every tile that is offered."""
    for name, (depth, _) in PRODUCTS.items():
        for precision in PRECISIONS:
            if "columns" in name and precision == "f32":
                continue  # it always is
            for tile in offered(precision, depth, () if "columns" in name else ISA):
                yield _product(name, precision, tile)


def _activation(name: str) -> tuple[str | float, ...]:
    return (name, *(0.25, 0.75)[: ACTIVATIONS[name][0]])


def _endings() -> Iterator[Row]:
    """Every activation behind the largest tile of every precision, and of a shared reduction."""
    for precision in PRECISIONS:
        largest = next(iter(offered(precision, 512)))
        for name in filter(None, ACTIVATIONS):
            after = _ending(precision, *_activation(name))
            for splits in (1, 2):
                yield Row(
                    f"gemm {precision} {largest} {name}{' shared' * (splits > 1)}",
                    lambda p=precision, a=after, t=largest, s=splits: gemm(SQUARE, p, a, t, s),
                    product_warps(precision, largest),
                )


def _few_rows(dtype: str, m: int, n: int, k: int = 512) -> Row:
    after = Epilogue(dtype, bias=True, residual="before", activation=("gelu",))
    product = Product(m, n, k, 512, 512, n, n)
    made = lambda: gemv(product, dtype, after, 16 * 132)  # noqa: E731
    warps = 20 if dtype in HALVES else 16
    return Row(f"gemv {dtype} {m} {n} {k}", made, warps, ("LDG.E.128", "FFMA"), refused=(*FUNCTIONS, *COPIES))


def _heads(heads: int, rows: int, width: int) -> Heads:
    return Heads(heads * rows * width, rows * width, width)


def _attention(
    dtype: str, rows: int, keys: int, depth: int, *, heads: int = 12, mask: str = "", **more: object
) -> Attention:
    q, k = (_heads(heads, n, depth) for n in (rows, keys))
    given = Mask(mask, (rows * keys, 0, keys, 1), keys) if mask else None
    return Attention(
        1, heads, 12, rows, keys, depth, depth, dtype, q, k, k, q, depth**-0.5, given,
        causal=rows > 1 and not mask, **more,  # type: ignore[arg-type]
    )  # fmt: skip


FLASH = ("HMMA", "LDSM.16.M88.4", "LDSM.16.MT88.4", ASYNCHRONOUS)


def _flash(dtype: str, depth: int, mask: str = "", **more: object) -> Row:
    """Blocks of four warps, whose queries, scores and sums lie in registers."""
    label = " ".join(("attention", dtype, str(depth), *filter(None, (mask,)), *more))
    warps = 12 if depth <= 64 and not mask and not more else 8
    a = _attention(dtype, 128, 128, depth, mask=mask, **more)
    return Row(label, lambda: attention(a), warps, FLASH)


def _exact(dtype: str, depth: int, mask: str = "", **more: object) -> Row:
    label = " ".join(("attention exact", dtype, str(depth), *filter(None, (mask,)), *more))
    a = _attention(dtype, 128, 128, depth, mask=mask, **more)
    return Row(label, lambda: attention_exact(a), 8, ("FFMA",))


# By query rows of a block, whose queries and sums lie in registers.
DECODE_WARPS = {1: 24, 2: 16, 4: 12, 8: 8}


def _decode(dtype: str, depth: int, rows: int, keys: int = 4096, mask: str = "", **more: object) -> Row:
    label = " ".join(("decode", dtype, str(depth), str(rows), str(keys), *filter(None, (mask,)), *more))
    a = _attention(dtype, 1, keys, depth, heads=12 * rows, mask=mask, **more)
    return Row(label, lambda: attention_decode(a), DECODE_WARPS[rows], ("LDG.E.128",), refused=COPIES)


def _window(taps: int, stride: int = 1, size: int = 56, dilation: int = 1) -> Axis:
    before = dilation * (taps // 2)
    return Axis(size, taps, -(-size // stride), stride, dilation, before, before)


def _depthwise(dtype: str, taps: int, stride: int = 1, batch: int = 64, **more: object) -> Row:
    axis = _window(taps, stride)
    label = " ".join(("depthwise", dtype, str(taps), str(stride), str(batch), *more))
    # Threads hold the weights of a row of the window, up to 64 of them.
    wide = () if "multiplier" in more or 16 // NBYTES[dtype] * taps > 64 else WIDE
    return Row(label, lambda: depthwise(batch, 144, (axis, axis), dtype, **more), 16, wide)


def _pool(kind: str, dtype: str, taps: int, *, last: bool, **more: bool) -> Row:
    axis = _window(taps, 2)
    label = " ".join(("pool", kind, dtype, str(taps), "last" * last, *more)).replace("  ", " ")
    return Row(label, lambda: pool(kind, 8, 64, (axis, axis), dtype, last=last, **more), 32, WIDE * last)


def _chain(dtype: str, *operators: str) -> Row:
    """Functions, each of the one before, after a sum with a row that is broadcast."""
    rows, row = Strided(dtype, (768, 1)), Strided(dtype, (0, 1))
    recipe = (("Add", (0, 1), ()), *((op, (2 + i,), ()) for i, op in enumerate(operators)))
    made = lambda: elementwise(recipe, (128, 768), (rows, row), ((1 + len(recipe), rows),))  # noqa: E731
    return Row(f"chain {dtype} {' '.join(operators)}", made, 32, WIDE, stack=_stack(*operators))


def _stack(*operators: str) -> int:
    return ANGLES_STACK if {"Sin", "Cos", "Tan"} & set(operators) else 0


def _function(op: str, dtype: str) -> Row | None:
    """A kernel of one function, if there is one for the type."""
    text = template(op, dtype)
    if text is None:
        return None
    count = sum(f"{{{i}}}" in text for i in range(3))
    parameters: tuple[float | str, ...] = tuple(
        value for name, value in (("{p}", 1.0), ("{q}", 2.0), ("{r}", 3.0)) if name in text
    )
    if EXPRESSIONS[op].result == "parameter":
        parameters = (*parameters, "int8")
    recipe = ((op, tuple(range(count)), parameters),)
    operands = [Strided("bool" if op == "Where" and i == 0 else dtype, (768, 1)) for i in range(count)]
    if unsupported(recipe, [o.dtype for o in operands]):
        return None
    result = Strided(result_dtypes(recipe, [o.dtype for o in operands])[-1], (768, 1))
    made = lambda: elementwise(recipe, (128, 768), operands, ((count, result),))  # noqa: E731
    return Row(f"elementwise {dtype} {op}", made, 24, stack=_stack(op))


def _layer(cell: str, dtype: str = "float32", hidden: int = 256, **more: object) -> Row:
    wants = ("y", "y_h", "y_c")[: 2 + (cell == "LSTM")]
    layer = Recurrent(
        cell, 10, 4, hidden, 2, (4, 1), (8 * hidden, 4 * hidden, hidden), (4 * hidden, hidden), dtype,
        lengths=True, initial_h=True, initial_c=cell == "LSTM", peepholes=cell == "LSTM", clip=3.0, wants=wants,
        **more,  # type: ignore[arg-type]
    )  # fmt: skip
    label = " ".join((cell.lower(), dtype, str(hidden), *more))
    return Row(label, lambda: recurrent(layer), 32, ("LDG.E", "BAR.SYNC"))


def _rows_of(name: str, make: Callable[..., Launches], *given: object, **more: object) -> Row:
    """A row whose kernels are bound by memory."""
    told = " ".join(str(x).replace(" ", "") for x in (*given, *(f"{k}={v}" for k, v in more.items())))
    return Row(f"{name} {told}", lambda: make(*given, **more))


def _row_kernels(dtype: str) -> Iterator[Row]:
    """Softmax, norms, reductions: parts of a warp, blocks, rows that are read again, columns."""
    for n in (40, 768, 4096, 40_000):
        for row in (
            _rows_of("softmax", softmax, 128, n, 1, dtype),
            _rows_of("log_softmax", softmax, 128, n, 1, dtype, True),
            _rows_of("norm", row_norm, "layer_norm", 128, n, dtype, 1e-5, bias=True),
            _rows_of("norm", row_norm, "rms_norm", 128, n, dtype, 1e-5),
        ):
            yield replace(row, warps=20)  # of a row that lies in registers
        for name in REDUCTIONS:
            yield _rows_of("reduce", reduce, name, (128, n), (1,), dtype)
    for n in (9, 333):
        yield _rows_of("softmax", softmax, 8, n, 96, dtype)
        yield _rows_of("log_softmax", softmax, 8, n, 96, dtype, True)
        for name in REDUCTIONS:
            yield _rows_of("reduce", reduce, name, (8, n, 96), (1,), dtype)
    for groups, channels in ((8, 8), (64, 1)):
        yield _rows_of("group_norm", group_norm, 2, groups, channels, 3136, dtype, 1e-5)
    yield _rows_of("reduce", reduce, "mean", (4, 65_536), (1,), dtype)


def _cast(elements: int, source: str, target: str) -> Launches:
    return copy((elements,), Strided(source, (1,)), Strided(target, (1,)), "cast")


def _movement(dtype: str) -> Iterator[Row]:
    yield _rows_of("transpose", transpose, (8, 256, 196), (0, 2, 1), dtype)
    yield _rows_of("transpose", transpose, (8, 12, 64, 128), (2, 0, 3, 1), dtype)
    yield _rows_of("gather", gather_nd, 4, (1000,), 768, 128, dtype, "int64", shared=True)
    yield _rows_of("gather", gather_nd, 4, (1000,), 3, 128, dtype, "int32", shared=True)
    yield _rows_of("gather_nd", gather_nd, 2, (30, 40), 24, 17, dtype, "int64")
    yield _rows_of("gather_elements", gather_elements, (3, 40, 50), (3, 60, 50), 1, dtype, "int64")
    yield _rows_of("lookup", lookup, (2, 32, 32, 64), (2, 16, 16, 64), (1, 2), dtype)
    yield _rows_of("lookup", lookup, (2, 64, 32, 32), (2, 64, 16, 16), (2, 3), dtype)
    source = Strided(dtype, (4000, 100, 1), 2)
    yield _rows_of("copy", copy, (3, 40, 50), source, Strided(dtype, contiguous((3, 40, 50))))
    for reduction in (
        ("none", "add", "mul", "max", "min") if dtype in (*FLOATS, "int32", "int64") else ("none",)
    ):
        yield _rows_of(
            "scatter_elements", scatter_elements, (3, 20, 50), (3, 60, 50), 1, dtype, "int64", reduction
        )
        if reduction != "none":
            yield _rows_of("scatter_nd", scatter_nd, (30, 40), 24, 17, dtype, "int64", reduction)


def _ordered(dtype: str) -> Iterator[Row]:
    for inner in (1, 96):
        for flags in ({}, {"exclusive": True, "reverse": True}):
            yield _rows_of("cumulative_sum", cumulative_sum, 8, 1000, inner, dtype, **flags)
        for largest in (True, False):
            yield _rows_of("argument", argument, largest, 4, 50_257, inner, dtype, last=largest)
            yield _rows_of("top_k", top_k, 8, 1000, inner, 10, dtype, largest=largest)


def _images(dtype: str) -> Iterator[Row]:
    for taps in (2, 4, 8):  # linear, cubic, and linear that is made smaller
        for shape, sizes, axes in (
            ((2, 40, 40, 64), (2, 16, 16, 64), (1, 2)),
            ((2, 64, 40, 40), (2, 64, 16, 16), (2, 3)),
        ):
            moved = tuple((axis, taps) for axis in axes)
            row = _rows_of("blend", blend, shape, sizes, moved, dtype)
            yield replace(row, warps=24) if taps > 2 else row  # all that a line is made of is under way
    for taps in (1, 3, 5, 7, 9, 11, 31):
        for stride in (1, 2, 3):
            yield _depthwise(dtype, taps, stride)
    yield _depthwise(dtype, 3, residual=True)
    yield _depthwise(dtype, 5, 1, 1)
    yield _depthwise(dtype, 3, multiplier=2)
    yield _depthwise(dtype, 5, residual=True, after=(("Add", (0, 1), ()), ("Gelu", (2,), ())))
    for kind in ("max", "average"):
        for last in (True, False):
            yield _pool(kind, dtype, 3, last=last)
    yield _pool("average", dtype, 3, last=True, counts_padding=True)


def _every_attention() -> Iterator[Row]:
    for dtype in HALVES:
        for depth in DEPTHS:
            yield _flash(dtype, depth)
            yield _flash(dtype, depth, softcap=30.0, lengths=True)
            if depth <= MASKED:
                for mask in (dtype, "float32", "bool"):
                    yield _flash(dtype, depth, mask)
                yield _flash(dtype, depth, dtype, softcap=30.0, lengths=True)
    for dtype in FLOATS:
        for depth in range(8, 257, 8):
            yield _exact(dtype, depth)
            yield _exact(dtype, depth, "float32", softcap=30.0, lengths=True)
        for depth in (8, 16, 32, 64, 128, 256):
            if not 1 <= depth * (4 if dtype == "float32" else 2) // 16 <= 32:
                continue
            for rows in (1, 2, 4, 8):
                yield _decode(dtype, depth, rows)
                yield _decode(dtype, depth, rows, 64)
                yield _decode(dtype, depth, rows, 4096, dtype, softcap=30.0, lengths=True)


def _all() -> Iterator[Row]:
    yield from _products()
    yield from _endings()
    yield from _every_attention()
    for dtype in FLOATS:
        yield from _row_kernels(dtype)
        yield from _ordered(dtype)
        yield from _images(dtype)
        for m in range(1, 9):
            for n in (512, 65_536):
                for k in (512, 509):
                    yield _few_rows(dtype, m, n, k)
        for cell in ("LSTM", "GRU", "RNN"):
            for hidden in (20, 256, 1500):
                yield _layer(cell, dtype, hidden)
        yield _layer("GRU", dtype, resets_after=True)
        for target in (*FLOATS, "int8", "int64", "bool"):
            yield _rows_of("cast", _cast, 4096, dtype, target)
            yield _rows_of("cast", _cast, 4096, target, dtype)
    for dtype in ("int32", "int64"):
        yield from _ordered(dtype)
    for dtype in (*FLOATS, "int32", "int64", "uint8", "bool"):
        yield from _movement(dtype)
        yield from filter(None, (_function(op, dtype) for op in EXPRESSIONS))


def _everyday() -> Iterator[Row]:
    """Every line that makes kernels, and of each kind what takes most registers.

    The text for float16 differs from that for bfloat16 in the names of instructions only; that for 3xtf32 has all
    of that for tf32, so tf32 is here with the tiles that 3xtf32 has not. Every tile is here with whole vectors;
    a convolution takes as many registers up to three, and a reduction that ends within 16 bytes takes more only
    where elements are converted: of both the largest tile of a precision is here.
    """
    endings = {row.name: row for row in _endings()}
    for precision, activation in (("bf16", "gelu"), ("3xtf32", "silu"), ("f32", "sigmoid")):
        largest, *others = offered(precision, 512)
        yield endings[f"gemm {precision} {largest} {activation}"]
        for tile in others:
            yield _product("gemm", precision, tile)
        yield _product("gemm ragged", precision, next(iter(offered(precision, 509))))
        yield _product("conv", precision, largest)
    for tile in WARPGROUP_TILES:
        yield _product("gemm", "bf16", tile)
    yield _product("conv ragged", "fp16", "128x256wg")
    yield _product("conv shared", "bf16", "128x128wg")
    yield _product("gemm ragged", "3xtf32", "32x64")
    for name in ("gemm", "gemm ragged"):
        depth, _ = PRODUCTS[name]
        for tile in offered("tf32", depth):
            if tile not in offered("3xtf32", depth):
                yield _product(name, "tf32", tile)
    yield _product("conv ragged", "fp16", "64x64")
    yield _product("conv shared", "f32", "64x64")
    yield _product("gemm shared", "3xtf32", "64x64")
    yield _product("gemm odd", "bf16", "64x64")
    yield _product("gemm columns", "bf16", "128x256")
    yield _product("gemm columns", "3xtf32", "64x64")
    yield _product("conv copied", "bf16", "32x64")
    yield _product("conv of groups", "f32", "64x64")
    yield _product("conv transpose ragged", "3xtf32", "64x64")
    yield _few_rows("bfloat16", 8, 512)
    yield _few_rows("float32", 8, 512, 509)
    yield _few_rows("float32", 6, 512)  # left alone, it takes 136 registers
    yield _flash("bfloat16", 64)
    yield _flash("bfloat16", 128, "bfloat16", softcap=30.0, lengths=True)
    yield _flash("float16", 160, softcap=30.0, lengths=True)
    yield _exact("float32", 256, "float32", softcap=30.0, lengths=True)
    yield _decode("bfloat16", 64, 1)
    yield _decode("bfloat16", 128, 8, 64)
    yield _decode("float32", 128, 8, 4096, "float32", softcap=30.0, lengths=True)
    yield _chain("bfloat16", "Gelu")
    yield _chain("float32", "Sin", "Tanh", "Erf", "Mish")
    yield _rows_of("softmax", softmax, 128, 768, 1, "bfloat16")
    yield _rows_of("softmax", softmax, 128, 40_000, 1, "float32")
    yield _rows_of("log_softmax", softmax, 8, 333, 96, "bfloat16", True)
    rows = {row.name: row for row in _row_kernels("bfloat16")}
    yield rows["norm layer_norm 128 768 bfloat16 1e-05 bias=True"]
    yield rows["norm rms_norm 128 4096 bfloat16 1e-05"]
    yield _rows_of("group_norm", group_norm, 2, 8, 8, 3136, "bfloat16", 1e-5)
    yield _rows_of("reduce", reduce, "mean", (8, 49, 2048), (1,), "bfloat16")
    yield _rows_of("reduce", reduce, "l2", (4, 65_536), (1,), "float32")
    yield _rows_of("reduce", reduce, "mean", (8, 49, 2048), (1,), "int64")
    for inner in (1, 96):
        yield _rows_of("argument", argument, True, 4, 50_257, inner, "float32")
        sums = _rows_of(
            "cumulative_sum", cumulative_sum, 8, 1000, inner, "bfloat16", exclusive=True, reverse=True
        )
        yield replace(sums, refused=COPIES)
    yield _rows_of("top_k", top_k, 8, 1000, 1, 10, "bfloat16")
    yield _rows_of("transpose", transpose, (8, 256, 196), (0, 2, 1), "bfloat16")
    yield from (row for row in _movement("bfloat16") if row.name.split()[0] not in ("transpose", "lookup"))
    yield _rows_of("lookup", lookup, (2, 32, 32, 64), (2, 16, 16, 64), (1, 2), "bfloat16")
    for taps in (2, 4):
        yield _rows_of("blend", blend, (2, 40, 40, 64), (2, 16, 16, 64), ((1, taps), (2, taps)), "bfloat16")
    yield _rows_of("cast", _cast, 4096, "bfloat16", "float32")
    yield _depthwise("bfloat16", 7)
    yield _depthwise("bfloat16", 11)
    yield _depthwise("float32", 3, 2, residual=True)
    yield _pool("max", "bfloat16", 3, last=True)
    yield _pool("average", "float32", 3, last=False)
    for cell in ("LSTM", "GRU", "RNN"):
        yield _layer(cell)


def _named(rows: Iterator[Row]) -> dict[str, Row]:
    return {row.name: row for row in rows}


EVERYDAY = _named(_everyday())
REST = {name: row for name, row in _named(_all()).items() if name not in EVERYDAY}
