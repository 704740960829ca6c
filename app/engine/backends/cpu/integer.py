"""Rows of integer products: exact sums of 8-bit numbers less their zero points, and what follows them.

Activations are widened to pairs of int16 by a call of their own, constants offline; the sums
become what the group stores (a recipe: scale, bias, limit, quantize) while they are in cache.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking
from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import flops, roofline
from app.engine.operators import conv_geometry, epilogues, matmul_geometry
from app.engine.operators.elementwise import recipe_of
from app.kernels.cpu.codegen import tiles
from app.kernels.cpu.codegen.tiles import (
    BYTE_PAIRS,
    DOT,
    LEFT_UNSIGNED,
    PAIRED,
    PAIRS,
    QUADS,
    RIGHT_UNSIGNED,
    SPREAD_DOT,
    Shapes,
)
from app.kernels.cpu.integer_depthwise import ROWS as ROWS_APART
from app.kernels.cpu.integer_depthwise import SIZES as DEPTHWISE_SIZES
from app.kernels.cpu.integer_products import CONV_PLACES, CONV_SIZES, MATMUL_PLACES, MATMUL_SIZES
from app.kernels.expressions import Recipe, stored

Array = np.ndarray[Any, Any]

BYTES = ("int8", "uint8")
DEPTH = 256  # pairs: 16 columns of so many steps stay in the first cache
COLUMNS = 256  # pixels of a block, whose sums stay there too
ROWS = 24  # of sums that are finished at once
SUMS = 4096  # of a channel that are finished at once
MATMUL_ROWS = 96
MATMUL_PANELS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """What a recipe reads besides the sums, and at which place."""

    argument: Argument
    dtype: str
    place: str


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """How sums become the output: a recipe on input 0, or nothing where they are the output."""

    recipe: Recipe
    operands: tuple[Operand, ...]
    result: str

    @property
    def static(self) -> tuple[Recipe, tuple[tuple[str, str], ...], str]:
        """What the generator is told of it."""
        return self.recipe, tuple((o.place, o.dtype) for o in self.operands), self.result

    @property
    def arguments(self) -> tuple[tuple[str, Argument], ...]:
        """What the kernel takes besides, with its types."""
        return tuple((f"{stored(o.dtype)}*", o.argument) for o in self.operands)


class Inputs:
    """The operands of an integer product by their roles; scales and y's zero point only of QLinear*."""

    def __init__(self, node: ir.Node) -> None:
        self.linear = node.op_type.startswith("QLinear")
        places = range(8) if self.linear else (0, None, 2, 1, None, 3, None, None)
        found = [None if i is None else graph.input_at(node, i) for i in places]
        first, self.a_scale, self.a_zero, second, self.b_scale, self.b_zero, *last = found
        self.y_scale, self.y_zero = last
        assert first is not None
        assert second is not None
        self.a, self.b = first, second
        self.bias = graph.input_at(node, 8) if node.op_type == "QLinearConv" else None


def rejection(group: Group, _context: PlanningContext) -> str | None:
    """Why no integer product at all applies."""
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
    node, of = group.anchor, Inputs(group.anchor)
    is_conv = "Conv" in node.op_type
    for value in (of.a, of.b):
        kind = graph.dtype(value)
        if kind is None or kind.name not in BYTES:
            return f"value {value.name!r} is {kind}; this one takes {', '.join(BYTES)}"
    if group.epilogue and not is_conv and _has_vector(of):
        return "an operand is a vector, so the output has no rows and columns to speak of"
    rank = len(graph.static_shape(node.outputs[0])) - 2
    if is_conv and not 1 <= rank <= 3:
        return f"{rank} spatial axes; this one has 1 to 3"
    fixed = [of.b, of.b_zero] if is_conv else []
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
    finish = finish_of(group)
    return finish if isinstance(finish, str) else None


