"""The implementation is chosen before memory is planned, and the plan follows it.

The example is that of apache/mxnet issue 13598: two implementations of one convolution differ in which
operands may share memory.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core import graph, pipeline
from app.engine.core.calls import Call, KernelCall, Workspace
from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import Backend, Implementation, Operator, PlanningContext, Registry
from app.engine.planning import session
from app.engine.types.options import Options
from app.engine.types.target import Memory, Target
from tests.harness import model_of

TARGET = Target("test", memories=(Memory("dram", 2**30),), backends=("numba-cpu",))
IMAGE = 8 * 16 * 16 * 4  # byte
SCRATCH = 4096


def same_shape(group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """{0, 0}: the first input may be the output."""
    return ((group.inputs[0], group.outputs[0]),)


def only_two_axes(group: Group, _context: PlanningContext) -> str | None:
    """FInferStorageTypeEx sees shapes, dtypes and attributes."""
    kernel = graph.static_shape(group.inputs[1])[2:]
    if len(kernel) != 2:
        return f"kernels have 2 axes, found {len(kernel)}"
    return None if graph.dtype(group.inputs[0]) == np.float32 else "float32 only"


def lower(scratch: int) -> Callable[[Group, PlanningContext], tuple[Call, ...]]:
    def calls(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
        work = (Workspace(scratch),) if scratch else ()
        operands = (*group.inputs, *group.outputs, *work)
        return (KernelCall("test:convolution", ("float32*",) * len(operands), operands, 1),)

    return calls


def registry(cudnn_seconds: float, mkl_seconds: float, op: str = "Conv", domain: str = "") -> Registry:
    rows = (
        Implementation(
            "conv.cudnn", op, "numba-cpu", only_two_axes, lower(SCRATCH),
            cost=lambda _g, _k: cudnn_seconds, inplace=same_shape,
        ),
        Implementation(
            "conv.mkl", op, "numba-cpu", lambda _g, _k: None, lower(0), cost=lambda _g, _k: mkl_seconds
        ),
    )  # fmt: skip
    return Registry(
        {(domain, op): Operator(op, domain=domain)}, {op: rows}, {"numba-cpu": Backend("numba-cpu", ("cpu",))}
    )  # fmt: skip


def planned(rows: Registry, axes: int = 2) -> Compilation:
    shape, kernel = ("1,8,16,16", "8,8,3,3") if axes == 2 else ("1,8,256", "8,8,3")
    pads = ",".join(["1"] * 2 * axes)
    nodes = " ".join(f"v{i} = Conv <pads=[{pads}]> (v{i - 1}, w)" for i in range(1, 5))
    model = model_of(
        f'<ir_version: 10, opset_import: ["": 21]> g (float[{shape}] v0, float[{kernel}] w) => (float[{shape}] v4) {{ {nodes} }}',
        {"w": np.ones([int(d) for d in kernel.split(",")], np.float32)},
    )
    for i, node in enumerate(model.graph):
        node.name = f"conv{i}"
    options = Options()
    compilation = Compilation(model, TARGET, rows, options)
    return pipeline.run(compilation, session.backend_passes(options))


def chosen(compilation: Compilation) -> set[str]:
    assert compilation.plan.implementation is not None
    return {c.implementation.name for c in compilation.plan.implementation.values()}


def peak(compilation: Compilation) -> int:
    assert compilation.plan.placement is not None
    return compilation.plan.placement.solution.peak


def test_the_memory_plan_follows_the_implementation() -> None:
    cudnn, mkl = planned(registry(1e-6, 2e-6)), planned(registry(2e-6, 1e-6))
    assert chosen(cudnn) == {"conv.cudnn"}
    assert chosen(mkl) == {"conv.mkl"}
    # In place all activations live in the output's memory, and the arena holds the workspace; else two
    # images take turns.
    assert peak(cudnn) == SCRATCH
    assert peak(mkl) == 2 * IMAGE


def test_a_row_that_is_refused_leaves_its_plan_to_the_next() -> None:
    refused = planned(registry(1e-6, 2e-6), axes=1)
    assert chosen(refused) == {"conv.mkl"}
    assert peak(refused) == 2 * IMAGE
    told = {a["name"]: a["reason"] for d in refused.decisions for a in d.alternatives}
    assert told == {"conv.cudnn": "kernels have 2 axes, found 1"}


@pytest.mark.parametrize("seconds", [(1e-6, 2e-6), (2e-6, 1e-6)])
def test_the_choice_is_measured_time_where_there_is_one(seconds: tuple[float, float]) -> None:
    from app.engine.cost import roofline
    from app.engine.passes.fuse import Fuse
    from app.engine.passes.partition import Partition

    rows = registry(1e-6, 1.5e-6)
    start = dataclasses.replace(planned(rows), plan=type(planned(rows).plan)())
    groups = pipeline.run(start, (Partition(), Fuse())).plan.groups
    context = PlanningContext.of(start)
    timings = {
        roofline.key(row, group, context): time
        for group in groups
        for row, time in zip(rows.implementations["Conv"], seconds)
    }
    found = pipeline.run(dataclasses.replace(start, timings=timings), session.backend_passes(Options()))
    assert chosen(found) == {"conv.cudnn" if seconds[0] < seconds[1] else "conv.mkl"}
