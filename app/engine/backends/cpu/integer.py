"""Common parts of the rows of integer products: exact sums of 8-bit numbers less their zero points.

Activations are widened to pairs of int16 by a call of their own, constants offline; the sums
become what the group stores (a recipe: scale, bias, limit, quantize) while they are in cache.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, Operands, kernel_call, of_type
from app.engine.backends.cpu.rows import group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import (
    Cost,
    Implementation,
    Inplace,
    Lower,
    PlanningContext,
    Rejection,
    no_pairs,
)
from app.engine.cost.roofline import flops
from app.engine.operators import conv_geometry, epilogues, matmul_geometry
from app.engine.operators.elementwise import recipe_of
from app.engine.types.target import Target
from app.kernels.cpu import integer_tiles
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import (
    BOTH_SIGNED,
    BYTE_PAIRS,
    DOT,
    PAIRED,
    PAIRS,
    QUADS,
    SPREAD_DOT,
    TILE_DOT,
    TILED,
    Shapes,
)
from app.kernels.cpu.integer_products import CONV_PLACES, MATMUL_PLACES
from app.kernels.expressions import Recipe, stored

Array = np.ndarray[Any, Any]

BYTES = ("int8", "uint8")
TILES = "amx_int8"
TILES_RATE = 3.0  # products of four bytes a second by tile registers, over those of float32 by vectors
# Operations of float32 that take as long as gathering a four of bytes, ending a sum, and grouping a byte.
GATHERING, ENDING, GROUPING = 6.0, 12.0, 8.0
DEPTH = 256  # pairs: 16 columns of so many steps stay in the first cache


@dataclass(frozen=True, slots=True, eq=False)
class RecipeOperand:
    """Operand of a recipe besides the sums, and the place that it varies along."""

    argument: Argument
    dtype: str
    place: str


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """How sums become the output: a recipe on input 0, or nothing where they are the output."""

    recipe: Recipe
    operands: tuple[RecipeOperand, ...]
    result: str

    @property
    def static(self) -> tuple[Recipe, tuple[tuple[str, str], ...], str]:
        """Arguments of the generator."""
        return self.recipe, tuple((o.place, o.dtype) for o in self.operands), self.result

    @property
    def arguments(self) -> tuple[tuple[str, Argument], ...]:
        """Further arguments of the kernel, with their types."""
        return tuple((f"{stored(o.dtype)}*", o.argument) for o in self.operands)


class Inputs:
    """The operands of an integer product by their roles; scales and y's zero point only of QLinear*."""

    def __init__(self, node: ir.Node) -> None:
        self.is_conv = "Conv" in node.op_type
        self.linear = node.op_type.startswith("QLinear")
        places = range(8) if self.linear else (0, None, 2, 1, None, 3, None, None)
        found = [None if i is None else graph.input_at(node, i) for i in places]
        _, self.a_scale, self.a_zero, _, self.b_scale, self.b_zero, *last = found
        self.y_scale, self.y_zero = last
        self.a, self.b = graph.operand(node, 0), graph.operand(node, 3 if self.linear else 1)
        self.bias = graph.input_at(node, 8) if node.op_type == "QLinearConv" else None

    @property
    def fixed(self) -> bool:
        """True if the second operand and its zero point are constants."""
        return graph.is_constant(self.b) and (self.b_zero is None or graph.is_constant(self.b_zero))

    @property
    def shifted(self) -> Array:
        """The second operand, a constant, minus its zero point, which may be one for each output."""
        array, offset = graph.array(self.b), graph.constant(self.b_zero)
        if offset is None:
            return array.astype(np.int16)
        shape = [1] * array.ndim
        if offset.size > 1:
            shape[0 if self.is_conv else -1] = offset.size
        return array.astype(np.int16) - offset.astype(np.int16).reshape(shape)

    @property
    def narrow(self) -> tuple[Array, Array]:
        """The second operand as numbers that fit int8, and what they lack; weights of images as they are.

        All lack one number, or those of each column one of their own; none where all fit.
        """
        shifted = self.shifted
        if self.is_conv or not shifted.size or (shifted.min() >= -128 and shifted.max() <= 127):
            return shifted, np.zeros(0, np.int32)
        is_one = self.b_zero is None or graph.elements(self.b_zero) == 1
        axes = None if is_one else tuple(range(shifted.ndim - 1))
        lacks = (shifted.min(axes) + shifted.max(axes) + 1) // 2
        return shifted - lacks, lacks.reshape(-1).astype(np.int32)


