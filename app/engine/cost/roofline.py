"""Time of a step: from the timings table where it was measured, else by the roofline model.

Source: Williams, Waterman and Patterson, 2009, "Roofline: an insightful visual performance model".
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group, of_group
from app.engine.core.signature import signature
from app.engine.cost.calibration import calibration, features, moved_bytes
from app.engine.types.target import NEAR, Peak, Target

if TYPE_CHECKING:
    from app.engine.core.registry import Implementation, PlanningContext
    from app.engine.types.storage import StorageKind


def roofline(
    target: Target,
    *,
    flops: float,
    nbytes: float,
    weights: float = 0.0,
    efficiency: float = 0.8,
    threads: int = 1,
) -> float:
    """Seconds for work of `flops` operations that moves `nbytes` through main memory.

    `efficiency` is the fraction of peak arithmetic that the implementation reaches. Traffic that
    fits the last cache is taken to move four times as fast as main memory; `weights` are bytes that never
    do, because the other weights of a model pass between two uses.
    """
    cores = min(threads, target.cores)
    bandwidth = target.memories[0].bandwidth
    near = NEAR if target.caches and nbytes <= target.caches[-1] else 1.0
    moving = nbytes / (bandwidth * near) + weights / bandwidth
    return target.launch + max(flops / (target.flops * cores * efficiency), moving)


def predicted(group: Group, target: Target, *, threads: int = 1) -> float:
    """Roofline of a group whose implementation is not known: its arithmetic and its operands."""
    moved = sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs) if not graph.is_dynamic(v))
    return roofline(target, flops=flops(group), nbytes=moved, threads=threads)


@of_group
def flops(group: Group) -> float:
    """Floating-point operations of a group; 0 for what is dynamic."""
    return sum(map(arithmetic, group.nodes))


def arithmetic(node: ir.Node) -> float:
    """Floating-point operations of a node; 0 for what is dynamic."""
    return _FLOPS.get(node.op_type, _one_each)(node)


def _one_each(node: ir.Node) -> float:
    return float(sum(graph.elements(v) for v in node.outputs if graph.shape(v) is not None))


def _conv(node: ir.Node, second: int = 1) -> float:
    operand = node.inputs[second]
    weight = graph.shape(operand) if operand is not None else None
    return 2.0 * _one_each(node) * math.prod(weight[1:]) if weight else 0.0


def _conv_transpose(node: ir.Node) -> float:
    x, weight = (graph.shape(v) if v is not None else None for v in node.inputs[:2])
    return 2.0 * math.prod(x) * math.prod(weight[1:]) if x and weight else 0.0


def _matmul(node: ir.Node) -> float:
    a = graph.shape(node.inputs[0]) if node.inputs[0] is not None else None
    if not a:
        return 0.0
    inner = a[-2] if graph.attribute(node, "transA", 0) and len(a) > 1 else a[-1]
    return 2.0 * _one_each(node) * inner


def _recurrent(node: ir.Node) -> float:
    """Every element of both matrices of weights, once for each element of the batch and of time."""
    x, w, r = (graph.shape(v) if v is not None else None for v in node.inputs[:3])
    return 2.0 * math.prod(x[:2]) * (math.prod(w) + math.prod(r)) if x and w and r else 0.0


_FLOPS: Mapping[str, Callable[[ir.Node], float]] = {
    "Conv": _conv,
    "ConvInteger": _conv,
    "DeformConv": _conv,
    "QLinearConv": lambda node: _conv(node, second=3),
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "MatMulNBits": _matmul,
    "Gemm": _matmul,
    "LSTM": _recurrent,
    "DynamicQuantizeLSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
PRODUCTS = frozenset(_FLOPS)  # operators whose arithmetic is a product with a second operand


def storing_seconds(target: Target, elements: int, entries: int) -> float:
    """Seconds to find the entries of a dense value that are to be stored sparse, on one thread.

    Cycles are measured on Zen 4: a comparison each, and a branch that is not foreseen for each entry.
    """
    cycles = 2 * elements + 20 * entries
    return target.launch + cycles * 4 * target.vector_lanes / target.flops


def seconds(row: "Implementation", group: Group, context: "PlanningContext") -> tuple[float, str | None]:
    """Time of a group computed by a row, and the tuning that measured best; None when predicted."""
    return measured(row, group, context) or (expected(row, group, context), None)


def expected(row: "Implementation", group: Group, context: "PlanningContext") -> float:
    """Predicted seconds, as long as the target's kind of processor was measured to take of such groups.

    Where the peak of this machine was measured, times what the cost of the row grows or shrinks by on a
    machine with that peak.
    """
    predicted, known = row.predicted(group, context), calibration(context.target)
    if not predicted or (known is None and context.peak is None):
        return predicted

    def factor() -> float:
        here = replace(context, target=on_machine(context, moved_bytes(group)))
        usual = known.of(row.name).log_factor(features(group, context, predicted)) if known else 0.0
        return math.exp(usual) * row.predicted(group, here) / predicted

    return predicted * group.cache.result((row.name, "factor", context.key), factor)


def on_machine(context: "PlanningContext", nbytes: int) -> Target:
    """The target as fast as this machine, where its peak was measured, in work on so many bytes.

    Beside the machine of the calibration; without one, beside what the target's description says.
    """
    if context.peak is None:
        return context.target
    known = calibration(context.target)
    usual = (known and known.peak) or Peak.described(context.target)
    return context.peak.beside(context.target, usual, nbytes)


def measured(row: "Implementation", group: Group, context: "PlanningContext") -> tuple[float, str] | None:
    """Time of a group computed by a row, and the tuning that measured best; None where nothing was."""
    best: tuple[float, str] | None = None
    if context.timings:
        for tuning in row.tunings:
            found = context.timings.get(_key(row, tuning, group, context))
            if found is not None and (best is None or found < best[0]):
                best = found, tuning
    return best


def comparable(
    times: Mapping["Implementation", tuple[float, str | None]], group: Group, context: "PlanningContext"
) -> Mapping["Implementation", tuple[float, str | None]]:
    """The `seconds` of rows on one scale: predictions grow or shrink as what was measured did.

    Where some rows were measured, the others were predicted to be much slower; they are still
    needed where a layout leaves no choice. Rows of views are never measured: they leave out what
    the others do.
    """
    measured = {row: t for row, t in times.items() if t[1] is not None}
    predicted = [row for row in times if row not in measured and not row.views(group, context)]
    if not measured or not predicted:
        return times
    # A constant is stored sparse where that was measured to be faster, not where it might be.
    times = {r: t for r, t in times.items() if r not in predicted or not r.storage(group, context)}
    scale = max(t[0] / expected(row, group, context) for row, t in measured.items())
    return {row: (t[0] * scale, None) if row in predicted else t for row, t in times.items()}


def permitted(
    rows: Iterable["Implementation"], group: Group, context: "PlanningContext"
) -> list["Implementation"]:
    """The rows that are not denied for memory's sake; all of them where none is left."""
    rows, denied = list(rows), context.concessions.denied
    return [row for row in rows if (group.name, row.name) not in denied] or rows