def finish_of(group: Group) -> Finish | str:
    """What becomes of the sums, or why it cannot be computed here."""
    (sums,) = group.anchor.outputs
    if group.op.startswith("QLinear"):
        return _requantized(group)
    if not group.epilogue:
        return Finish((), (), "int32")
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
    is_conv = "Conv" in group.op
    places = CONV_PLACES if is_conv else MATMUL_PLACES
    operands = []
    for operand in formula.operands[1:]:
        place = epilogues.place(operand.shape, shape, 1 if is_conv else -1)
        if place not in places:
            return f"operand {operand.value.name!r} of shape {operand.shape} varies along other axes"
        operands.append(Operand(operand.value, str(graph.dtype(operand.value)), place))
    return Finish(formula.recipe, tuple(operands), formula.results[0][1])


def _requantized(group: Group) -> Finish:
    """The sums as 8-bit numbers of the output's scale."""
    of = Inputs(group.anchor)
    kind = graph.dtype(group.outputs[0])
    assert kind is not None
    a, b, y = (graph.constant(v) for v in (of.a_scale, of.b_scale, of.y_scale))
    assert a is not None
    assert b is not None
    assert y is not None
    factors = a.reshape(-1).astype(np.float64) * b.reshape(-1) / y.reshape(-1)
    zero = graph.constant(of.y_zero)
    origin = np.zeros(1, np.float32) if zero is None else zero.reshape(1).astype(np.float32)
    limits = np.iinfo(kind)
    # One of both has as many elements as there are channels, or both have one.
    addends = np.zeros(1) if of.bias is None else _bias(of.bias) * factors
    recipe: Recipe = (
        ("Cast", (0,), ("float32",)),
        ("Mul", (4, 1), ()),
        ("Add", (5, 2), ()),
        ("Round", (6,), ()),
        ("Add", (7, 3), ()),
        ("Saturate", (8,), (float(limits.min), float(limits.max), kind.name)),
    )
    operands = [
        Operand(Constant(array.astype(np.float32)), "float32", "channel" if array.size > 1 else "scalar")
        for array in (factors, addends, origin)
    ]
    return Finish(recipe, tuple(operands), kind.name)


def _bias(value: ir.Value) -> Array:
    array = graph.constant(value)
    assert array is not None
    return array.reshape(-1)


def _has_vector(of: Inputs) -> bool:
    return min(len(graph.static_shape(v)) for v in (of.a, of.b)) < 2


@dataclass(frozen=True, slots=True)
class Form:
    """How products are taken: by steps of the reduction in one element, and whether added at once."""

    name: str
    together: int
    dot: bool = False
    narrow: bool = False  # pairs of the second operand lie in memory as bytes

    def dtype(self, unsigned: str, context: PlanningContext) -> str:
        """The type of an element; `unsigned` names the operand whose bytes are."""
        if self.together == 2:
            return BYTE_PAIRS if self.narrow else PAIRS
        if not self.dot:
            return unsigned
        target = context.target
        native = "avx512_vnni" in target.isa and target.vector_lanes in (8, 16)
        native |= "avx_vnni" in target.isa and target.vector_lanes == 8
        return unsigned + (DOT if native else SPREAD_DOT)

    def rejection(self, group: Group, context: PlanningContext) -> str | None:
        """Why it does not apply."""
        reason = rejection(group, context)
        if reason is not None or (self.together == 2 and not self.narrow):
            return reason
        if self.narrow:
            return _fours_rejection(group)
        if self.dot and "int8" not in context.target.precisions:
            return f"target {context.target.name!r} has no instruction that adds four products of bytes"
        return _fours_rejection(group) or (None if self.dot else _quads_rejection(group, context))


def _quads_rejection(group: Group, context: PlanningContext) -> str | None:
    """Why bytes cannot be multiplied in vectors, four at a time, without saturation."""
    # The instruction that each width of vectors needs.
    needed = {4: "ssse3", 8: "avx2", 16: "avx512bw"}[context.target.vector_lanes]
    if needed not in context.target.isa:
        return (
            f"the target has no {needed}, which multiplies vectors of {context.target.vector_lanes} * 4 bytes"
        )
    of = Inputs(group.anchor)
    is_conv = "Conv" in group.op
    shifted = less_zero(of.b, of.b_zero, 0 if is_conv else -1)
    steps = _weight_quads(shifted) if is_conv else tiles.pack_steps(shifted, 4)
    if not tiles.quads_fit(steps):
        return f"two products of {of.b.name!r} and an activation may add up to more than 16 bits"
    return None


