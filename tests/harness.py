"""Run one implementation on one group, alone, in poisoned memory: the test bench of kernel rows."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Constant, Excess, KernelCall, Workspace
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.registry import Implementation, PlanningContext, Registry, load
from app.engine.types.layout import to_logical, to_physical
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from app.kernels.cpu.runtime.driver import Team, compile_dispatch_loop
from app.kernels.cpu.runtime.kernel_sequence import KernelRow, KernelSequence

Array = np.ndarray[Any, Any]
POISON = 0xFF  # every float type reads NaN
OWN = ("numba-cpu", "reference")  # `backends` of a job that no library has a part in


def model_of(text: str, constants: dict[str, Array] | None = None) -> ir.Model:
    """A model from ONNX text (`<ir_version: 10, opset_import: ["": 21]> agraph (...) => (...) {...}`).

    `constants` turn graph inputs into initializers. Shapes are inferred.
    """
    proto = onnx.parser.parse_model(text)
    names = constants or {}
    kept = [v for v in proto.graph.input if v.name not in names]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for name, array in names.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def group_of(model: ir.Model, registry: Registry) -> Group:
    """The whole graph as one group; the anchor is the first node that is not elementwise."""
    nodes = tuple(model.graph)
    rows = [registry.operator(n) for n in nodes]
    heavy = [n for n, row in zip(nodes, rows) if row is None or not row.elementwise]
    made = {v for n in nodes for v in n.outputs}
    read = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and v not in made)
    return Group(
        nodes,
        heavy[0] if heavy else nodes[0],
        tuple(read),
        tuple(model.graph.outputs),
        heavy[0].op_type if heavy else ELEMENTWISE,
    )


def context(threads: int = 1, lanes: int = 0) -> PlanningContext:
    """Facts about this machine, or about one with other vectors; LLVM splits what is too wide."""
    target = host()
    return PlanningContext(dataclasses.replace(target, vector_lanes=lanes or target.vector_lanes), threads)


def offering(target: Target) -> Target:
    """A machine that offers all precisions, and computes them by other instructions than those for them."""
    isa = tuple(f for f in target.isa if f not in ("avx512_bf16", "avx512_vnni", "avx_vnni"))
    return dataclasses.replace(target, isa=isa, precisions=("f32", "bf16", "int8"))


def bf16(facts: PlanningContext) -> PlanningContext:
    """The same facts of a job in bf16, on a machine that offers it."""
    return dataclasses.replace(facts, target=offering(facts.target), precision="bf16")


def run_group(
    implementation: Implementation,
    group: Group,
    inputs: dict[str, Array],
    compiler: Compiler,
    *,
    threads: int = 1,
    lanes: int = 0,
    alias: Sequence[tuple[ir.Value, ir.Value]] = (),
) -> list[Array]:
    """Outputs of a group, computed by the implementation's own calls.

    Outputs and workspace start as NaN (0xFF bytes), and so do padded lanes of blocked inputs. `alias` lists (input, output) pairs that
    share memory, as `implementation.inplace` allows.
    """
    facts = context(threads, lanes)
    reason = implementation.rejection(group, facts)
    assert reason is None, reason
    layouts = implementation.layouts(group, facts)

    def physical(value: ir.Value) -> tuple[int, ...]:
        shape = graph.static_shape(value)
        return layouts[value].physical_shape(shape) if value in layouts else shape

    memory: dict[ir.Value, Array] = {}
    for value in group.inputs:
        fixed = graph.constant(value)
        array = inputs[value.name or ""] if fixed is None else fixed
        memory[value] = np.ascontiguousarray(array).reshape(np.shape(array)).copy()
        if value in layouts:
            fill = np.nan if array.dtype.kind == "f" else np.array(-1).astype(array.dtype)
            fill = 0 if implementation.padding.reads == "zero" else fill
            memory[value] = to_physical(memory[value], layouts[value], fill)
    shared = {output: source for source, output in alias}
    for value in group.outputs:
        dtype = graph.dtype(value)
        assert dtype is not None
        if value in shared:
            memory[value] = memory[shared[value]].reshape(physical(value))
        else:
            size = math.prod(physical(value)) * dtype.itemsize
            memory[value] = _poisoned(size).view(dtype).reshape(physical(value))
    keep: list[Array] = []
    # What lies after an output may be the next part of a larger value.
    after = [_following(memory[v]) for v in group.outputs if v not in shared]

    def address(argument: object) -> int:
        if isinstance(argument, int):
            return argument
        if isinstance(argument, Constant):
            keep.append(np.ascontiguousarray(argument.array))
        elif isinstance(argument, Excess):
            keep.append(np.zeros(1, np.int64))
        elif isinstance(argument, Workspace):
            keep.append(_poisoned(argument.nbytes * (threads if argument.per_thread else 1)))
        else:
            assert isinstance(argument, ir.Value)
            return memory[argument].ctypes.data
        return keep[-1].ctypes.data

    workspaces: dict[int, int] = {}  # the same Workspace object is the same memory in every call
    rows = []
    for call in implementation.lower(group, facts):
        assert isinstance(call, KernelCall)
        kernel = compiler.compile(call.kernel, call.types, call.static, takes_thread=call.takes_thread)
        numbers = []
        for argument in call.arguments:
            if isinstance(argument, Workspace):
                if id(argument) not in workspaces:
                    workspaces[id(argument)] = address(argument)
                numbers.append(workspaces[id(argument)])
            else:
                numbers.append(address(argument))
        rows.append(KernelRow(kernel.address, call.units, tuple(numbers)))
    team = Team(threads)
    KernelSequence(compile_dispatch_loop(), rows, team).run()
    team.close()
    assert all((tail == POISON).all() for tail in after), "bytes after an output were written"
    if implementation.padding.leaves == "zero":
        for value in (v for v in group.outputs if v in layouts):
            padded = to_physical(np.zeros(graph.static_shape(value), bool), layouts[value], fill=True)
            assert not memory[value][padded].any(), "padded lanes were left that are not zero"
    return [
        to_logical(memory[v], layouts[v], graph.static_shape(v)) if v in layouts else memory[v]
        for v in group.outputs
    ]


def _poisoned(nbytes: int) -> Array:
    raw = np.full(nbytes + 128, POISON, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _following(array: Array) -> Array:
    """The bytes of the memory that an array of `_poisoned` begins, after its end."""
    raw: Any = array
    while isinstance(raw.base, np.ndarray):
        raw = raw.base
    start = array.ctypes.data - raw.ctypes.data + array.nbytes
    return np.asarray(raw[start:])


def implementation(name: str, registry: Registry | None = None) -> Implementation:
    """A row of the registry by name."""
    rows = {r.name: r for group in (registry or load()).implementations.values() for r in group}
    return rows[name]


def assert_close(found: Array, expected: Array, tolerance: float = 1e-5) -> None:
    """Within `tolerance` of the expected maximum; exact for integers."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if np.issubdtype(expected.dtype, np.floating):
        scale = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-30))
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, equal_nan=True)
    else:
        np.testing.assert_array_equal(found, expected)
