"""Rows of matrix products."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import bfloat, blocking
from app.engine.backends.cpu.calls import of_type, size_operand, typed_call
from app.engine.backends.cpu.rows import after, group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Cost, Implementation, Lower, PlanningContext, Rejection, no_error
from app.engine.cost.roofline import flops
from app.engine.operators import epilogues
from app.engine.operators.matmul_geometry import PRODUCTS, Array, Product, matrices
from app.engine.types.precision import Computed
from app.kernels.cpu import matrix_tiles
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import CLAMP, COLUMN_BIAS, RESIDUAL, ROW_BIAS, SCALE
from app.kernels.cpu.gemm import PLACES, GemmSizes

DTYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")
BLOCK_ROWS = 192  # x DEPTH float32 of A stay in the second cache
BLOCK_PANELS = 4
DEPTH = 512  # float32 steps of the reduction: a panel is read from the second cache as fast as from the first
SHARE = 0.05  # of the tolerance of the job that one fast product may use up


@dataclass(frozen=True, slots=True, eq=False)
class Addends:
    """Addends of a product, each at most once, and its scales."""

    rows: Argument | None = None
    rows_step: int = 0
    columns: Argument | None = None
    residual: Argument | None = None
    residual_row: int = 0
    alpha: float = 1.0
    beta: float = 1.0


def gemm_addends(node: ir.Node, product: Product) -> Addends | str:
    """Where the third operand of a Gemm goes, or why it cannot."""
    found = Addends(alpha=graph.attribute(node, "alpha", 1.0))
    beta = graph.attribute(node, "beta", 1.0)
    c = graph.input_at(node, 2)
    if c is None or beta == 0.0:
        return found
    shape = graph.static_shape(c)
    m, n = (1,) * (2 - len(shape)) + shape
    if (m, n) == (1, product.n) and (beta == 1.0 or graph.is_constant(c)):
        return replace(found, columns=_scaled(c, beta))
    if n == product.n:
        return replace(found, residual=c, residual_row=n if m > 1 else 0, beta=beta)
    if beta != 1.0 and not graph.is_constant(c):
        return f"beta {beta} scales a C of shape {shape} that changes between runs"
    return replace(found, rows=_scaled(c, beta), rows_step=int(m > 1))


def _scaled(c: ir.Value, beta: float) -> Argument:
    array = graph.constant(c)
    if array is None:
        return c
    return Constant(np.ascontiguousarray(array * array.dtype.type(beta)), c.name or "")


def _addends(group: Group, product: Product, epilogue: epilogues.Epilogue) -> Addends | str:
    """The operands of Gemm and of the epilogue together."""
    found: Addends | str = Addends()
    if group.anchor.op_type == "Gemm":
        found = gemm_addends(group.anchor, product)
    if isinstance(found, str):
        return found
    if epilogue.biases and isinstance(found.columns, ir.Value):
        return f"two biases, of which {found.columns.name!r} changes between runs"
    if epilogue.residual is not None:
        if found.residual is not None:
            return "C takes the place of the residual"
        found = replace(found, residual=epilogue.residual, residual_row=product.n)
    return found


def product_of(group: Group) -> Product:
    """The product of a group's anchor."""
    return PRODUCTS[group.anchor.op_type](group.anchor)


def rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why no product of this kind applies."""
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
    node = group.anchor
    kind = graph.element_type(node.outputs[0])
    if kind.name not in DTYPES:
        return f"elements are {kind}; this one computes {', '.join(DTYPES)}"
    if any(graph.dtype(v) != kind for v in group.inputs):
        return "operands differ in type"
    if node.op_type == "Gemm" and kind.kind != "f":
        factors = [graph.attribute(node, name, 1.0) for name in ("alpha", "beta")]
        if factors != [1.0, 1.0]:
            return f"alpha and beta of integers must be 1, found {factors}"
    epilogue = epilogues.read(group, -1)
    if isinstance(epilogue, str):
        return epilogue
    if epilogue.clamps and kind.kind != "f":
        return "limits apply to floating point only"
    second = graph.operand(node, 1)
    if group.epilogue and len(graph.static_shape(second)) < 2:
        return "the second operand is a vector, so the output has no columns to speak of"
    strange = next((v for v, kind in epilogue.operands if kind not in PLACES), None)
    if strange is not None:
        return f"operand {strange.name!r} varies along other axes than the columns"
    found = _addends(group, product_of(group), epilogue)
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class Tiling:
    """Register tiles and blocks of a product.

    Attributes:
        dtype: of the elements that tiles multiply, see `tiles`.
        shapes: of the tiles, by lanes.
        m, n, k: sizes of blocks, in elements.
        by_rows: whether blocks of the same rows follow one another, rather than those of the same columns.
        packed: whether panels of the second operand are packed offline.
    """

    dtype: str
    lanes: int
    shapes: tiles.Shapes
    m: int
    n: int
    k: int
    packed: bool
    by_rows: bool = False

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return tiles.columns_of(self.dtype, self.lanes, self.shapes)

    @property
    def rows(self) -> int:
        """Rows of a tile."""
        return self.shapes[self.lanes][0]


def tiling(product: Product, dtype: str, context: PlanningContext, *, packed: bool) -> Tiling:
    """How a product is cut."""
    lanes = context.target.vector_lanes
    shapes = _shapes(product.n, dtype, lanes)
    depth = blocking.depth(product.k, np.dtype(tiles.element(dtype)).itemsize, DEPTH)
    if dtype == tiles.SCALED_PAIRS:
        depth = blocking.balanced(product.k, tiles.SCALED_STEPS, 1)
    elif packed and (product.m <= shapes[lanes][0] or dtype in tiles.WHOLE):
        depth = max(product.k, 1)  # nothing of b is read twice, or from the second cache: it streams
    panels = panels_of(product.n, dtype, lanes, shapes)
    apart = packed and len(product.offsets) == 1
    m, n, by_rows = panels.shared(
        product.m, shapes[lanes][:2], (BLOCK_ROWS, BLOCK_PANELS), context.threads, len(product.offsets), apart
    )
    return Tiling(dtype, lanes, shapes, m, n, depth, packed, by_rows)


def panels_of(columns: int, dtype: str, lanes: int, shapes: tiles.Shapes) -> blocking.Panels:
    """The panels of so many columns for tiles of these shapes."""
    lane = tiles.lanes_of(dtype, lanes)
    return blocking.Panels(columns, tiles.columns_of(dtype, lanes, shapes), lane)


def _shapes(columns: int, dtype: str, lanes: int) -> tiles.Shapes:
    """The shapes of the tiles for so many columns."""
    return tiles.shapes_of(dtype, tiles.vectors_for(columns, dtype, lanes))


def _lower(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    product = product_of(group)
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    return (product_call(product, product.a, y, context, *additions(group, product)),)


@after(rejection)
def prepared_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why no fast product of float32 rows with one constant, prepared matrix applies."""
    if not context.fast_algorithms:
        return "fast algorithms are switched off"
    kind = graph.dtype(group.outputs[0])
    if kind != np.float32:
        return f"elements are {kind}; this one computes float32"
    product = product_of(group)
    if not graph.is_constant(product.b):
        return f"{product.b.name!r} changes between runs; this one prepares it offline"
    if len(product.offsets) > 1:
        return f"{len(product.offsets)} products; this one takes 1"
    if product.a_strides[1] != 1:
        return "the first operand is transposed"
    return None


def error_rejection(found: float, context: PlanningContext) -> str | None:
    """Reason why a product may not err so much, relative rms on its own weights."""
    limit = SHARE * context.tolerance
    return None if found <= limit else f"relative rms error {found:.1e} on these weights exceeds {limit:.1e}"