def _fours_rejection(group: Group) -> str | None:
    """Why the second operand cannot be bytes, four steps of the reduction in one element."""
    of = Inputs(group.anchor)
    if not graph.is_constant(of.b) or (of.b_zero is not None and not graph.is_constant(of.b_zero)):
        return f"{of.b.name!r} changes between runs; this one looks at it offline"
    is_conv = "Conv" in group.op
    if not is_conv and _has_vector(of):
        return "an operand is a vector; this one takes matrices"
    shifted = less_zero(of.b, of.b_zero, 0 if is_conv else -1)
    if shifted.size and (shifted.min() < -128 or shifted.max() > 127):
        return f"{of.b.name!r} less its zero point does not fit int8"
    return None


def _weight_quads(shifted: Array) -> Array:
    outputs, channels = shifted.shape[:2]
    return tiles.pack_steps(shifted.reshape(outputs, channels, -1), 4)


def _shift(value: ir.Value) -> int:
    """What makes elements unsigned."""
    return 128 if graph.dtype(value) == np.int8 else 0


def _corrections(of: Inputs, sums: Array) -> tuple[tuple[KernelCall, ...], Argument]:
    """What a zero point adds to the sums of each output, and the call that computes it if it may change."""
    sums, shift = sums.astype(np.int32), _shift(of.a)
    zero = graph.constant(of.a_zero)
    if of.a_zero is None or zero is not None:
        origin = shift + (0 if zero is None else int(zero.reshape(-1)[0]))
        return (), Constant(-np.int32(origin) * sums, "")
    y = Workspace(max(sums.size, 1) * 4)
    pointer = f"{graph.dtype(of.a)}*"
    call = KernelCall(
        "app.kernels.cpu.pairs:corrections",
        (pointer, "int64", "int32*", "int32*"),
        (of.a_zero, shift, Constant(sums), y),
        sums.size,
    )
    return (call,), y


def zero_point(value: ir.Value | None, like: ir.Value) -> Argument:
    """A zero point as an operand; one that is left out is zero."""
    return Constant(np.zeros(1, graph.dtype(like))) if value is None else value


def less_zero(value: ir.Value, zero: ir.Value | None, axis: int) -> Array:
    """A constant minus its zero point, which may be one per position along an axis."""
    array, offset = graph.constant(value), graph.constant(zero)
    assert array is not None
    if offset is None:
        return array.astype(np.int16)
    shape = [1] * array.ndim
    if offset.size > 1:
        shape[axis] = offset.size
    return array.astype(np.int16) - offset.astype(np.int16).reshape(shape)


