"""Run one row on one group, alone, in poisoned simulated memory: the test bench of CUDA rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Constant, LaunchCall, Workspace
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.runtime.cuda.device import Pointer
from app.engine.runtime.cuda.executor import launch_of
from app.engine.types.layout import to_logical, to_physical
from app.engine.types.target import find
from app.kernels.cuda.kernel import Ref
from tests.engine.runtime.cuda.devices import SimulatedDevice

Array = np.ndarray[Any, Any]


def context(precision: str = "f32") -> PlanningContext:
    """A target whose launches cost nothing, so that short reductions are shared, too."""
    target = replace(find("cuda-sm90"), launch=0.0)
    return PlanningContext(target, precision=precision)  # type: ignore[arg-type]


def run_row(
    row: Implementation,
    group: Group,
    inputs: Mapping[str, Array],
    facts: PlanningContext,
    alias: Sequence[tuple[ir.Value, ir.Value]] = (),
) -> list[Array]:
    """Outputs of a group; `alias` lists (input, output) pairs that share memory.

    There, what a block does with elements of another is an error, whichever of both runs first.
    """
    reason = row.rejection(group, facts)
    assert reason is None, reason
    device, layouts = SimulatedDevice(watched=bool(alias)), row.layouts(group, facts)
    shared = {output: source for source, output in alias}
    places: dict[ir.Value, tuple[int, int]] = {}
    for value in group.inputs:
        fixed = graph.constant(value)
        array = np.ascontiguousarray(inputs[value.name or ""] if fixed is None else fixed)
        if value in layouts:
            array = to_physical(array, layouts[value])
        places[value] = _put(device, array)
    for value in group.outputs:
        places[value] = places[shared[value]] if value in shared else _room(device, graph.nbytes(value))
    kept: dict[int, tuple[int, int]] = {}
    for call in row.lower(group, facts):
        assert isinstance(call, LaunchCall)
        launch = launch_of(call)
        passed: list[Any] = []
        for argument, given, kind in zip(call.arguments, launch.arguments, call.types):
            if not isinstance(given, Ref):
                passed.append(given)
                continue
            if isinstance(argument, ir.Value):
                place = places[argument]
            elif id(argument) in kept:
                place = kept[id(argument)]
            elif isinstance(argument, Constant):
                place = kept[id(argument)] = _put(device, np.ascontiguousarray(argument.array))
            else:
                assert isinstance(argument, Workspace)
                place = kept[id(argument)] = _room(device, argument.nbytes)
            passed.append(Pointer(place[0] + given.offset, place[1] - given.offset, kind[:-1]))
        device.launch(launch.kernel, launch.grid, passed)
    found = []
    for value in group.outputs:
        kind, shape = graph.dtype(value), graph.static_shape(value)
        assert kind is not None
        flat = np.empty(graph.nbytes(value), np.uint8)
        device.read(places[value][0], flat)
        array = flat.view(kind)
        found.append(to_logical(array, layouts[value], shape) if value in layouts else array.reshape(shape))
    return found


def _put(device: SimulatedDevice, array: Array) -> tuple[int, int]:
    place = _room(device, array.nbytes)
    device.write(place[0], array.reshape(-1).view(np.uint8))
    return place


def _room(device: SimulatedDevice, nbytes: int) -> tuple[int, int]:
    return device.allocate(nbytes), nbytes
