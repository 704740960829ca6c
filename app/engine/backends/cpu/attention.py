"""Rows of attention, float32: the operator, with key-value cache, or the chain of nodes that spells it."""

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.calls import size_operand, typed_call
from app.engine.backends.cpu.strided import calls
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall, Workspace
from app.engine.core.group import ATTENTION, Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators import attention_pattern
from app.engine.operators.attention_pattern import (
    LENGTHS,
    MASK,
    PAST_K,
    PAST_V,
    PRESENT_K,
    PRESENT_V,
    SCORES,
    Core,
    K,
    Operand,
    Q,
    V,
    heads,
    mask_of,
)
from app.engine.operators.operands import data, group_rejection
from app.engine.operators.strides import StridedCopy, strides_of
from app.kernels.cpu.attention import ADDITIVE, BOOLEAN, AttentionRowsSizes
from app.kernels.cpu.attention_blocks import TILES, AttentionBlocksSizes
from app.kernels.cpu.codegen import tiles

POINTER = "float32*"
FLOAT64 = 11  # as ONNX numbers element types
ROWS_EFFICIENCY = 0.15  # of peak arithmetic: dot products and rows of values, one query at a time
BLOCKS_EFFICIENCY = 0.7  # two products of small tiles
EXPONENTIAL = 30  # operations that a score takes beside the products
PACKED = 8  # the same of an element of keys and values
BLOCK_KEYS = 512  # whose packed elements stay in the second cache, with the scores
SCORE_BYTES = 128 * 1024  # of a block of scores
LARGEST_BLOCK = 96  # queries


def _is_node(group: Group) -> bool:
    return group.anchor.op_type == ATTENTION


def _rejection(group: Group) -> str | None:
    """Reason why no kernel of this kind applies."""
    if not _is_node(group):
        core = attention_pattern.read(group)
        return core if isinstance(core, str) else _wrong_type(group)
    reason = group_rejection(group)
    if reason is None and graph.attribute(group.anchor, "softmax_precision", 1) == FLOAT64:
        return "softmax in double precision"
    return reason or _wrong_type(group)


def _wrong_type(group: Group) -> str | None:
    if _is_node(group):
        values, mask = [graph.input_at(group.anchor, i) for i in (Q, K, V, PAST_K, PAST_V)], None
        mask = graph.input_at(group.anchor, MASK)
    else:
        core = attention_pattern.read(group)
        assert not isinstance(core, str)
        values = [o.value for o in (core.q, core.k, core.v) if isinstance(o.value, ir.Value)]
        mask = core.mask.value if core.mask is not None and isinstance(core.mask.value, ir.Value) else None
    for value in values:
        if value is not None and str(graph.dtype(value)) != "float32":
            return f"value {value.name!r} is {graph.dtype(value)}, this kernel computes float32"
    if mask is not None and str(graph.dtype(mask)) not in ("bool", "float32"):
        return f"mask of dtype {graph.dtype(mask)}, expected bool or float32"
    return None


def _cached(
    group: Group, fresh: Operand, past: ir.Value | None, position: int
) -> tuple[tuple[Call, ...], Operand]:
    """The calls that put new keys or values behind the old ones, and where and how they then lie."""
    outputs = group.anchor.outputs
    present = outputs[position] if position < len(outputs) and outputs[position] in group.outputs else None
    if past is None and present is None:
        return (), fresh
    old = 0 if past is None else graph.static_shape(past)[2]
    batch, heads, length, width = fresh.shape
    shape = (batch, heads, old + length, width)
    target: Argument = Workspace(4 * math.prod(shape)) if present is None else present
    sy = strides_of(shape)
    made = calls(StridedCopy(fresh.shape, fresh.strides, sy, y0=old * width), 4, fresh.value, target)
    if past is not None:
        sizes = graph.static_shape(past)
        made = (*calls(StridedCopy(sizes, strides_of(sizes), sy), 4, past, target), *made)
    return made, Operand(target, 0, shape, sy)