def window_of(group: Group) -> conv_geometry.Window:
    """The window of an integer convolution."""
    return conv_geometry.of_conv(group, Inputs(group.anchor).b)


def rejection(group: Group, _context: PlanningContext) -> str | None:
    """Reason why no integer product at all applies."""
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
    node, of = group.anchor, Inputs(group.anchor)
    for value in (of.a, of.b):
        kind = graph.dtype(value)
        if kind is None or kind.name not in BYTES:
            return f"value {value.name!r} is {kind}; this one takes {', '.join(BYTES)}"
    if group.epilogue and not of.is_conv and has_vector(of):
        return "an operand is a vector, so the output has no rows and columns to speak of"
    rank = len(graph.static_shape(node.outputs[0])) - 2
    if of.is_conv and not 1 <= rank <= 3:
        return f"{rank} spatial axes; this one has 1 to 3"
    fixed = [of.b, of.b_zero] if of.is_conv else []
    if of.b_zero is not None and len(graph.static_shape(of.b_zero)) > 1:
        return f"zero point {of.b_zero.name!r} has more than one axis"
    if of.linear:
        fixed += [of.a_scale, of.b_scale, of.y_scale, of.y_zero, of.bias]
        if len(group.nodes) > 1:
            return f"{group.op} takes no epilogue, the group has {len(group.nodes)} nodes"
    changing = next((v for v in fixed if v is not None and not graph.is_constant(v)), None)
    if changing is not None:
        return f"{changing.name!r} changes between runs; this one prepares it offline"
    for single in (of.a_zero, of.a_scale, of.y_scale, of.y_zero):
        if single is not None and graph.elements(single) != 1:
            return f"{single.name!r} has {graph.elements(single)} elements; this one takes one"
    finish = _finish(group)
    return finish if isinstance(finish, str) else None


def finish_of(group: Group) -> Finish:
    """Steps from the sums to the output of a group that is not rejected."""
    finish = _finish(group)
    assert not isinstance(finish, str), finish
    return finish


def _finish(group: Group) -> Finish | str:
    """Steps from the sums to the output, or the reason why they cannot be computed here."""
    if group.op.startswith("QLinear"):
        return _requantized(group)
    is_conv = "Conv" in group.op
    return after_sums(group, CONV_PLACES if is_conv else MATMUL_PLACES, 1 if is_conv else -1)


def after_sums(group: Group, places: Container[str], axis: int = -1) -> Finish | str:
    """Steps from the anchor's sums, channels along `axis`, to the output by the nodes that follow it.

    The reason where they cannot be computed by recipes whose operands are read at these places.
    """
    (sums,) = group.anchor.outputs
    if not group.epilogue:
        return Finish((), (), graph.element_type(sums).name)
    if len(group.outputs) > 1:
        return f"{len(group.outputs)} values leave the group; this one stores one"
    (y,) = group.outputs
    if y is not group.nodes[-1].outputs[0]:
        return f"{y.name!r} is not what the last node makes"
    shape = graph.static_shape(sums)
    if graph.shape(y) != shape:
        return f"the result is {graph.shape(y)}, the sums {shape}"
    formula = recipe_of(group.epilogue, group.outputs, first=(sums,))
    if isinstance(formula, str):
        return formula
    operands = []
    for operand in formula.operands[1:]:
        place = epilogues.place(operand.shape, shape, axis)
        if place is None or place not in places:
            return f"operand {operand.value.name!r} of shape {operand.shape} varies along other axes"
        operands.append(RecipeOperand(operand.value, str(graph.dtype(operand.value)), place))
    finish = Finish(formula.recipe, tuple(operands), formula.results[0][1])
    return _with_integer_bias(group, finish) if group.op in (*CONVOLUTIONS, *PRODUCTS) else finish


