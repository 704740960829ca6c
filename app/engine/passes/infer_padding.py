"""Contents of padded lanes, and zeros where a reader needs them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.group import Group
from app.engine.core.pipeline import Rerun
from app.engine.core.plan import Compilation
from app.engine.layouts import padding
from app.engine.layouts.conversions import DOMAIN
from app.engine.layouts.insert_conversions import replace_inputs
from app.engine.passes.select_implementations import SelectImplementations
from app.engine.types.storage import DispatchMode

OP = "ZeroLanes"


@dataclass(frozen=True, slots=True)
class InferPadding:
    """Write the column `padding`; where a chosen row counts padded lanes, a node makes them zero.

    A value whose writer leaves zeros is read as it is, and so is any other whose readers need none.
    """

    name: ClassVar[str] = "infer_padding"
    reads: ClassVar[tuple[str, ...]] = (
        "partition",
        "fusion",
        "layout",
        "storage",
        "dispatch",
        "implementation",
    )
    writes: ClassVar[tuple[str, ...]] = ("partition", "fusion", "layout", "storage", "dispatch", "padding")
    keeps: ClassVar[tuple[str, ...]] = ("implementation", "passed_over")

    def __call__(self, compilation: Compilation) -> Compilation | Rerun:
        """The compilation with the column; where nodes `ZeroLanes` were inserted, rows are chosen again."""
        held, needs = padding.infer(compilation)
        if needs:  # other rows may be chosen once there are more nodes
            return Rerun(_filled(compilation, needs), SelectImplementations.name)
        return compilation.with_plan(padding=held)


def _filled(compilation: Compilation, needs: Iterable[padding.Need]) -> Compilation:
    """The compilation with a node for each value of which a reader needs zeros, and takes them from it."""
    model, plan = compilation.graph, compilation.plan
    partition, fusion = dict(plan.require("partition")), dict(plan.require("fusion"))
    layout, storage = dict(plan.require("layout")), dict(plan.require("storage"))
    dispatch, implementation = dict(plan.require("dispatch")), plan.require("implementation")
    filled: dict[ir.Value, ir.Value] = {}
    notes = []
    readers: dict[Group, dict[ir.Value, ir.Value]] = {}
    for value, group in needs:
        if value not in filled:
            made = ir.Value(name=f"{value.name}:zero", shape=value.shape, type=value.type)
            node = ir.Node(DOMAIN, OP, [value], outputs=[made], name=made.name)
            model.insert_after(graph.writer(value), node)  # inputs of the graph are row-major
            partition[node], dispatch[node] = partition[group.anchor], DispatchMode.COMPUTE
            fusion[node] = Group((node,), node, (value,), (made,), OP)
            layout[made], storage[made] = layout[value], storage[value]
            filled[value] = made
        readers.setdefault(group, {})[value] = filled[value]
        row = implementation[group].implementation.name
        notes.append(f"padded lanes of {value.name!r} become zero: {row!r} counts them in {group.name!r}")
    for group, replaced in readers.items():
        for node in group.nodes:
            replace_inputs(node, replaced)
        inputs = tuple(replaced.get(v, v) for v in group.inputs)
        changed = Group(group.nodes, group.anchor, inputs, group.outputs, group.op)
        fusion.update(dict.fromkeys(group.nodes, changed))
    compilation = replace(compilation, notes=(*compilation.notes, *notes))
    return compilation.with_plan(
        partition={n: partition[n] for n in model},
        fusion={n: fusion[n] for n in model},
        layout={v: layout[v] for v in graph.values(model)},
        storage={v: storage[v] for v in graph.values(model)},
        dispatch=dispatch,
    )