def _bfloat_rejection(
    processor_rejection: Callable[[PlanningContext], str | None], group: Group, context: PlanningContext
) -> str | None:
    reason = processor_rejection(context) or rejection(group, context)
    if reason is not None:
        return reason
    product = product_of(group)
    if graph.dtype(group.outputs[0]) != np.float32:
        return f"elements are {graph.dtype(group.outputs[0])}; this one rounds float32"
    if not graph.is_constant(product.b):
        return f"{product.b.name!r} changes between runs; this one rounds it offline"
    if product.a_strides != (product.k, 1):
        return f"{product.a.name!r} is transposed; this one rounds rows"
    return None


def _bfloat_lower(group: Group, context: PlanningContext, *, tiled: bool = False) -> tuple[KernelCall, ...]:
    """Rows of the first operand are rounded in a call of their own, the second operand offline.

    Tile registers take whole vectors of pairs, zeros at the end.
    """
    product = product_of(group)
    (y,) = group.outputs
    array = graph.array(product.b)
    if graph.elements(y) == 0 or product.k == 0:
        return _lower(group, context)
    added, epilogue = additions(group, product)
    count = graph.elements(product.a) // product.k
    if tiled:
        rows, pairs, row = bfloat.tiled_rows_call(product.a, count, product.k)
        paired, dtype = bfloat_product(product, matrix_tiles.LANES, row), tiles.TILED_BFLOATS
    else:
        rows, pairs = bfloat.rows_call(product.a, count, product.k, context)
        paired, dtype = bfloat_product(product), bfloat.dtype(context)

    matrix, depth = matrices(product, array), paired.k

    def weights() -> Array:
        packed = tiles.pack_bfloats(matrix)
        absent = [(0, 0)] * packed.ndim
        absent[-2] = (0, depth - packed.shape[-2])
        return np.pad(packed, absent)

    return rows, product_call(paired, pairs, y, context, added, epilogue, weights=weights, dtype=dtype)