def _with_integer_bias(group: Group, finish: Finish) -> Finish:
    """Steps that add a bias to the sums where it is a multiple of their scale, as onnxruntime does."""
    found = epilogues.bias_before_scale(finish.recipe, len(finish.operands) + 1)
    if found is None:
        return finish
    recipe, i, j = found
    factor, addend = finish.operands[i - 1], finish.operands[j - 1]
    scale, bias = (
        graph.constant(o.argument) if isinstance(o.argument, ir.Value) else None for o in (factor, addend)
    )
    channels = max(1 if a is None else a.size for a in (scale, bias))
    most = 2**31 - graph.elements(Inputs(group.anchor).b) // channels * 255 * 255
    integers = None if scale is None or bias is None else epilogues.multiples(bias, scale, most)
    if integers is None:
        return finish
    operands = list(finish.operands)
    place = factor.place if addend.place == "scalar" else addend.place
    operands[j - 1] = RecipeOperand(Constant(integers), "int32", place)
    return replace(finish, recipe=recipe, operands=tuple(operands))


def _requantized(group: Group) -> Finish:
    """The sums as 8-bit numbers of the output's scale."""
    of = Inputs(group.anchor)
    kind = graph.element_type(group.outputs[0])
    a, b, y = (graph.array(v).astype(np.float32) for v in (of.a_scale, of.b_scale, of.y_scale))
    factors = a.reshape(-1) * b.reshape(-1) / y.reshape(-1)  # in float32, as onnxruntime computes them
    zero = graph.constant(of.y_zero)
    origin = np.zeros(1, kind) if zero is None else zero.reshape(1)
    limits = np.iinfo(kind)
    addends = np.zeros(1, np.int32) if of.bias is None else graph.array(of.bias).reshape(-1)
    recipe: Recipe = (
        ("Add", (0, 2), ()),
        ("Cast", (4,), ("float32",)),
        ("Mul", (5, 1), ()),
        ("Round", (6,), ()),
        ("Cast", (3,), ("float32",)),
        ("Add", (7, 8), ()),
        ("Saturate", (9,), (float(limits.min), float(limits.max), kind.name)),
    )
    operands = [
        RecipeOperand(Constant(array), str(array.dtype), "channel" if array.size > 1 else "scalar")
        for array in (factors, addends)
    ]
    operands.append(RecipeOperand(Constant(origin), kind.name, "scalar"))
    return Finish(recipe, tuple(operands), kind.name)


