"""Row of generated elementwise kernels."""

import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.recipes import Chain, Nest, merge_axes, recipe_of
from app.engine.cost import roofline
from app.engine.plan import ELEMENTWISE, Argument, Group, KernelCall
from app.engine.registry import Implementation, Known
from app.kernels.cpu.elementwise import FIXED, STRIDED, UNIT

MOST_ARGUMENTS = 48  # of a kernel


def _unless(group: Group, _known: Known) -> str | None:
    for value in (*group.inputs, *group.outputs, *(v for n in group.nodes for v in n.outputs if v.name)):
        if graph.is_dynamic(value):
            return f"value {value.name!r} has no static shape or no dtype"
    if len({graph.shape(v) for v in group.outputs}) > 1:
        return "outputs differ in shape"
    chain = recipe_of(group.nodes)
    if isinstance(chain, str):
        return chain
    nest = _nest(group, chain)
    arguments = len(chain.inputs) + len(group.outputs) + len(nest.sizes) * (1 + len(chain.inputs))
    if arguments > MOST_ARGUMENTS:
        return f"{arguments} arguments; a kernel takes {MOST_ARGUMENTS}"
    return None


def _chain(group: Group) -> Chain:
    chain = recipe_of(group.nodes)
    assert not isinstance(chain, str)
    return chain


def _nest(group: Group, chain: Chain) -> Nest:
    shape = graph.static_shape(group.outputs[0])
    # The output itself is an operand of the nest: it must stay contiguous.
    return merge_axes(shape, [*(graph.static_shape(v) for v in chain.inputs), shape])


def _lower(group: Group, _known: Known) -> tuple[KernelCall, ...]:
    chain = _chain(group)
    if graph.elements(group.outputs[0]) == 0:
        return ()
    nest = _nest(group, chain)
    strides = nest.strides[:-1]
    patterns = tuple(UNIT if s[-1] == 1 else FIXED if s[-1] == 0 else STRIDED for s in strides)
    inputs = tuple(_name(v) for v in chain.inputs)
    outputs = tuple((chain.results[v], _name(v)) for v in group.outputs)
    numbers = (*nest.sizes, *(n for s in strides for n in s))
    arguments: tuple[Argument, ...] = (*chain.inputs, *group.outputs, *numbers)
    types = (*(f"{_name(v)}*" for v in (*chain.inputs, *group.outputs)), *["int64"] * len(numbers))
    rank = len(nest.sizes)
    rows = 1
    for n in nest.sizes[:-1]:
        rows *= n
    return (
        KernelCall(
            "app.kernels.cpu.elementwise:emit",
            types,
            arguments,
            nest.sizes[0] if rank == 1 else rows,
            static=(chain.recipe, inputs, outputs, patterns, rank),
        ),
    )


def _cost(group: Group, known: Known) -> float:
    moved = sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))
    work = graph.elements(group.outputs[0]) * len(group.nodes)
    return roofline(known.target, flops=4.0 * work, nbytes=moved, efficiency=0.3, threads=known.threads)


def _inplace(group: Group, _known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """An input that is read at the very index that is written, and nowhere else."""
    pairs = []
    for output in group.outputs:
        for value in group.inputs:
            same = graph.static_shape(value) == graph.static_shape(output)
            if same and not graph.is_constant(value) and _size(value) == _size(output):
                pairs.append((value, output))
    return tuple(pairs)


def _size(value: ir.Value) -> int:
    kind = graph.dtype(value)
    assert kind is not None
    return kind.itemsize


def _name(value: ir.Value) -> str:
    kind = graph.dtype(value)
    assert kind is not None
    return str(kind.name)


IMPLEMENTATIONS = (
    Implementation("elementwise.generated", ELEMENTWISE, "numba-cpu", _unless, _lower, _cost, _inplace),
)