def _lower_matmul(group: Group, context: PlanningContext, form: Form) -> tuple[KernelCall, ...]:
    together = form.together
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    of, finish = Inputs(group.anchor), finish_of(group)
    assert not isinstance(finish, str)
    product = matmul_geometry.product_of(of.a, of.b)
    lanes, shapes = context.target.vector_lanes, _SHAPES[together]
    width = tiles.columns_of(PAIRS, lanes, shapes)
    n, k = product.n, -(-product.k // together)
    first, a = _rows(of, product.k, together)
    second, b = _columns(of, product, width, form)
    third: tuple[tuple[KernelCall, ...], Argument] = ((), Constant(np.zeros(1, np.int32)))
    if together == 4:
        third = _corrections(of, less_zero(of.b, of.b_zero, -1).sum(-2))

    size = -(-n // width) * width * k
    offsets = [(i // max(product.k, 1) * k, j // max(product.k * n, 1) * size) for i, j in product.offsets]
    operands = Product(a, b, third[1], y, product.m, n, k, offsets)
    return *first, *second, *third[0], product_call(operands, finish, form, context)


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """Operands of a product as the kernel reads them; k counts elements of several steps each."""

    a: Argument
    b: Argument
    corrections: Argument
    y: Argument
    m: int
    n: int
    k: int
    offsets: Sequence[tuple[int, int]]  # elements, where a and b of each batch begin


def product_call(of: Product, finish: Finish, form: Form, context: PlanningContext) -> KernelCall:
    """The call of `emit_matmul`."""
    lanes, shapes = context.target.vector_lanes, _SHAPES[form.together]
    width = tiles.columns_of(PAIRS, lanes, shapes)
    m, n, k, offsets = of.m, of.n, of.k, of.offsets
    block_m = blocking.balanced(m, MATMUL_ROWS, shapes[lanes][0])
    block_n = blocking.balanced(n, MATMUL_PANELS * width, width)
    while block_n > width and len(offsets) * -(-m // block_m) * -(-n // block_n) < 4 * context.threads:
        block_n -= width
    block_k = max(k, 1) if m <= shapes[lanes][0] else blocking.balanced(k, DEPTH, 1)
    sums = block_m * block_n if k > block_k or finish.recipe else 0
    spare = tiles.spare(PAIRS, lanes, shapes)
    numbers = (m, n, k, block_m, block_n, block_k, sums, sums + spare)
    operands: tuple[tuple[str, Argument], ...] = (
        ("int32*", of.a),
        (f"{tiles.right_element(form.dtype(LEFT_UNSIGNED, context))}*", of.b),
        ("int32*", of.corrections),
        (f"{stored(finish.result)}*", of.y),
        ("int64*", Constant(np.array(offsets, np.int64))),
        ("int64*", size_table(MATMUL_SIZES, numbers)),
        ("int32*", Workspace((sums + spare) * 4, per_thread=True)),
        *finish.arguments,
    )
    return KernelCall(
        "app.kernels.cpu.integer_products:emit_matmul",
        tuple(t for t, _ in operands),
        tuple(x for _, x in operands),
        len(offsets) * -(-m // block_m) * -(-n // block_n),
        static=(form.dtype(LEFT_UNSIGNED, context), lanes, *finish.static),
        takes_thread=True,
    )


_SHAPES: dict[int, Shapes] = {2: PAIRED, 4: QUADS}  # of tiles, by the steps that are taken together


def _rows(of: Inputs, k: int, together: int) -> tuple[tuple[KernelCall, ...], Argument]:
    """The first operand with several steps in one element; bytes may be that already."""
    kind = graph.dtype(of.a)
    assert kind is not None
    if together == 4 and kind == np.uint8 and k % 4 == 0:
        return (), of.a
    rows = graph.elements(of.a) // max(k, 1)
    y = Workspace(max(rows * -(-k // together), 1) * 4)
    pointer = f"{kind.name}*"
    if together == 4:
        types = (pointer, "int64", "uint8*", "int64")
        return (KernelCall("app.kernels.cpu.pairs:group_rows", types, (of.a, _shift(of.a), y, k), rows),), y
    types = (pointer, pointer, "int16*", "int64")
    arguments = (of.a, zero_point(of.a_zero, of.a), y, k)
    return (KernelCall("app.kernels.cpu.pairs:widen_rows", types, arguments, rows),), y


def _columns(
    of: Inputs, product: matmul_geometry.Product, width: int, form: Form
) -> tuple[tuple[KernelCall, ...], Argument]:
    """The second operand as panels of columns, and the call that packs one that changes between runs."""
    fixed = graph.is_constant(of.b) and (of.b_zero is None or graph.is_constant(of.b_zero))
    if fixed:
        shifted = less_zero(of.b, of.b_zero, -1)
        steps = tiles.pack_steps(matmul_geometry.matrices(product, shifted), form.together)
        packed = tiles.pack_columns(steps, width)
        return (), Constant(tiles.narrowed(packed) if form.narrow else packed, of.b.name or "")
    kind = graph.dtype(of.b)
    assert kind is not None
    batches = max(graph.elements(of.b) // max(product.k * product.n, 1), 1)
    panels = batches * -(-product.n // width)
    y = Workspace(max(panels * width * -(-product.k // 2), 1) * 4)
    many = of.b_zero is not None and graph.elements(of.b_zero) > 1
    pointer = f"{kind.name}*"
    call = KernelCall(
        "app.kernels.cpu.pairs:widen_panels",
        (pointer, pointer, "int64", "int16*", "int64", "int64", "int64"),
        (of.b, zero_point(of.b_zero, of.b), int(many), y, product.k, product.n, width),
        panels,
    )
    return (call,), y


def size_table(names: tuple[str, ...], numbers: tuple[int, ...]) -> Constant:
    """The sizes that a kernel reads, by their names."""
    assert len(names) == len(numbers)
    return Constant(np.array(numbers, np.int64))


def _lower_conv(group: Group, context: PlanningContext, form: Form) -> tuple[KernelCall, ...]:
    together = form.together
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    of, finish = Inputs(group.anchor), finish_of(group)
    assert not isinstance(finish, str)
    window = conv_geometry.of_conv(group, of.b).flat()
    lanes, shapes = context.target.vector_lanes, _SHAPES[together]
    width = tiles.columns_of(PAIRS, lanes, shapes)
    before = [max(-min(o), 0) for o in window.offsets]
    whole = [
        p + max(s, (n - 1) * t + max(o) + 1)
        for p, s, n, t, o in zip(before, window.size, window.out, window.stride, window.offsets)
    ]
    pairs = -(-window.channels // together)
    plane = blocking.panel_row(math.prod(whole), 4)
    planes = window.batch * window.groups * pairs
    x = Workspace((planes * plane + 4 * width) * 4)  # a ragged tile reads beyond the last plane
    kind = graph.dtype(of.a)
    assert kind is not None
    pointer = f"{kind.name}*"
    table = Constant(np.array((window.channels, *window.size, *whole, *before, plane), np.int64))
    if together == 4:
        gather = KernelCall(
            "app.kernels.cpu.pairs:group_planes",
            (pointer, pointer, "int64", "uint8*", "int64*"),
            (of.a, zero_point(of.a_zero, of.a), _shift(of.a), x, table),
            planes,
        )
    else:
        gather = widening_call(of, x, table, planes)
    correct: tuple[tuple[KernelCall, ...], Argument] = ((), Constant(np.zeros(1, np.int32)))
    if together == 4:
        weights = less_zero(of.b, of.b_zero, 0)
        correct = _corrections(of, weights.reshape(weights.shape[0], -1).sum(1))

    layer, line = whole[1] * whole[2], whole[2]
    taps = [
        (o + p) * layer + (q + r) * line + s + t
        for o, p, q, r, s, t in (
            (a, before[0], b, before[1], c, before[2])
            for a in window.offsets[0]
            for b in window.offsets[1]
            for c in window.offsets[2]
        )
    ]
    depth = pairs * window.taps
    gathers = len(taps) > 1 or window.stride != (1, 1, 1) or tuple(whole) != window.out
    block_n = blocking.balanced(window.pixels, COLUMNS, width)
    block_k = blocking.balanced(depth, DEPTH, 1)
    block_m = blocking.balanced(window.outputs, ROWS, shapes[lanes][0])
    units = window.batch * window.groups * -(-window.pixels // block_n)
    part = window.outputs
    if units < 4 * context.threads and context.threads > 1:
        part = blocking.balanced(window.outputs, -(-window.outputs // context.threads), block_m)
    sums_row = blocking.panel_row(block_n, 4)
    sums = sums_row * (part + block_m if depth > block_k else block_m)
    spare = tiles.spare(PAIRS, lanes, shapes)
    panel_row = blocking.panel_row(block_n, 4)
    work = sums + spare + gathers * (block_k + 1) * panel_row
    numbers = (
        gathers, pairs, plane, layer, line, *window.out[1:], *window.stride, len(taps), window.groups,
        window.outputs, window.pixels, block_m, part, block_n, block_k, panel_row, sums_row, sums, spare,
        work,
    )  # fmt: skip
    operands: tuple[tuple[str, Argument], ...] = (
        ("int32*", x),
        ("int32*", _panels(of, window, part, block_m, lanes, together)),
        ("int32*", correct[1]),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(taps, np.int64))),
        ("int64*", size_table(CONV_SIZES, numbers)),
        ("int32*", Workspace(work * 4, per_thread=True)),
        *finish.arguments,
    )
    call = KernelCall(
        "app.kernels.cpu.integer_products:emit_conv",
        tuple(t for t, _ in operands),
        tuple(a for _, a in operands),
        units * -(-window.outputs // part),
        static=(form.dtype(RIGHT_UNSIGNED, context), lanes, *finish.static),
        takes_thread=True,
    )
    return gather, *correct[0], call


def widening_call(of: Inputs, x: Workspace, table: Constant, planes: int) -> KernelCall:
    """The call of `pairs.widen_planes` on the first operand."""
    pointer = f"{graph.dtype(of.a)}*"
    return KernelCall(
        "app.kernels.cpu.pairs:widen_planes",
        (pointer, pointer, "int16*", "int64*"),
        (of.a, zero_point(of.a_zero, of.a), x, table),
        planes,
    )


def _single_channels(group: Group, context: PlanningContext) -> str | None:
    """Why a convolution is none of one channel to one, along two axes at most."""
    reason = rejection(group, context)
    if reason is not None:
        return reason
    window = conv_geometry.of_conv(group, Inputs(group.anchor).b)
    if (window.channels, window.outputs) != (1, 1):
        return f"{window.channels} channels to {window.outputs} in a group; this one takes 1 to 1"
    if (window.size[0], window.out[0], window.offsets[0]) != (1, 1, (0,)):
        return "three spatial axes; this one has two"
    return None


def _lower_depthwise(group: Group, context: PlanningContext) -> tuple[KernelCall, ...]:
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    of, finish = Inputs(group.anchor), finish_of(group)
    assert not isinstance(finish, str)
    window = conv_geometry.of_conv(group, of.b)
    lanes = context.target.vector_lanes
    (_, h, w), (_, rows, columns), (_, stride_h, stride_w) = window.size, window.out, window.stride
    down, across = window.offsets[1:]
    top, left = max(-min(down), 0), max(-min(across), 0)
    distance = down[1] - down[0] if len(down) > 1 else 1
    # Tiles are whole: they read rows and columns beyond the last.
    lines = (-(-rows // ROWS_APART) * ROWS_APART - 1) * stride_h + max(down) + top + 1
    line = -(-columns // lanes) * lanes + (max(across) + left) // stride_w + 1
    row = line * stride_w
    phase = -(-lines * line // lanes) * lanes
    offsets = [
        (c + left) % stride_w * phase + (r + top) * line + (c + left) // stride_w
        for r in down[::2]
        for c in across
    ]
    shifted = less_zero(of.b, of.b_zero, 0).reshape(-1, len(down), len(across))
    weights = tiles.pack_steps(shifted, 2).reshape(window.groups, -1)
    block = max(min(SUMS // max(columns, 1), rows) // ROWS_APART * ROWS_APART, min(ROWS_APART, rows))
    plane = phase * stride_w
    border = plane + distance * row
    sums = block * columns + lanes
    numbers = (
        window.groups, h, w, top, left, lines, row, phase, distance, stride_h, stride_w, rows, columns,
        len(offsets), block, plane, plane + sums, border,
    )  # fmt: skip
    kind = graph.dtype(of.a)
    assert kind is not None
    pointer = f"{kind.name}*"
    operands: tuple[tuple[str, Argument], ...] = (
        (pointer, of.a),
        (pointer, zero_point(of.a_zero, of.a)),
        ("int32*", Constant(weights, of.b.name or "")),
        (f"{stored(finish.result)}*", y),
        ("int64*", Constant(np.array(offsets, np.int64))),
        ("int64*", size_table(DEPTHWISE_SIZES, numbers)),
        (pointer, Workspace(border, per_thread=True)),
        ("int32*", Workspace((plane + sums) * 4, per_thread=True)),
        *finish.arguments,
    )
    call = KernelCall(
        "app.kernels.cpu.integer_depthwise:emit",
        tuple(t for t, _ in operands),
        tuple(a for _, a in operands),
        window.batch * window.groups,
        static=(kind.name, lanes, *finish.static),
        takes_thread=True,
    )
    return (call,)


def _panels(
    of: Inputs, window: conv_geometry.Window, part: int, block: int, lanes: int, together: int
) -> Constant:
    """The weights as tiles read them: [elements of channels * taps][rows] for every group of rows."""
    shifted = less_zero(of.b, of.b_zero, 0).reshape(window.groups * window.outputs, window.channels, -1)
    rows = tiles.pack_steps(shifted, together).reshape(window.groups, window.outputs, -1)
    panels = [
        tiles.pack_rows(matrix[first : first + part], block, lanes, _SHAPES[together])
        for matrix in rows
        for first in range(0, window.outputs, part)
    ]
    return Constant(np.concatenate(panels), of.b.name or "")


def _depthwise_cost(group: Group, context: PlanningContext) -> float:
    """Bound by loads: one for every two taps."""
    work = sum(graph.elements(v) for v in group.anchor.outputs) * graph.elements(Inputs(group.anchor).b)
    per_channel = work / max(graph.static_shape(group.anchor.outputs[0])[1], 1)
    nbytes = sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
    return roofline(
        context.target, flops=2 * per_channel, nbytes=4 * nbytes, efficiency=0.4, threads=context.threads
    )


def _cost(group: Group, context: PlanningContext, form: Form) -> float:
    """Of the tiles as they are computed, whole; what is stored counts as some steps more."""
    wasted = 1.0
    widened = graph.nbytes(Inputs(group.anchor).b) if form.together == 2 and not form.narrow else 0
    if "Conv" in group.op:
        window = conv_geometry.of_conv(group, Inputs(group.anchor).b)
        rows = -(-window.outputs // 4) * 4 / max(window.outputs, 1)
        pairs = -(-window.channels // form.together) * form.together / max(window.channels, 1)
        wasted = rows * pairs * (1 + 16 / max(window.depth, 1)) * (1 + 8 / max(window.outputs, 1))
    return roofline(
        context.target,
        flops=flops(group) * wasted / (4.0 if form.dot else 2.0 if form.together == 2 else 2.4),
        nbytes=sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)) + widened,
        efficiency=0.65 if form.narrow else 0.7,  # each load widens
        threads=context.threads,
    )


PAIRS_FORM = Form("pairs", 2)
# For few rows, which take weights from memory as fast as it gives them.
_BYTES = Form("bytes", 2, narrow=True)
FORMS = (PAIRS_FORM, Form("quads", 4), Form("dot", 4, dot=True))

IMPLEMENTATIONS = (
    *(
        Implementation(
            f"{name}.{form.name}",
            op,
            "numba-cpu",
            form.rejection,
            partial(lower, form=form),
            partial(_cost, form=form),
        )
        for name, op, lower in (
            ("matmul_integer", "MatMulInteger", _lower_matmul),
            ("qlinear_matmul", "QLinearMatMul", _lower_matmul),
            ("conv_integer", "ConvInteger", _lower_conv),
            ("qlinear_conv", "QLinearConv", _lower_conv),
        )
        for form in FORMS
    ),
    *(
        Implementation(
            f"{name}.bytes",
            op,
            "numba-cpu",
            _BYTES.rejection,
            partial(_lower_matmul, form=_BYTES),
            partial(_cost, form=_BYTES),
        )
        for name, op in (("matmul_integer", "MatMulInteger"), ("qlinear_matmul", "QLinearMatMul"))
    ),
    *(
        Implementation(
            f"{name}.depthwise", op, "numba-cpu", _single_channels, _lower_depthwise, _depthwise_cost
        )
        for name, op in (("conv_integer", "ConvInteger"), ("qlinear_conv", "QLinearConv"))
    ),
)