def replaceable(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Values that the output may be written over: they are read where it is stored, and as wide."""
    (y,) = group.outputs
    beside = [o.argument for o in finish_of(group).operands if o.place == "same"]
    width = graph.element_type(y).itemsize
    return tuple(
        (x, y)
        for x in beside
        if isinstance(x, ir.Value) and not graph.is_constant(x) and graph.element_type(x).itemsize == width
    )


def has_vector(of: Inputs) -> bool:
    """True if an operand is a vector, so that the output lacks rows or columns."""
    return min(len(graph.static_shape(v)) for v in (of.a, of.b)) < 2


def has_dot(target: Target) -> bool:
    """True if one instruction adds four products of unsigned and signed bytes to each lane."""
    native = "avx512_vnni" in target.isa and target.vector_lanes in (8, 16)
    return native or ("avx_vnni" in target.isa and target.vector_lanes == 8)


def has_signed_dot(target: Target) -> bool:
    """The same of signed bytes."""
    return "asimddp" in target.isa and target.vector_lanes == 4


@dataclass(frozen=True, slots=True)
class Form:
    """How products are taken: by steps of the reduction in one element, and whether added at once."""

    name: str
    together: int
    dot: bool = False
    narrow: bool = False  # pairs of the second operand lie in memory as bytes
    tiled: bool = False  # by tile registers

    @property
    def shapes(self) -> Shapes:
        """Shapes of register tiles."""
        return TILED if self.tiled else PAIRED if self.together == 2 else QUADS

    def spare(self, lanes: int) -> int:
        """Elements of the scratch memory of a product."""
        return integer_tiles.SPARE if self.tiled else tiles.spare(PAIRS, lanes, self.shapes)

    def steps(self, k: int) -> int:
        """Elements that k steps of a reduction take."""
        elements = -(-k // self.together)
        return elements + -elements % tiles.TILE if self.tiled else elements

    def dtype(self, unsigned: str, context: PlanningContext) -> str:
        """The type of an element; `unsigned` names the operand whose bytes are."""
        if self.together == 2:
            return BYTE_PAIRS if self.narrow else PAIRS
        if self.tiled:
            return unsigned + TILE_DOT
        if not self.dot:
            return unsigned
        target = context.target
        if has_signed_dot(target):
            return BOTH_SIGNED + DOT
        return unsigned + (DOT if has_dot(target) else SPREAD_DOT)

    def shift(self, value: ir.Value, context: PlanningContext) -> int:
        """Number whose addition gives elements the sign that products of fours want."""
        if self.dot and has_signed_dot(context.target):
            return -128 if graph.dtype(value) == np.uint8 else 0
        return 128 if graph.dtype(value) == np.int8 else 0

    def rejection(self, group: Group, context: PlanningContext) -> str | None:
        """Reason why it does not apply."""
        reason = rejection(group, context)
        if reason is not None or (self.together == 2 and not self.narrow):
            return reason
        if self.narrow:
            return _fours_rejection(group)
        if self.tiled:
            return _tiles_rejection(context) or _fours_rejection(group, tiled=True)
        if self.dot and "int8" not in context.target.precisions:
            return f"target {context.target.name!r} has no instruction that adds four products of bytes"
        return _fours_rejection(group) or (None if self.dot else _quads_rejection(group, context))


def _quads_rejection(group: Group, context: PlanningContext) -> str | None:
    """Reason why bytes cannot be multiplied in vectors, four at a time, without saturation."""
    # The instruction that each width of vectors needs.
    needed = {4: "ssse3", 8: "avx2", 16: "avx512bw"}[context.target.vector_lanes]
    if needed not in context.target.isa:
        return (
            f"the target has no {needed}, which multiplies vectors of {context.target.vector_lanes} * 4 bytes"
        )
    of = Inputs(group.anchor)
    shifted, _ = of.narrow
    if of.is_conv:
        shifted = shifted.reshape(*shifted.shape[:2], -1)
    steps = tiles.pack_steps(shifted, 4)
    if not tiles.quads_fit(steps):
        return f"two products of {of.b.name!r} and an activation may add up to more than 16 bits"
    return None


def _tiles_rejection(context: PlanningContext) -> str | None:
    """Reason why no tile registers multiply bytes here."""
    target = context.target
    if TILES not in target.isa:
        return f"target {target.name!r} has no {TILES}, or its system does not permit its use"
    if target.vector_lanes != tiles.TILE:
        return f"vectors of {target.vector_lanes} int32; tile registers have {tiles.TILE} columns"
    return None


def _fours_rejection(group: Group, *, tiled: bool = False) -> str | None:
    """Reason why the second operand cannot be bytes, four steps of the reduction in one element."""
    of = Inputs(group.anchor)
    if not of.fixed:
        return f"{of.b.name!r} changes between runs; this one looks at it offline"
    if not of.is_conv and has_vector(of):
        return "an operand is a vector; this one takes matrices"
    narrow, lacks = of.narrow
    if narrow.size and (narrow.min() < -128 or narrow.max() > 127):
        return f"{of.b.name!r} less its zero point does not fit int8"
    return f"{of.b.name!r} less its zero point is {lacks} off int8" if lacks.size and tiled else None


def corrections(
    of: Inputs, form: Form, context: PlanningContext, behind: int = 0
) -> tuple[tuple[KernelCall, ...], Argument]:
    """Calls and addends by which a zero point changes the sums of each output; no call if it is constant.

    `behind` more addends of any value may be read behind the last.
    """
    if form.together == 2:
        return (), Constant(np.zeros(1 + behind, np.int32))  # activations are widened less their zero point
    weights, shift = of.shifted, form.shift(of.a, context)
    sums = weights.reshape(weights.shape[0], -1).sum(1) if of.is_conv else weights.sum(-2)
    sums = sums.astype(np.int32)
    zero = graph.constant(of.a_zero)
    if of.a_zero is None or zero is not None:
        origin = shift + (0 if zero is None else int(zero.reshape(-1)[0]))
        return (), Constant(np.pad(-np.int32(origin) * sums, [(0, 0)] * (sums.ndim - 1) + [(0, behind)]), "")
    y = Workspace((max(sums.size, 1) + behind) * 4)
    operands: Operands = (f"{graph.dtype(of.a)}*", of.a_zero), shift, *of_type("int32*", Constant(sums), y)
    return (kernel_call("app.kernels.cpu.pairs:corrections", operands, sums.size),), y


def with_zero(value: ir.Value, zero: ir.Value | None) -> tuple[Operand, ...]:
    """A value and its zero point as operands; one that is left out is zero."""
    absent = Constant(np.zeros(1, graph.dtype(value)))
    return of_type(f"{graph.dtype(value)}*", value, zero or absent)


def widening_call(of: Inputs, x: Workspace, table: Constant, planes: int) -> KernelCall:
    """The call of `pairs.widen_planes` on the first operand."""
    operands: Operands = (*with_zero(of.a, of.a_zero), ("int16*", x), ("int64*", table))
    return kernel_call("app.kernels.cpu.pairs:widen_planes", operands, planes)


def cost(group: Group, context: PlanningContext, form: Form) -> float:
    """Seconds of the tiles as they are computed, whole; what is stored counts as some steps more."""
    if form.tiled:
        return _tiles_cost(group, context)
    wasted = 1.0
    widened = graph.nbytes(Inputs(group.anchor).b) if form.together == 2 and not form.narrow else 0
    if "Conv" in group.op:
        window = window_of(group)
        lanes = context.target.vector_lanes
        rows = -(-window.outputs // 4) * 4 / max(window.outputs, 1)
        rows *= -(-window.pixels // lanes) * lanes / max(window.pixels, 1)  # a register holds pixels
        pairs = -(-window.channels // form.together) * form.together / max(window.channels, 1)
        wasted = rows * pairs * (1 + 16 / max(window.depth, 1)) * (1 + 8 / max(window.outputs, 1))
    computed = flops(group) * wasted / (4.0 if form.dot else 2.0 if form.together == 2 else 2.4)
    efficiency = 0.65 if form.narrow else 0.7  # each load widens
    return group_roofline(group, context, computed, efficiency, total_bytes(group) + widened)


def _tiles_cost(group: Group, context: PlanningContext) -> float:
    """Tiles are whole; most of the time goes to what is gathered for them, and to what becomes of sums."""
    of = Inputs(group.anchor)
    if of.is_conv:
        window = window_of(group)
        m, n, depth = window.outputs, window.pixels, -(-window.channels // 4) * window.taps
        products = window.batch * window.groups
        gathered = products * depth * n * (window.taps > 1 or window.pixels != math.prod(window.size))
    else:
        product = matmul_geometry.product_of(of.a, of.b)
        m, n, depth, products = product.m, product.n, -(-product.k // 4), len(product.offsets)
        gathered = 0
    tile = tiles.TILE
    steps = products * math.prod(-(-size // tile) for size in (m, n, depth))
    computed = 2.0 * steps * tile**3 / TILES_RATE
    moved = GATHERING * gathered + ENDING * products * m * n + GROUPING * graph.elements(of.a)
    return group_roofline(group, context, computed + moved, 0.95)


PAIRS_FORM = Form("pairs", 2)
# For few rows, which take weights from memory as fast as it gives them.
BYTES_FORM = Form("bytes", 2, narrow=True)
FORMS = (PAIRS_FORM, Form("quads", 4), Form("dot", 4, dot=True), Form("tiles", 4, tiled=True))

# Operators, and how the names of their rows begin.
CONVOLUTIONS = {"ConvInteger": "conv_integer", "QLinearConv": "qlinear_conv"}
PRODUCTS = {"MatMulInteger": "matmul_integer", "QLinearMatMul": "qlinear_matmul"}


def rows(
    prefixes: Mapping[str, str],
    name: str,
    rejection: Rejection,
    lower: Lower,
    cost: Cost,
    inplace: Inplace = no_pairs,
    **more: Any,
) -> tuple[Implementation, ...]:
    """The rows of one way to compute these operators; where the output is empty, nothing is computed."""

    def unless_empty(group: Group, context: PlanningContext) -> tuple[Call, ...]:
        return lower(group, context) if graph.elements(group.outputs[0]) else ()

    return tuple(
        Implementation(f"{prefix}.{name}", op, "numba-cpu", rejection, unless_empty, cost, inplace, **more)
        for op, prefix in prefixes.items()
    )