def bfloat_product(product: Product, multiple: int = 1, row: int = 0) -> Product:
    """The same product over pairs along k, of rows of `a` and row-major `b`.

    There are a multiple of so many, and rows of `a` lie `row` apart if that is given.
    """
    k = -(-product.k // (2 * multiple)) * multiple
    row = row or k
    offsets = ((i // product.k * row, j // product.k * k) for i, j in product.offsets)
    return replace(
        product,
        k=k,
        offsets=tuple(offsets),
        a_strides=(row, 1),
        b_strides=(product.n, 1),
        b_shape=(*product.b_shape[:-2], k, product.n),
    )


def additions(group: Group, product: Product) -> tuple[Addends, epilogues.Epilogue]:
    """Addends of a group that is not rejected, all biases in one, and the epilogue after them."""
    kind = graph.element_type(group.outputs[0])
    epilogue = epilogues.read(group, -1)
    assert not isinstance(epilogue, str)
    added = _addends(group, product, epilogue)
    assert not isinstance(added, str)
    extra = epilogue.bias(product.n, kind)
    if extra is not None:
        own = added.columns.array.reshape(-1) if isinstance(added.columns, Constant) else kind.type(0)
        added = replace(added, columns=Constant(extra + own, epilogue.biases[0][0].name or ""))
    return added, epilogue


def flags_of(added: Addends, epilogue: epilogues.Epilogue) -> int:
    """The flags of a tile."""
    return (
        SCALE * (added.alpha != 1.0)
        | ROW_BIAS * (added.rows is not None)
        | COLUMN_BIAS * (added.columns is not None)
        | RESIDUAL * (added.residual is not None)
        | CLAMP * epilogue.clamps
    )


def product_call(
    product: Product,
    a: Argument,
    y: ir.Value,
    context: PlanningContext,
    added: Addends,
    epilogue: epilogues.Epilogue,
    *,
    weights: Callable[[], Array] | None = None,
    dtype: str = "",
) -> KernelCall:
    """The product of `a` and the second operand, or the [.., k, n] that `weights` makes in its place.

    Constants are packed into panels here. Tiles multiply elements of `dtype`, see `tiles`, if several
    elements are in one of them.
    """
    kind = graph.element_type(y)
    array = graph.constant(product.b) if weights is None else None
    if array is not None:
        matrix = matrices(product, array)
        weights = lambda: matrix  # noqa: E731  # of nothing that depends on the rows: shapes share it
    own = tiling(product, dtype or kind.name, context, packed=weights is not None)
    nothing = Constant(np.zeros(1, kind))
    sizes = _sizes(product, own, added, epilogue, kind.itemsize)
    pointer = f"{kind.name}*"
    b = product.b if weights is None else _panels(product, weights, own)
    scalars = Constant(epilogue.scalars(kind, added.alpha, added.beta))
    addends = (added.rows or nothing, added.columns or nothing, added.residual or nothing, scalars)
    operands = (
        (pointer, a),
        (f"{tiles.right_element(own.dtype)}*", b),
        *of_type(pointer, y, *addends),
        ("int64*", Constant(_offset_table(product, own, added))),
        size_operand(sizes),
        (pointer, Workspace(sizes.work_step * kind.itemsize, per_thread=True)),
        *epilogue.arguments,
    )
    return typed_call(
        "app.kernels.cpu.gemm:emit",
        operands,
        len(product.offsets) * -(-product.m // own.m) * -(-product.n // own.n),
        static=(own.dtype, own.lanes, *epilogue.static, *_columns_static(product.n, own)),
    )


def panels(product: Product, tiling: Tiling) -> Constant:
    """A constant second operand as the tiles read it."""
    matrix = matrices(product, graph.array(product.b))
    return _panels(product, lambda: matrix, tiling)


def _panels(product: Product, weights: Callable[[], Array], tiling: Tiling) -> Constant:
    """The second operand as the tiles read it: the same for all tilings of one width, which shapes share."""
    dtype, width = tiling.dtype, tiling.width
    vector = tiles.lanes_of(dtype, tiling.lanes)
    return Constant(
        lambda: tiles.packed_panels(dtype, weights(), width, vector, tiling.k), product.b.name or ""
    )


def _offset_table(product: Product, tiling: Tiling, added: Addends) -> Array:
    """Offsets of each product of a batch in `a`, in `b` or its panels, and in the residual."""
    offsets = product.offsets
    if tiling.packed:
        step, tail = tiles.panel_sizes(tiling.dtype, tiling.width)
        size = -(-product.n // tiling.width) * (product.k * step + tail)
        offsets = tuple((i, j // max(product.k * product.n, 1) * size) for i, j in offsets)
    step = product.m * product.n if isinstance(added.residual, ir.Value) and added.residual_row else 0
    return np.array([(i, j, batch * step) for batch, (i, j) in enumerate(offsets)], np.int64)


def _sizes(
    product: Product, tiling: Tiling, added: Addends, epilogue: epilogues.Epilogue, itemsize: int
) -> GemmSizes:
    """Sizes of a product, among them the workspace of a thread: sums, spare, and panels packed by a run."""
    sums = tiling.m * tiling.n if product.k > tiling.k or epilogue.recipe else 0
    spare = tiles.spare(tiling.dtype, tiling.lanes, tiling.shapes)
    panel_row = blocking.panel_row(tiling.n, itemsize)
    return GemmSizes(
        m=product.m,
        n=product.n,
        k=product.k,
        **dict(zip(("a_row", "a_k"), product.a_strides)),
        b_packed=tiling.packed,
        by_rows=tiling.by_rows,
        **dict(zip(("b_row", "b_column"), product.b_strides)),
        rows_step=added.rows_step,
        residual_row=added.residual_row,
        **{f"block_{axis}": getattr(tiling, axis) for axis in "mnk"},
        packed_row=panel_row,
        sums_size=sums,
        spare_size=spare,
        work_step=sums + spare + (0 if tiling.packed else (tiling.k + 1) * panel_row),
        flags=flags_of(added, epilogue),
    )


def _columns_static(columns: int, tiling: Tiling) -> tuple[int, int]:
    """Vectors of a panel, and the number of columns where they do not fill a vector, else 0."""
    dtype, lanes = tiling.dtype, tiling.lanes
    part = dtype not in tiles.WHOLE and columns < tiles.lanes_of(dtype, lanes)
    return tiling.shapes[lanes][2], columns if part else 0


def predicted(group: Group, context: PlanningContext) -> float:
    """Seconds of a blocked product."""
    product = product_of(group)
    kind = graph.element_type(group.outputs[0])
    lanes = context.target.vector_lanes
    # What is computed: whole tiles; and wider elements take longer.
    shapes = _shapes(product.n, kind.name, lanes)
    width = tiles.columns_of(kind.name, lanes, shapes)
    rows = sum(max(size, 4) for _, size in tiles.row_groups(product.m, max(product.m, 1), lanes, shapes))
    wasted = rows * -(-product.n // width) * width / max(product.m * product.n, 1)
    return group_roofline(group, context, flops(group) * wasted * kind.itemsize / 4, 0.9)


def _rounded_seconds(group: Group, context: PlanningContext, computed: float) -> float:
    """Seconds of two calls that compute so much; weights are rounded to half their bytes."""
    moved = total_bytes(group) - graph.nbytes(product_of(group).b) / 2
    return context.target.launch + group_roofline(group, context, computed, 0.9, moved)


def paired_seconds(group: Group, context: PlanningContext, rate: float, rounding: float) -> float:
    """Seconds of products in pairs, `rate` times as fast as those of float32, and `rounding` an element."""
    product = product_of(group)
    width = tiles.columns_of("float32", context.target.vector_lanes, tiles.WIDE)
    wasted = -(-product.n // width) * width / max(product.n, 1) * max(product.m, 4) / max(product.m, 1)
    rounded = rounding * graph.elements(product.a)
    return _rounded_seconds(group, context, flops(group) * wasted / rate + rounded)


def _bfloat_predicted(group: Group, context: PlanningContext) -> float:
    return paired_seconds(group, context, bfloat.rate(context), bfloat.ROUNDING)


def _tiled_predicted(group: Group, context: PlanningContext) -> float:
    product = product_of(group)
    (y,) = group.outputs
    wasted = 1.0
    for size, multiple in ((product.m, 16), (product.n, 32), (product.k, 32)):
        wasted *= -(-size // multiple) * multiple / max(size, 1)
    moved = bfloat.ROUNDING * graph.elements(product.a) + bfloat.ENDING * graph.elements(y)
    return _rounded_seconds(group, context, flops(group) * wasted / bfloat.TILES_RATE + moved)


def inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """The output may lie over what is added to it."""
    return epilogues.inplace(group, -1)


def rows(
    name: str,
    rejection: Rejection,
    lower: Lower,
    cost: Cost,
    error: Callable[[Group, PlanningContext], float | None] = no_error,
    precision: Computed = "f32",
) -> tuple[Implementation, ...]:
    """The rows of one way to compute MatMul and Gemm."""
    return tuple(
        Implementation(
            f"{op.lower()}.{name}",
            op,
            "numba-cpu",
            rejection,
            lower,
            cost,
            inplace,
            error=error,
            precision=precision,
        )
        for op in ("MatMul", "Gemm")
    )


_BFLOAT_REJECTION = partial(_bfloat_rejection, bfloat.rejection)
_TILES_REJECTION = partial(_bfloat_rejection, bfloat.tiles_rejection)
IMPLEMENTATIONS = (
    *rows("blocked", rejection, _lower, predicted),
    *rows("blocked_bf16", _BFLOAT_REJECTION, _bfloat_lower, _bfloat_predicted, precision="bf16"),
    *rows("tiles", _TILES_REJECTION, partial(_bfloat_lower, tiled=True), _tiled_predicted, precision="bf16"),
)
