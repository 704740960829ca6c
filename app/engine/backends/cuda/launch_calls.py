"""From the launches of a kernel family to calls of a plan, and what they cost."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Argument, Constant, LaunchCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext, Rejection
from app.engine.cost import roofline
from app.engine.operators.strides import StridedCopy
from app.kernels.cuda.geometry import Strided
from app.kernels.cuda.kernel import WORKSPACE, Launches
from app.kernels.cuda.transpose import moved

Array: TypeAlias = np.ndarray[Any, Any]
Made: TypeAlias = tuple[Launches, Mapping[str, Argument]]  # what computes a group, and arguments by role

BACKEND = "cuda"
# Fraction of the bandwidth that plain streams reach.
STREAM = 0.85
RESIDENT = 2  # blocks of threads that a multiprocessor needs at once to keep its memory busy


def calls(launches: Launches, roles: Mapping[str, Argument]) -> tuple[LaunchCall, ...]:
    """The calls of launches whose roles are these arguments; a workspace is one of the step."""
    given = dict(roles)
    if launches.workspace:
        given[WORKSPACE] = Workspace(launches.workspace)
    return tuple(LaunchCall.of(launch, given) for launch in launches)


def numbered(inputs: Iterable[Argument], outputs: Iterable[Argument]) -> dict[str, Argument]:
    """The roles x0, x1 ... and y0, y1 ..."""
    roles = {f"x{i}": x for i, x in enumerate(inputs)}
    return {**roles, **{f"y{i}": y for i, y in enumerate(outputs)}}


def moved_by(copy: StridedCopy, dtype: str) -> Launches:
    """Launches of a strided copy of elements of a type: roles x0, y0."""
    return moved(copy.sizes, Strided(dtype, copy.sx, copy.x0), Strided(dtype, copy.sy, copy.y0))


def repacked(value: ir.Value, pack: Callable[[Array], Array]) -> Constant:
    """A constant in another order, which is made when a program is bound to memory."""
    return Constant(lambda: pack(graph.array(value)), value.name or "")


def moved_bytes(group: Group) -> int:
    """Bytes of all operands, each read or written once."""
    return sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs))


def seconds(
    context: PlanningContext,
    *,
    nbytes: float,
    flops: float = 0.0,
    rate: float = 1.0,
    blocks: float = math.inf,
) -> float:
    """Seconds of one launch: the roofline of the device, as far as the blocks fill it.

    Args:
        context: tells the target.
        nbytes: that it reads and writes.
        flops: of its arithmetic.
        rate: at which that is done, as a multiple of the peak in float32.
        blocks: of threads; what is left of the last wave of blocks waits for nobody.
    """
    target = context.target
    processors = target.cores
    waves = math.ceil(blocks / processors) if math.isfinite(blocks) else math.inf
    filled = blocks / (waves * processors) if math.isfinite(waves) else 1.0
    bandwidth = target.memories[0].bandwidth * STREAM
    if target.caches and nbytes <= target.caches[-1]:
        bandwidth *= 2.0  # of the second cache, which all of a small model fits
    reached = min(blocks / (RESIDENT * processors), 1.0)
    arithmetic = flops / (target.flops * processors * rate * max(filled, 1e-9))
    return target.launch + max(arithmetic, nbytes / (bandwidth * max(reached, 1e-3)))


def blocks_of(launches: Launches) -> int:
    """Blocks of threads of the largest launch."""
    return max((math.prod(launch.grid) for launch in launches), default=1)


def streamed(group: Group, context: PlanningContext, launches: Launches) -> float:
    """Seconds of launches that only pass over the operands of a group."""
    nbytes, count = moved_bytes(group), max(len(launches.steps), 1)
    return (count - 1) * context.target.launch + seconds(context, nbytes=nbytes, blocks=blocks_of(launches))


def product_seconds(
    group: Group,
    context: PlanningContext,
    blocks: int,
    rate: float = 0.5,
    wasted: float = 1.0,
    launches: int = 1,
) -> float:
    """Seconds of launches of which one multiplies; `wasted` is what it computes over what the group is."""
    nbytes, work = moved_bytes(group), roofline.flops(group) * wasted
    time = seconds(context, nbytes=nbytes, flops=work, rate=rate, blocks=blocks)
    return time + (launches - 1) * context.target.launch


def streaming(
    name: str, op: str, rejection: Rejection, made: Callable[[Group], Made], slower: float = 1.0, **more: Any
) -> Implementation:
    """A row whose launches only pass over the operands; `more` are other columns."""
    return Implementation(
        name,
        op,
        BACKEND,
        rejection,
        lambda group, _context: calls(*made(group)),
        lambda group, context: streamed(group, context, made(group)[0]) * slower,
        **more,
    )
