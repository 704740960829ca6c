"""Softmax and its logarithm along any axis."""

import math

import numpy as np
import onnx_ir as ir

from app.engine import graph
from app.engine.backends.numba_cpu.single import (
    FLOATS,
    axis_of,
    first_input,
    first_output,
    pointer,
    refusal,
    total_bytes,
)
from app.engine.cost import roofline
from app.engine.plan import Call, Group, KernelCall, Workspace
from app.engine.registry import Implementation, Known

BACKEND = "numba-cpu"
COLUMNS = 512  # of one block where the axis is not the innermost
LINE = 64  # bytes; scratch rows of threads do not share cache lines

_KERNELS = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}


def _unless(group: Group, _known: Known) -> str | None:
    return refusal(group, FLOATS)


def _lower(group: Group, _known: Known) -> tuple[Call, ...]:
    x, y = first_input(group), first_output(group)
    kernel = f"app.kernels.cpu.softmax:{_KERNELS[group.op]}"
    shape = graph.static_shape(x) or (1,)
    axis = axis_of(group.anchor, len(shape))
    outer, n, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    t, itemsize = pointer(x), np.dtype(pointer(x)[:-1]).itemsize
    if inner == 1 and group.op == "Softmax":
        return (KernelCall(f"{kernel}_rows", (t, t, "int64"), (x, y, n), units=outer),)
    if inner == 1:
        span = -(-n * itemsize // LINE) * LINE // itemsize
        scratch = Workspace(span * itemsize, per_thread=True)
        return (
            KernelCall(
                f"{kernel}_rows",
                (t, t, t, "int64", "int64"),
                (x, y, scratch, n, span),
                units=outer,
                takes_thread=True,
            ),
        )
    blocks = -(-inner // COLUMNS)
    return (
        KernelCall(
            f"{kernel}_columns",
            (t, t, "float64*", t, *("int64",) * 4),
            (
                x,
                y,
                Workspace(COLUMNS * 8, per_thread=True),
                Workspace(COLUMNS * itemsize, per_thread=True),
                COLUMNS,
                n,
                inner,
                blocks,
            ),
            units=outer * blocks,
            takes_thread=True,
        ),
    )


def _cost(group: Group, known: Known) -> float:
    elements = graph.elements(first_output(group))
    return roofline(
        known.target,
        flops=25 * elements,
        nbytes=total_bytes(group),
        efficiency=0.3,
        threads=known.threads,
    )


def _inplace(group: Group, _known: Known) -> tuple[tuple[ir.Value, ir.Value], ...]:
    return ((first_input(group), first_output(group)),)


IMPLEMENTATIONS = tuple(
    Implementation(f"softmax.{kernel}", op, BACKEND, _unless, _lower, _cost, _inplace)
    for op, kernel in _KERNELS.items()
)
