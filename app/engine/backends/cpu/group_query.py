"""The row of com.microsoft::GroupQueryAttention: attention to a cache of keys and values.

Where past and present are of one length they may share memory, and new rows are all that is written; else the
past is copied in front of them once, as the operator's results ask for.

Source: docs/ContribOperators.md of onnxruntime.
"""

import math

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.attention import ROWS_EFFICIENCY, Seen, heads_together, strides
from app.engine.backends.cpu.calls import Operands, kernel_call, of_type, size_operand
from app.engine.backends.cpu.rows import after, group_roofline, single_rejection
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.model.runtime_operators import MICROSOFT
from app.engine.operators.attention_pattern import Core, Operand
from app.engine.operators.strides import strides_of
from app.kernels.cpu.attention import AttentionRowsSizes
from app.kernels.cpu.key_value_cache import AppendSizes

POINTER = "float32*"
# Places of inputs; what follows the tables of angles is not taken.
QUERY, KEY, VALUE, PAST_K, PAST_V, LAST, TOTAL, COS, SIN = range(9)
Y, PRESENT_K, PRESENT_V = range(3)
REFUSED = (
    *("smooth_softmax", "qk_output", "k_quant_type", "v_quant_type"),
    *("sliding_window_cache", "kv_cache_bit_width"),
)


@after(single_rejection)
def _rejection(group: Group, _context: PlanningContext) -> str | None:
    node = group.anchor
    for i in (QUERY, KEY, VALUE, PAST_K, PAST_V, COS, SIN):
        value = graph.input_at(node, i)
        if value is not None and graph.dtype(value) != np.float32:
            return f"value {value.name!r} is {graph.dtype(value)}, this kernel computes float32"
    more = [v.name for v in node.inputs[SIN + 1 :] if v is not None]
    if more:
        return f"input {more[0]!r} changes positions, scores or what softmax sums"
    for name in REFUSED:
        if graph.attribute(node, name, 0) not in (0, "", "NONE", -1):
            return f"attribute {name} is {node.attributes[name].value}"
    if not graph.attribute(node, "causal", 1):
        return "queries see keys behind their own"
    if (graph.input_at(node, KEY) is None) != (graph.input_at(node, VALUE) is None):
        return "keys or values alone are packed with queries"
    return None


class _Sizes:
    """Sizes of a node."""

    def __init__(self, node: ir.Node) -> None:
        self.heads, self.groups = (graph.attribute(node, a, 0) for a in ("num_heads", "kv_num_heads"))
        self.batch, self.rows, columns = graph.static_shape(graph.operand(node, QUERY))
        self.packed = graph.input_at(node, KEY) is None
        self.width = columns // (self.heads + 2 * self.groups if self.packed else self.heads)
        self.columns = columns
        past = graph.input_at(node, PAST_K)
        self.old = 0 if past is None else graph.static_shape(past)[2]
        self.keys = graph.static_shape(node.outputs[PRESENT_K])[2]
        cos = graph.input_at(node, COS) if graph.attribute(node, "do_rotary", 0) else None
        self.half = 0 if cos is None else graph.static_shape(cos)[-1]


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node, of = group.anchor, _Sizes(group.anchor)
    if of.batch * of.rows * of.width == 0:
        return ()
    lengths, queries = Workspace(8 * of.batch), Workspace(4 * of.batch * of.heads * of.rows * of.width)
    operands: Operands = (
        ("int32*", graph.operand(node, LAST)), ("int64*", lengths), of.rows,
    )  # fmt: skip
    made = [kernel_call("app.kernels.cpu.key_value_cache:lengths_of", operands, of.batch)]
    cache: list[Argument] = []
    for i, (past, present) in enumerate(((PAST_K, PRESENT_K), (PAST_V, PRESENT_V))):
        to = _present(group, of, present)
        before = graph.input_at(node, past)
        if before is not None:
            made.append(_kept(before, to, of))
        made.append(_appended(node, of, KEY + i, to, lengths, queries=False))
        cache.append(to)
    made.append(_appended(node, of, QUERY, queries, lengths, queries=True))
    return (*made, _attended(group, of, queries, cache, lengths))


def _present(group: Group, of: _Sizes, position: int) -> Argument:
    value = group.anchor.outputs[position]
    return value if value in group.outputs else Workspace(4 * of.batch * of.groups * of.keys * of.width)