def consulted(groups: Iterable[Group], timings: Mapping[str, float]) -> dict[str, float]:
    """The part of a timings table that tells of these groups."""
    names = {signature(group) for group in groups}
    # A key is a row and its tuning, the threads and the signature; only the last has spaces.
    return {name: s for name, s in sorted(timings.items()) if name.split(" ", 2)[2] in names}


def called(row: "Implementation") -> str:
    """A row's name in the timings table, with the version of its library."""
    return f"{row.name}@{row.version}" if row.version else row.name


def key(row: "Implementation", group: Group, context: "PlanningContext") -> str:
    """Where the timings table holds a row's time for a group, with the tuning of `context`."""
    return _key(row, context.tuning, group, context)


def _key(row: "Implementation", tuning: str, group: Group, context: "PlanningContext") -> str:
    stored = run_storage(row, group, context)
    values = (v for v in dict.fromkeys((*group.inputs, *group.outputs)) if v in stored)
    full = (context.sparse(v, stored[v]).capacity for v in values)
    detail = ",".join((*filter(None, [row.detail(group, context)]), *map(str, full)))
    told = f"{called(row)}{':' if tuning else ''}{tuning}{'@' if detail else ''}{detail}"
    return f"{told} x{context.threads} {signature(group)}"


def run_storage(
    row: "Implementation", group: Group, context: "PlanningContext"
) -> "Mapping[ir.Value, StorageKind]":
    """Storage types of values of a run that a row reads or writes sparse."""
    return {v: kind for v, kind in row.storage(group, context).items() if not v.is_initializer()}