def _of_node(group: Group) -> tuple[tuple[Call, ...], Core]:
    """An Attention operator, and the calls that prepare its keys and values."""
    node = group.anchor
    fresh_k, fresh_v = graph.operand(node, K), graph.operand(node, V)
    q = heads(data(node), node, "q_num_heads")
    old = graph.input_at(node, PAST_K)
    key_calls, k = _cached(group, heads(fresh_k, node, "kv_num_heads"), old, PRESENT_K)
    value_calls, v = _cached(
        group, heads(fresh_v, node, "kv_num_heads"), graph.input_at(node, PAST_V), PRESENT_V
    )
    y = heads(node.outputs[0], node, "q_num_heads")
    if y.value not in group.outputs:
        y = replace(y, value=Workspace(graph.nbytes(node.outputs[0])))
    core = Core(
        q,
        k,
        v,
        y,
        mask_of(graph.input_at(node, MASK)),
        graph.attribute(node, "scale", 1.0 / math.sqrt(max(q.shape[3], 1))),
        bool(graph.attribute(node, "is_causal", 0)),
        0 if old is None else graph.static_shape(old)[2],
        zero=True,
    )
    return (*key_calls, *value_calls), core


def _core(group: Group) -> tuple[tuple[Call, ...], Core]:
    if _is_node(group):
        return _of_node(group)
    core = attention_pattern.read(group)
    assert not isinstance(core, str)
    return (), core


def _rows_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _rejection(group)
    if reason is None:
        _, core = _core(group)
        apart = [o for o in (core.q, core.k, core.v, core.y) if o.strides[3] != 1 and o.shape[3] > 1]
        if apart:
            return "elements of a row lie apart"
    return reason


