"""Matrix products: which kernel is launched how, for a precision and a tile."""

from collections.abc import Mapping
from dataclasses import replace

from app.kernels.cuda import realign, simt_product, tensor_product, warpgroup_product
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.geometry import NBYTES
from app.kernels.cuda.kernel import Kernel, KernelError, Launch, Launches, Ref
from app.kernels.cuda.operands import Operand, Rows
from app.kernels.cuda.product import BATCH, Product, check, parameters, reduction, to_workspace
from app.kernels.cuda.realign import Matrices
from app.kernels.cuda.tiles import (
    SIMT_DEPTH,
    SIMT_TILES,
    TENSOR_TILES,
    WARPGROUP_TILES,
    SimtTile,
    Tile,
    WarpgroupTile,
    depth,
)


def dtype_of(precision: str) -> str:
    """Storage type of a and b."""
    return "float32" if precision == "f32" else tensor_product.PRECISIONS[precision][0]


def vector(precision: str) -> int:
    """Elements of 16 bytes of a and b."""
    return 16 // NBYTES[dtype_of(precision)]


def gemm(
    product: Product, precision: str, after: Epilogue, tile: str, splits: int = 1, *, columns: bool = False
) -> Launches:
    """Launches of a product of two matrices; roles are a, b, y, bias, residual, workspace.

    Args:
        product: sizes; its a and b begin at multiples of 16 bytes.
        precision: a key of `tensor_product.PRECISIONS`, b being [n, k]; or "f32", exact, b being [k, n].
        after: what is done to sums.
        tile: a key of TENSOR_TILES, SIMT_TILES, or WARPGROUP_TILES for sm_90 and 16 bits without `columns`.
        splits: blocks that share the reduction of one tile; their sums meet in the workspace.
        columns: whether b is [k, n] for tensor cores, too.

    Operands whose rows do not begin at multiples of 16 bytes are copied to the workspace first; a constant b
    is better packed with aligned rows.
    """
    p, dtype = product, dtype_of(precision)
    columns = columns or precision == "f32"
    b_size = (p.k, p.n) if columns else (p.n, p.k)
    sources = {
        "a": Matrices(p.m, p.k, p.a_row, p.batch, p.a_batch),
        "b": Matrices(*b_size, p.b_row, p.batch, p.b_batch),
    }
    copies = realign.copies(sources, dtype)
    for role, (_, made) in copies.items():
        p = replace(p, **{f"{role}_row": made.row, f"{role}_batch": made.step})
    operand = Rows(ragged=p.k % vector(precision) != 0)
    longest = max(p.m * p.a_row, b_size[0] * p.b_row, p.m * p.y_row)
    inner = launches(p, precision, after, tile, splits, operand, {"a_row": p.a_row}, longest, columns)
    return realign.after_copies(inner, copies, dtype)


def launches(
    product: Product,
    precision: str,
    after: Epilogue,
    tile: str,
    splits: int,
    operand: Operand,
    numbers: Mapping[str, int],
    longest: int,
    columns: bool = False,
) -> Launches:
    """The same with any left operand and the numbers that its kernel text reads."""
    exact = precision == "f32"
    dtype = dtype_of(precision)
    check(product, dtype, longest)
    shape = (SIMT_TILES if exact else {**TENSOR_TILES, **WARPGROUP_TILES})[tile]
    step = SIMT_DEPTH if exact else depth(dtype)
    each = -(-product.k // (splits * step)) * step
    splits = -(-product.k // each)  # none without work
    shared, workspace = splits > 1, 0
    inner, first = product, after
    if shared:
        inner, first, workspace = to_workspace(product, splits)
    kernel = _kernel(precision, shape, operand, first, inner.width(first), shared, columns)
    down, across = -(-product.m // shape.m), -(-product.n // shape.n)
    values = {
        "m": product.m,
        "n": product.n,
        "k_end": product.k,
        "tiles_m": down,
        "tiles_n": across,
        "k_split": each,
        "y_split": product.batch * product.m * product.n,
        **{name: getattr(inner, name) for name in ("b_row", "y_row", *BATCH)},
        **numbers,
    }
    y = "workspace" if shared else "y"
    start = inner.y_start * NBYTES[first.dtype]
    refs = Ref("a"), Ref("b"), Ref(y, start), *(Ref(role) for role in first.roles)
    launch = Launch(
        kernel,
        (down * across, splits, product.batch),
        (*refs, *(values[name] for name in parameters(operand, shared))),
    )
    return Launches((launch, reduction(product, after, splits)) if shared else (launch,), workspace)


def _kernel(
    precision: str, tile: Tile, operand: Operand, after: Epilogue, width: int, shared: bool, columns: bool
) -> Kernel:
    """The kernel that makes such a tile; `columns` is asked of those alone that can do with either order."""
    match tile:
        case SimtTile():
            return simt_product.kernel(precision, tile, operand, after, width, shared)
        case WarpgroupTile() if not columns:
            return warpgroup_product.kernel(precision, tile, operand, after, width, shared)
        case WarpgroupTile():
            raise KernelError(f"tile '{tile.label}': b is [k, n], expected [n, k]")
        case _:
            return tensor_product.kernel(precision, tile, operand, after, width, shared, columns)
