"""Rows of attention, float32: the operator, with key-value cache, or the chain of nodes that spells it."""

from dataclasses import asdict, dataclass

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import blocking
from app.engine.backends.cpu.axis_kernels import HALVES, pointer, type_name
from app.engine.backends.cpu.calls import size_operand, typed_call
from app.engine.backends.cpu.strided import calls
from app.engine.core import graph
from app.engine.core.calls import Call, Constant, KernelCall, Workspace
from app.engine.core.group import ATTENTION, Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.cost.roofline import roofline
from app.engine.operators import attention, attention_pattern
from app.engine.operators.attention_pattern import Core, Operand
from app.engine.operators.operands import group_rejection, itemsize
from app.kernels.cpu.attention import ADDITIVE, BOOLEAN, CLEARED, AttentionRowsSizes
from app.kernels.cpu.attention_blocks import TILES, AttentionBlocksSizes
from app.kernels.cpu.codegen import tiles

POINTER = "float32*"
FLOAT64 = 11  # as ONNX numbers element types
ROWS_EFFICIENCY = 0.15  # of peak arithmetic: dot attention.products and rows of values, one query at a time
BLOCKS_EFFICIENCY = 0.7  # two attention.products of small tiles
HEADS = 8  # of one row that are computed at once: 1,024 scores of each stay in the second cache
EXPONENTIAL = 30  # operations that a score takes beside the attention.products
PACKED = 8  # the same of an element of keys and values
BLOCK_KEYS = 512  # whose packed elements stay in the second cache, with the scores
SCORE_BYTES = 128 * 1024  # of a block of scores
LARGEST_BLOCK = 96  # queries
CAUSAL_TILES = 4  # of queries in a block, where the keys that its last one sees are all that is computed


def _rejection(group: Group) -> str | None:
    """Reason why no kernel of this kind applies."""
    if not attention.is_node(group):
        core = attention_pattern.read(group)
        return core if isinstance(core, str) else _wrong_type(group)
    reason = group_rejection(group)
    if reason is None and graph.attribute(group.anchor, "softmax_precision", 1) == FLOAT64:
        return "softmax in double precision"
    return reason or _wrong_type(group)


def _wrong_type(group: Group) -> str | None:
    node = group.anchor
    if attention.is_node(group):
        cached = [
            graph.input_at(node, i) for i in (attention.K, attention.V, attention.PAST_K, attention.PAST_V)
        ]
        cached += [v for v in node.outputs[attention.PRESENT_K : attention.SCORES] if v.name]
        plain = [graph.operand(node, attention.Q), *node.outputs[:1], *node.outputs[attention.SCORES :]]
        mask = graph.input_at(node, attention.MASK)
    else:
        core = attention_pattern.read(group)
        assert not isinstance(core, str)
        cached = [o.value for o in (core.k, core.v) if isinstance(o.value, ir.Value)]
        plain = [o.value for o in (core.q, core.y) if isinstance(o.value, ir.Value)]
        mask = core.mask.value if core.mask is not None and isinstance(core.mask.value, ir.Value) else None
    for value in plain:
        if value.name and type_name(value) != "float32":
            return f"value {value.name!r} is {type_name(value)}, this kernel computes float32"
    kinds = {type_name(v) for v in cached if v is not None}
    if len(kinds) > 1 or not kinds <= {"float32", *HALVES}:
        return (
            f"keys and values are {', '.join(sorted(kinds))}, expected float32 or one of {', '.join(HALVES)}"
        )
    if mask is not None and str(graph.dtype(mask)) not in ("bool", "float32"):
        return f"mask of dtype {graph.dtype(mask)}, expected bool or float32"
    return None


def _before(group: Group) -> tuple[Call, ...]:
    """The calls that put new keys and values behind the old ones."""
    return tuple(
        call
        for joined in attention.prepared(group)[1]
        for copy, x, y in joined
        for call in calls(copy, itemsize(x), x, y)
    )


def _rows_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _rejection(group)
    if reason is None:
        core, _ = attention.prepared(group)
        apart = [o for o in (core.q, core.k, core.v, core.y) if o.strides[3] != 1 and o.shape[3] > 1]
        if apart:
            return "elements of a row lie apart"
    return reason


@dataclass(frozen=True, slots=True)
class Seen:
    """Fields of AttentionSizes: keys that a query sees, and the stage of the scores that are an output."""

    left: int = -1
    right: int = -1
    external: bool = False
    shown: int = -1


def _seen(group: Group, core: Core) -> Seen:
    node, causal = group.anchor, Seen(right=0 if core.causal else -1)
    if not attention.is_node(group):
        return causal
    left, right = (graph.attribute(node, f"{side}_window_size", -1) for side in ("left", "right"))
    return Seen(
        left,
        causal.right if core.causal else right,
        attention.lengths_of(group) is not None,
        -1 if attention.scores_of(group) is None else graph.attribute(node, "qk_matmul_output_mode", 0),
    )