def _rows(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    before, core = _core(group)
    node = group.anchor
    lengths = graph.input_at(node, LENGTHS) if _is_node(group) else None
    batch, heads, rows, _ = core.q.shape
    keys = core.v.shape[2]
    softcap = graph.attribute(node, "softcap", 0.0) if _is_node(group) else 0.0
    scores = node.outputs[SCORES] if _is_node(group) and len(node.outputs) > SCORES else None
    scores = scores if scores in group.outputs else None
    work = Workspace(4 * max(keys, 1), per_thread=True)
    mask = core.mask
    sizes = AttentionRowsSizes(
        **_strides(core),
        left=graph.attribute(node, "left_window_size", -1),
        right=graph.attribute(node, "right_window_size", -1),
        external=lengths is not None,
        shown=-1 if scores is None else graph.attribute(node, "qk_matmul_output_mode", 0),
    )
    call = KernelCall(
        "app.kernels.cpu.attention:attention",
        (
            *[POINTER] * 3,
            POINTER if mask is None else f"{_dtype(mask)}*",
            "int64*",
            *[POINTER] * 3,
            "int64*",
            POINTER,
        ),
        (
            core.q.value,
            core.k.value,
            core.v.value,
            Constant(np.zeros(1, np.float32)) if mask is None else mask.value,
            Constant(np.full(max(batch, 1), keys, np.int64)) if lengths is None else lengths,
            Constant(np.array([core.scale, softcap], np.float32)),
            core.y.value,
            work if scores is None else scores,
            Constant(sizes.array()),
            work,
        ),
        units=batch * heads * rows,
        takes_thread=True,
    )
    return (*before, call)


def _dtype(mask: Operand) -> str:
    assert isinstance(mask.value, ir.Value)
    return str(graph.dtype(mask.value))


def _blocks_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _rejection(group)
    if reason is not None:
        return reason
    node = group.anchor
    if _is_node(group):
        if graph.input_at(node, LENGTHS) is not None:
            return "keys are of lengths that are known only when the graph runs"
        if len(node.outputs) > SCORES and node.outputs[SCORES] in group.outputs:
            return "scores are an output, here they stay in cache"
        if graph.attribute(node, "softcap", 0.0):
            return "scores are capped"
        if any(graph.attribute(node, f"{side}_window_size", -1) >= 0 for side in ("left", "right")):
            return "queries see a window of keys"
    _, core = _core(group)
    if core.y.strides[3] != 1 and core.y.shape[3] > 1:
        return "elements of a row of the output lie apart"
    return None


def _blocks(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    before, core = _core(group)
    batch, heads, rows, _ = core.q.shape
    if 0 in (batch, heads, rows, core.v.shape[3]):
        return before
    mask, sizes = core.mask, _sizes(core, context)
    dtype = "float32" if mask is None else _dtype(mask)
    call = typed_call(
        "app.kernels.cpu.attention_blocks:emit",
        (
            (POINTER, core.q.value),
            (POINTER, core.k.value),
            (POINTER, core.v.value),
            (f"{dtype}*", Constant(np.zeros(1, np.float32)) if mask is None else mask.value),
            (POINTER, core.y.value),
            (POINTER, Constant(np.array([core.scale, 1], np.float32))),
            size_operand(sizes),
            (POINTER, Workspace(4 * sizes.work_step, per_thread=True)),
        ),
        batch * heads * sizes.parts,
        (context.target.vector_lanes, dtype),
    )
    return (*before, call)


def _strides(core: Core) -> dict[str, int]:
    """The fields of AttentionSizes."""
    _, heads, rows, depth = core.q.shape
    keys, width = core.v.shape[2:]
    mask = core.mask
    masked = (0,) * 5 if mask is None else (mask.start, *mask.strides)
    return {
        "heads": heads,
        "group": max(heads // max(core.k.shape[1], 1), 1),
        "rows": rows,
        "keys": keys,
        "depth": depth,
        "width": width,
        **{
            f"{name}_{axis}": n
            for name, o in (("q", core.q), ("k", core.k), ("v", core.v))
            for axis, n in zip(("at", *"bhsd"), (o.start, *o.strides))
        },
        **dict(zip((f"y_{axis}" for axis in ("at", *"bhs")), (core.y.start, *core.y.strides[:3]))),
        "masked": 0 if mask is None else BOOLEAN if _dtype(mask) == "bool" else ADDITIVE,
        **dict(zip((f"mask_{axis}" for axis in ("at", *"bhqk")), masked)),
        "mask_length": keys if mask is None else mask.shape[3],
        "causal": core.causal,
        "zero": core.zero,
        "past": core.past,
    }


def _sizes(core: Core, context: PlanningContext) -> AttentionBlocksSizes:
    batch, heads, rows, depth = core.q.shape
    keys, width = core.v.shape[2:]
    lanes = context.target.vector_lanes
    columns = tiles.columns_of("float32", lanes, TILES)
    block_keys = blocking.balanced(max(keys, 1), BLOCK_KEYS, columns)
    parts = 1
    while (
        batch * heads * parts < 2 * context.threads
        and parts < context.threads
        and rows > parts * TILES[lanes][0]
    ):
        parts += 1
    part_rows = -(-rows // parts)
    most = max(min(SCORE_BYTES // (4 * block_keys), LARGEST_BLOCK), 1)
    block_rows = blocking.balanced(part_rows, most, TILES[lanes][0])

    def lines(elements: int) -> int:
        return -(-elements // 16) * 16

    areas = {
        "spare_size": tiles.spare("float32", lanes, TILES),
        "keys_size": lines(block_keys * max(depth, 1) + lanes),
        "values_size": lines(-(-width // columns) * columns * block_keys + lanes),
        "biased_size": lines(block_rows * block_keys),
    }
    return AttentionBlocksSizes(
        **_strides(core),
        parts=parts,
        part_rows=part_rows,
        block_rows=block_rows,
        block_keys=block_keys,
        **areas,
        work_step=sum(areas.values()) + lines(block_rows * block_keys + 2 * part_rows),
    )


def _products(core: Core) -> float:
    """Operations of the two products."""
    batch, heads, rows, depth = core.q.shape
    keys, width = core.v.shape[2:]
    return 2.0 * batch * heads * rows * keys * (depth + width)


def _nbytes(group: Group) -> float:
    return float(sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)))


def _rows_cost(group: Group, context: PlanningContext) -> float:
    flops = _products(_core(group)[1])
    return roofline(
        context.target,
        flops=flops,
        nbytes=_nbytes(group),
        efficiency=ROWS_EFFICIENCY,
        threads=context.threads,
    )


def _blocks_cost(group: Group, context: PlanningContext) -> float:
    core = _core(group)[1]
    batch, heads, rows, depth = core.q.shape
    keys, width = core.v.shape[2:]
    other = batch * heads * keys * (EXPONENTIAL * rows + PACKED * (depth + width))
    return roofline(
        context.target,
        flops=_products(core) + other,
        nbytes=_nbytes(group),
        efficiency=BLOCKS_EFFICIENCY,
        threads=context.threads,
    )


IMPLEMENTATIONS = (
    Implementation("attention.rows", ATTENTION, "numba-cpu", _rows_rejection, _rows, cost=_rows_cost),
    Implementation("attention.blocks", ATTENTION, "numba-cpu", _blocks_rejection, _blocks, cost=_blocks_cost),
)
