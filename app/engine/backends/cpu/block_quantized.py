"""Rows of com.microsoft::MatMulNBits: weights of 4 or 8 bits that stay so in memory.

Activations are rounded to int8 where the node permits it and zero points are integers (accuracy level 4, as
onnxruntime rounds them), else to three digits of 8 bits, which keep what float32 does.
"""

from typing import Any

import numpy as np

from app.engine.backends.cpu import integer
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, size_operand, typed_call
from app.engine.backends.cpu.rows import group_roofline, total_bytes
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.operators import block_quantized as meaning
from app.engine.operators.block_quantized import GROUPS, SCALES, ZEROS, B, Form, form_of
from app.engine.operators.operands import data, fixed_inputs
from app.kernels.cpu import block_quantized as kernels
from app.kernels.cpu.codegen.tiles import BOTH_SIGNED, DOT, LEFT_UNSIGNED, SPREAD_DOT

Array = np.ndarray[Any, Any]

EXACT_DIGITS = 3  # of activations: 21 bits below the largest of a block
# Rows and panels of a tile by digits: the sums that 16 registers hold, or that LLVM moves outside the loop.
TILES = {1: (4, 2), EXACT_DIGITS: (4, 1)}
PANELS = 4  # of a unit of one row
ROWS = 64  # of a unit: their digits stay in the second cache
RATE = 4.0  # products of bytes in the time of one of float32


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    for value in (*group.inputs, *group.outputs):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape"
    if graph.dtype(data(node)) != np.float32:
        return f"activations of dtype {graph.dtype(data(node))}, this kernel computes float32"
    reason = fixed_inputs(node, (B, SCALES, ZEROS))
    if reason:
        return reason
    form = form_of(node)
    if form.bits not in meaning.BITS or form.block not in meaning.BLOCKS:
        taken = f"{meaning.BITS} bits in blocks of {meaning.BLOCKS}"
        return f"{form.bits} bits in blocks of {form.block}; this one takes {taken}"
    order = graph.input_at(node, GROUPS)
    if order is not None:
        found = graph.constant(order)
        if found is None or not np.array_equal(found, np.arange(found.size) // form.block):
            return f"{order.name!r} gives elements of the reduction to other blocks than their own"
    if graph.input_at(node, meaning.BIAS) is not None:
        return "has a bias, which is an Add of its own here"
    finish = integer.after_sums(group, kernels.PLACES)
    if isinstance(finish, str):
        return finish
    return (
        None if finish.result == "float32" else f"the result is {finish.result}, this kernel stores float32"
    )


def _byte_products(form: Form, context: PlanningContext) -> str:
    """How vectors of bytes are multiplied; weights of 4 bits never saturate sums of two products."""
    target = context.target
    if integer.has_dot(target):
        return LEFT_UNSIGNED + DOT
    if form.bits == 4 and integer.has_signed_dot(target):
        return BOTH_SIGNED + DOT
    needed = {4: "ssse3", 8: "avx2", 16: "avx512bw"}[target.vector_lanes]
    return LEFT_UNSIGNED if form.bits == 4 and needed in target.isa else LEFT_UNSIGNED + SPREAD_DOT


def _lower(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    (y,) = group.outputs
    if graph.elements(y) == 0:
        return ()
    form, lanes = form_of(group.anchor), context.target.vector_lanes
    q, scales = (graph.array(graph.input_at(group.anchor, i)) for i in (B, SCALES))
    zeros = graph.constant(graph.input_at(group.anchor, ZEROS))
    kind = kernels.NO_ZEROS
    if zeros is not None:
        kind = kernels.BYTE_ZEROS if zeros.dtype == np.uint8 else kernels.FLOAT_ZEROS

    def panels() -> Array:
        weights = meaning.weights_of(form, q, scales, zeros)
        return kernels.pack(weights.q, weights.scales, weights.zeros, form.bits, lanes)

    digits = _digits(form, zeros)
    m = graph.elements(data(group.anchor)) // form.k
    first, rounded = _rounding(group, form, digits, kind, lanes)
    rows, wide = TILES[digits]
    unit, unit_rows = max(wide, PANELS if m == 1 else 0), min(m, ROWS)
    finish = integer.after_sums(group, kernels.PLACES)
    assert not isinstance(finish, str)
    work = unit * unit_rows * lanes + kernels.BUFFER
    sizes = kernels.BlockSizes(
        m=m,
        n=form.n,
        blocks=form.blocks,
        x_row=form.blocks * kernels.words_of(form.block, digits),
        b_panel=kernels.panel_words(form.blocks, form.block, form.bits, kind, lanes),
        unit_panels=unit,
        unit_rows=unit_rows,
        work_step=work,
    )
    weights = graph.operand(group.anchor, B)
    parameters = (
        _byte_products(form, context),
        form.bits,
        kernels.lines_of(form.block, form.bits),
        digits,
        kind,
    )
    second = typed_call(
        "app.kernels.cpu.block_quantized:emit",
        (
            ("int32*", rounded),
            ("int32*", Constant(panels, weights.name or "")),
            ("float32*", y),
            size_operand(sizes),
            ("float32*", Workspace(4 * work, per_thread=True)),
            *finish.arguments,
        ),
        -(-form.n // (unit * lanes)) * -(-m // unit_rows),
        static=(parameters, (lanes, rows, wide), *finish.static[:2]),
    )
    return first, second


def _digits(form: Form, zeros: Array | None) -> int:
    """Digits of an activation."""
    return 1 if form.rounds and (zeros is None or zeros.dtype == np.uint8) else EXACT_DIGITS


def _rounding(group: Group, form: Form, digits: int, kind: str, lanes: int) -> tuple[KernelCall, Workspace]:
    """The call that rounds activations, and where it puts them."""
    units = graph.elements(data(group.anchor)) // form.k * form.blocks
    rounded = Workspace(4 * units * kernels.words_of(form.block, digits))
    origin = form.default_zero if kind == kernels.NO_ZEROS else 1
    operands: Operands = (
        *of_type("float32*", data(group.anchor)),
        ("int32*", rounded),
        *(form.k, form.block, origin),
    )
    call = kernel_call("app.kernels.cpu.block_quantized:emit_rounding", operands, units, (digits, lanes))
    return call, rounded


def _cost(group: Group, context: PlanningContext) -> float:
    form = form_of(group.anchor)
    m = graph.elements(data(group.anchor)) // max(form.k, 1)
    digits = _digits(form, graph.constant(graph.input_at(group.anchor, ZEROS)))
    computed = 2.0 * m * form.n * form.k * digits / RATE
    return context.target.launch + group_roofline(group, context, computed, 0.8, total_bytes(group))


IMPLEMENTATIONS = (
    Implementation(
        "matmul_nbits.blocks", "MatMulNBits", "numba-cpu", _rejection, _lower, _cost, domain=MICROSOFT
    ),
)
