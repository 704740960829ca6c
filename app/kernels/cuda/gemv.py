"""Products of few rows: y[m, n] = epilogue(sum over k of a[m, k] b[n, k]), m at most 8, bound by reading b.

A warp reads `rows` rows of b in 16-byte pieces; a, which is small, comes from the first cache. Where b has
few rows, `share` warps share each of them along k, so that enough reads are under way. Any storage type.
"""

from app.kernels.cuda import epilogue, storage
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import Kernel, KernelError, Launch, Launches, Ref
from app.kernels.cuda.product import Product, check
from app.kernels.cuda.source import Source
from app.kernels.cuda.vectors import pointer

WARPS = 4  # in a block
BLOCKS = 4  # of a multiprocessor that registers must leave room for: 16 warps keep its memory busy
MOST = 8  # rows of a
NUMBERS = (
    "n",
    "k_end",
    *("a_row", "b_row", "y_row", "residual_row"),
    *("a_batch", "b_batch", "y_batch", "bias_batch", "residual_batch"),
)


def gemv(product: Product, dtype: str, after: Epilogue, warps: int) -> Launches:
    """The launch; roles are a, b, y, bias, residual.

    Args:
        product: sizes; rows of a and b must be aligned to 16 bytes.
        dtype: of a and b.
        after: what is done to sums.
        warps: that should be under way, several for each scheduler of the device.

    Raises:
        KernelError: more than 8 rows of a, or a pitch that is not aligned.
    """
    if not 1 <= product.m <= MOST:
        raise KernelError(f"a product of {product.m} rows: this kernel takes 1 to {MOST}")
    check(product, dtype, max(product.n * product.b_row, product.m * product.a_row))
    total = product.n * product.batch
    rows = next(r for r in (4, 2, 1) if r == 1 or (total >= r * warps and product.m * r <= 16))
    share = next(s for s in (1, 2, 4) if s == WARPS or total * s >= rows * warps)
    ragged = product.k % (16 // NBYTES[dtype]) != 0
    numbers = {name: getattr(product, name) for name in NUMBERS if name != "k_end"} | {"k_end": product.k}
    grid = -(-product.n // (rows * WARPS // share)), 1, product.batch
    refs = (Ref(role) for role in ("a", "b", "y", *after.roles))
    made = kernel(product.m, dtype, after, rows, share, ragged)
    return Launches((Launch(made, grid, (*refs, *(numbers[name] for name in NUMBERS))),))


def kernel(m: int, dtype: str, after: Epilogue, rows: int, share: int, ragged: bool) -> Kernel:
    """The kernel for m rows of a; `ragged`: the reduction ends within 16 bytes."""
    sums = m * rows
    s = Source()
    with s.block(f"def kernel({', '.join(('a', 'b', 'y', *after.roles, *NUMBERS))}):"):
        for role in ("a", "b", "y", *after.roles):
            s(f"{role} = advance({role}, int64(block_z()) * int64({role}_batch))")
        s(
            f"first = uint32(uint32(block_x() * {WARPS // share}) + uint32(warp() // uint32({share})))",
            f"first = uint32(first * {rows})",
        )
        for r in range(rows):  # beyond the last row it again: its sums are not stored
            s(f"b{r} = advance(b, int64(min(uint32(first + {r}), uint32(n - uint32(1)))) * int64(b_row))")
        s(*(f"a{i} = advance(a, int64(a_row) * {i})" for i in range(1, m)), "a0 = a")
        s(*(f"s{i}_{r} = float32(0)" for i in range(m) for r in range(rows)))
        _products(s, m, dtype, rows, share, ragged)
        s("sums = shared_f32(uint32(0))")
        for i in range(m):
            for r in range(rows):
                s(f"total = warp_sum_f32(s{i}_{r})")
                with s.block("if lane() == uint32(0):"):
                    s(f"sums[uint32(warp() * {sums} + {i * rows + r})] = total")
        s("sync()")
        _finish(s, after, rows, share, sums)
    parts = ("gemv", f"m{m}", dtype, after.dtype, after.label, f"r{rows}", f"s{share}", "ragged" * ragged)
    element = pointer(dtype)
    return Kernel(
        "_".join(filter(None, parts)),
        s.text,
        (element, element, pointer(after.dtype), *after.signature, *("uint32",) * len(NUMBERS)),
        32 * WARPS,
        BLOCKS,
        shared_bytes=4 * WARPS * sums,
    )


def _products(s: Source, m: int, dtype: str, rows: int, share: int, ragged: bool) -> None:
    """Text that walks along k, 16 bytes of each row at a time, then its ragged end."""
    vector = 16 // NBYTES[dtype]
    part = f"uint32(warp() & uint32({share - 1}))"
    s(f"k = uint32(uint32({part} * 32 + lane()) * {vector})")
    s(f"whole = uint32(k_end - uint32(k_end & uint32({vector - 1})))" if ragged else "whole = k_end")
    quads = range(0, vector, 4)
    with s.block("while k < whole:"):
        for r in range(rows):
            names = [f"v{r}_{e}" for e in range(vector)]
            storage.load(s, dtype, f"b{r}", "k", names)
            s(*(f"w{r}_{q} = ({', '.join(names[q : q + 4])})" for q in quads))
        for i in range(m):
            names = [f"x{e}" for e in range(vector)]
            storage.load(s, dtype, f"a{i}", "k", names)
            for q in quads:
                s(f"u = ({', '.join(names[q : q + 4])})")
                s(*(f"s{i}_{r} = dot_4(s{i}_{r}, u, w{r}_{q})" for r in range(rows)))
        s(f"k = uint32(k + {32 * share * vector})")
    if not ragged:
        return
    s(f"k = uint32(whole + uint32({part} * 32 + lane()))")
    with s.block("if k < k_end:"):
        for i in range(m):
            storage.load(s, dtype, f"a{i}", "k", ["x0"])
            for r in range(rows):
                storage.load(s, dtype, f"b{r}", "k", ["v0_0"])
                s(f"s{i}_{r} = fma(x0, v0_0, s{i}_{r})")


def _finish(s: Source, after: Epilogue, rows: int, share: int, sums: int) -> None:
    """Text that adds up the shares of each sum and writes it, a thread a sum."""
    groups = WARPS // share
    with s.block(f"if thread() < uint32({groups * sums}):"):
        s(
            f"group = uint32(thread() // uint32({sums}))",
            f"inner = uint32(thread() - group * {sums})",
            f"at = uint32(group * {share * sums} + inner)",
            "v = sums[at]",
            *(f"v = v + sums[uint32(at + {j * sums})]" for j in range(1, share)),
            f"row = uint32(inner // uint32({rows}))",
            f"group = uint32(block_x() * {groups} + group)",
            f"column = uint32(group * {rows} + inner - row * {rows})",
        )
        with s.block("if column < n:"):
            s("to_y = uint32(row * y_row + column)", "to_r = uint32(row * residual_row + column)")
            epilogue.write(s, after, ["v"], "column", "to_y", "to_r")