def _kept(past: ir.Value, present: Argument, of: _Sizes) -> KernelCall:
    """The call that has the old rows in front."""
    operands: Operands = (*of_type(POINTER, past, present), of.old, of.keys, of.width)
    return kernel_call("app.kernels.cpu.key_value_cache:keep", operands, of.batch * of.groups)


def _appended(
    node: ir.Node, of: _Sizes, position: int, to: Argument, lengths: Workspace, *, queries: bool
) -> KernelCall:
    """The call that turns new rows and puts them where they belong."""
    x = graph.operand(node, QUERY if of.packed else position)
    heads = of.heads if queries else of.groups
    before = {QUERY: 0, KEY: of.heads, VALUE: of.heads + of.groups}[position] if of.packed else 0
    row = of.columns if of.packed else heads * of.width
    half = 0 if position == VALUE else of.half
    length = of.rows if queries else of.keys
    sizes = AppendSizes(
        heads=heads,
        rows=of.rows,
        width=of.width,
        half=half,
        interleaved=graph.attribute(node, "rotary_interleaved", 0),
        x_at=before * of.width,
        x_b=of.rows * row,
        x_h=of.width,
        x_s=row,
        y_b=heads * length * of.width,
        y_h=length * of.width,
        placed=not queries,
    )
    nothing = Constant(np.zeros(1, np.float32))
    tables = [graph.operand(node, i) if half else nothing for i in (COS, SIN)]
    operands: Operands = (*of_type(POINTER, x, to, *tables), ("int64*", lengths), size_operand(sizes))
    return kernel_call("app.kernels.cpu.key_value_cache:append", operands, of.batch * heads * of.rows)


def _attended(
    group: Group, of: _Sizes, queries: Argument, cache: list[Argument], lengths: Workspace
) -> KernelCall:
    node = group.anchor
    asked, kept = (of.batch, of.heads, of.rows, of.width), (of.batch, of.groups, of.keys, of.width)
    k, v = (Operand(value, 0, kept, strides_of(kept)) for value in cache)
    columns = of.heads * of.width
    y = Operand(node.outputs[Y], 0, asked, (of.rows * columns, of.width, columns, 1))
    scale = graph.attribute(node, "scale", 0.0) or 1.0 / math.sqrt(of.width)
    core = Core(Operand(queries, 0, asked, strides_of(asked)), k, v, y, None, scale, causal=True)
    window = graph.attribute(node, "local_window_size", -1)
    together = heads_together(core)
    seen = Seen(left=window - 1 if window > 0 else -1, right=0, external=True)
    sizes = AttentionRowsSizes(**strides(core, seen), together=together)
    work = Workspace(4 * together * max(of.keys, 1), per_thread=True)
    scalars = Constant(np.array([scale, graph.attribute(node, "softcap", 0.0)], np.float32))
    nothing = Constant(np.zeros(1, np.float32))
    operands: Operands = (
        *of_type(POINTER, queries, *cache, nothing),
        ("int64*", lengths),
        *of_type(POINTER, scalars, node.outputs[Y], work),
        size_operand(sizes),
        (POINTER, work),
    )
    units = of.batch * of.heads * of.rows
    return kernel_call("app.kernels.cpu.attention:attention", operands, units, takes_thread=True)


def _inplace(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """A cache of the length that it has afterwards is written where it is."""
    pairs = []
    for before, after_ in ((PAST_K, PRESENT_K), (PAST_V, PRESENT_V)):
        past, present = graph.input_at(group.anchor, before), group.anchor.outputs[after_]
        if past is not None and present in group.outputs and graph.shape(past) == graph.shape(present):
            pairs.append((past, present))
    return tuple(pairs)


def _cost(group: Group, context: PlanningContext) -> float:
    of = _Sizes(group.anchor)
    products = 4.0 * of.batch * of.heads * of.rows * of.keys * of.width
    return 5 * context.target.launch + group_roofline(group, context, products, ROWS_EFFICIENCY)


IMPLEMENTATIONS = (
    Implementation(
        "group_query_attention.rows",
        "GroupQueryAttention",
        "numba-cpu",
        _rejection,
        _lower,
        _cost,
        _inplace,
        updates=True,
        domain=MICROSOFT,
    ),
)
