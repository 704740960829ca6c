"""Any chain of elementwise nodes as one generated kernel."""

import math

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.recipes import Formula, recipe_of
from app.engine.cost import roofline
from app.engine.plan import ELEMENTWISE, Argument, Call, Group, KernelCall
from app.engine.registry import Implementation, Known
from app.kernels.cpu.elementwise import collapsed
from app.kernels.cpu.expressions import flops, stored

MOST_ARGUMENTS = 48  # addresses and extents that a kernel can take
EFFICIENCY = 0.3  # of the peak, with the rough counts of operations in `expressions`


def _unless(group: Group, _known: Known) -> str | None:
    formula = recipe_of(group.nodes, group.outputs)
    if isinstance(formula, str):
        return formula
    shape = graph.static_shape(group.outputs[0])
    for value in group.outputs:
        if graph.static_shape(value) != shape:
            return f"outputs {group.outputs[0].name!r} and {value.name!r} differ in shape"
    try:
        broadcast = np.broadcast_shapes(*(operand.shape for operand in formula.operands))
    except ValueError as mismatch:
        return f"operands do not broadcast: {mismatch}"
    if broadcast != shape:
        return f"operands broadcast to {list(broadcast)}, the output is {list(shape)}"
    count = len(_arguments(group, formula))
    return f"{count} arguments, a kernel takes {MOST_ARGUMENTS}" if count > MOST_ARGUMENTS else None


def _formula(group: Group) -> Formula:
    formula = recipe_of(group.nodes, group.outputs)
    assert not isinstance(formula, str), formula
    return formula


def _arguments(group: Group, formula: Formula) -> tuple[Argument, ...]:
    shape = graph.static_shape(group.outputs[0])
    extents, _ = collapsed(shape, [operand.shape for operand in formula.operands])
    return (*(operand.value for operand in formula.operands), *group.outputs, *extents)


def _lower(group: Group, _known: Known) -> tuple[Call, ...]:
    formula = _formula(group)
    shape = graph.static_shape(group.outputs[0])
    extents, patterns = collapsed(shape, [operand.shape for operand in formula.operands])
    dtypes = (*formula.dtypes, *(dtype for _, dtype in formula.results))
    call = KernelCall(
        "app.kernels.cpu.elementwise:emit",
        (*(f"{stored(dtype)}*" for dtype in dtypes), *["int64"] * len(extents)),
        _arguments(group, formula),
        units=math.prod(shape),
        static=(formula.recipe, formula.dtypes, patterns, formula.results),
    )
    return (call,)


def _cost(group: Group, known: Known) -> float:
    return roofline(
        known.target,
        flops=flops(_formula(group).recipe) * graph.elements(group.outputs[0]),
        nbytes=sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs)),
        efficiency=EFFICIENCY,
        threads=known.threads,
    )


def _inplace(group: Group, _known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """Inputs that are read at the very index that is written, and at no other.

    An iteration reads all its operands before it writes any result, so any of these pairs may
    hold, or several at once.
    """
    aligned: dict[ir.Value, set[tuple[int, ...]]] = {}
    for operand in _formula(group).operands:
        aligned.setdefault(operand.value, set()).add(operand.shape)
    return tuple(
        (source, output)
        for output in group.outputs
        for source, shapes in aligned.items()
        if not graph.is_constant(source)
        and all(math.prod(shape) == graph.elements(output) for shape in shapes)
        and graph.nbytes(source) == graph.nbytes(output)
    )


IMPLEMENTATIONS = (
    Implementation("elementwise.generated", ELEMENTWISE, "numba-cpu", _unless, _lower, _cost, _inplace),
)