def _rows(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    core, _ = attention.prepared(group)
    lengths, scores = attention.lengths_of(group), attention.scores_of(group)
    batch, heads, rows, _ = core.q.shape
    keys = core.v.shape[2]
    mask, together = core.mask, heads_together(core) if scores is None else 1
    work = Workspace(4 * together * max(keys, 1), per_thread=True)
    sizes = AttentionRowsSizes(
        **strides(core, _seen(group, core)),
        together=together,
    )
    call = KernelCall(
        "app.kernels.cpu.attention:attention",
        (
            POINTER,
            *[_cache_pointer(group)] * 2,
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
            lengths or Constant(np.zeros(1, np.int64)),
            Constant(np.array([core.scale, attention.softcap_of(group)], np.float32)),
            core.y.value,
            work if scores is None else scores,
            Constant(sizes.array()),
            work,
        ),
        units=batch * heads * rows,
        takes_thread=True,
    )
    return (*_before(group), call)


def heads_together(core: Core) -> int:
    """Heads that `attention` computes at once: those of one query row that share keys, values and mask."""
    _, heads, rows, _ = core.q.shape
    if rows != 1 or core.clears_nan or (core.mask is not None and core.mask.strides[1]):
        return 1
    return min(max(heads // max(core.k.shape[1], 1), 1), HEADS)


def _dtype(mask: Operand) -> str:
    assert isinstance(mask.value, ir.Value)
    return str(graph.dtype(mask.value))


def _blocks_rejection(group: Group, _context: PlanningContext) -> str | None:
    reason = _rejection(group)
    if reason is not None:
        return reason
    core, _ = attention.prepared(group)
    if core.y.strides[3] != 1 and core.y.shape[3] > 1:
        return "elements of a row of the output lie apart"
    return None


def _blocks(group: Group, context: PlanningContext) -> tuple[Call, ...]:
    core, _ = attention.prepared(group)
    if 0 in (*core.q.shape[:3], core.v.shape[3]):
        return _before(group)
    seen = _seen(group, core)
    more = seen, attention.softcap_of(group), attention.lengths_of(group), attention.scores_of(group)
    return (*_before(group), blocks_call(core, _cache_pointer(group), context, *more))


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """Cursors of which one, by its number, tells which head of the result a call computes.

    A block of scores has so many rows at most.
    """

    cursors: Workspace
    number: int
    rows: int


def blocks_call(
    core: Core,
    cached: str,
    context: PlanningContext,
    seen: Seen,
    softcap: float = 0.0,
    lengths: ir.Value | None = None,
    scores: ir.Value | None = None,
    cursor: Cursor | None = None,
) -> KernelCall:
    """The call of attention by blocks; of the head that a cursor tells where there is one."""
    batch, heads = core.q.shape[:2]
    mask, sizes = core.mask, _sizes(core, context, seen, LARGEST_BLOCK if cursor is None else cursor.rows)
    dtype = "float32" if mask is None else _dtype(mask)
    cursors = () if cursor is None else (("int64*", cursor.cursors),)
    nothing = Constant(np.zeros(1, np.float32))
    return typed_call(
        "app.kernels.cpu.attention_blocks:emit",
        (
            (POINTER, core.q.value),
            (cached, core.k.value),
            (cached, core.v.value),
            (f"{dtype}*", nothing if mask is None else mask.value),
            (POINTER, core.y.value),
            ("int64*", lengths or Constant(np.zeros(1, np.int64))),
            (POINTER, scores or nothing),
            (POINTER, Constant(np.array([core.scale, 1, softcap], np.float32))),
            size_operand(sizes),
            (POINTER, Workspace(4 * sizes.work_step, per_thread=True)),
            *cursors,
        ),
        batch * heads * sizes.parts,
        (
            context.target.vector_lanes,
            dtype,
            cached.removesuffix("*"),
            *(() if cursor is None else (cursor.number,)),
        ),
    )


def _cache_pointer(group: Group) -> str:
    """The type of an address of keys and values."""
    core, _ = attention.prepared(group)
    value = core.k.value if isinstance(core.k.value, ir.Value) else graph.operand(group.anchor, attention.K)
    return pointer(value)


def strides(core: Core, seen: Seen) -> dict[str, int]:
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
        **asdict(seen),
        "zero": CLEARED if core.clears_nan else core.zero,
        "past": core.past,
    }


def _sizes(core: Core, context: PlanningContext, seen: Seen, largest: int) -> AttentionBlocksSizes:
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
    if seen.right >= 0:
        largest = min(largest, CAUSAL_TILES * TILES[lanes][0])
    most = max(min(SCORE_BYTES // (4 * block_keys), largest), 1)
    block_rows = blocking.balanced(part_rows, most, TILES[lanes][0])

    def lines(elements: int) -> int:
        return -(-elements // 16) * 16

    areas = {
        "spare_size": tiles.spare("float32", lanes, TILES),
        "keys_size": lines(block_keys * max(depth, 1) + lanes),
        "values_size": lines(-(-width // columns) * columns * block_keys + lanes),
        "biased_size": 0 if core.mask is None else lines(block_rows * block_keys),
    }
    return AttentionBlocksSizes(
        **strides(core, seen),
        parts=parts,
        part_rows=part_rows,
        block_rows=block_rows,
        block_keys=block_keys,
        **areas,
        work_step=sum(areas.values()) + lines(block_rows * block_keys + 2 * part_rows),
    )


def _nbytes(group: Group) -> float:
    return float(sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)))


def _rows_cost(group: Group, context: PlanningContext) -> float:
    flops = attention.products(attention.prepared(group)[0])
    return roofline(
        context.target,
        flops=flops,
        nbytes=_nbytes(group),
        efficiency=ROWS_EFFICIENCY,
        threads=context.threads,
    )


def _blocks_cost(group: Group, context: PlanningContext) -> float:
    core, _ = attention.prepared(group)
    batch, heads, rows, depth = core.q.shape
    keys, width = core.v.shape[2:]
    other = batch * heads * keys * (EXPONENTIAL * rows + PACKED * (depth + width))
    return roofline(
        context.target,
        flops=attention.products(core) + other,
        nbytes=_nbytes(group),
        efficiency=BLOCKS_EFFICIENCY,
        threads=context.threads,
    )


IMPLEMENTATIONS = (
    Implementation("attention.rows", ATTENTION, "numba-cpu", _rows_rejection, _rows, cost=_rows_cost),
    Implementation("attention.blocks", ATTENTION, "numba-cpu", _blocks_rejection, _blocks, cost=_blocks_cost),
)
