"""Contents of padded lanes, and zeros where a reader needs them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from app.engine.core.group import Group
from app.engine.core.pipeline import Rerun
from app.engine.core.plan import Compilation
from app.engine.core.plan_editor import PlanEditor
from app.engine.layouts import padding
from app.engine.layouts.conversions import DOMAIN
from app.engine.passes.select_implementations import SelectImplementations

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
        """The compilation with the column; where nodes `ZeroLanes` are inserted, rows are chosen again."""
        held, needs = padding.infer(compilation)
        if needs:  # other rows may be chosen once there are more nodes
            return Rerun(_filled(compilation, needs), SelectImplementations.name)
        return compilation.with_plan(padding=held)


def _filled(compilation: Compilation, needs: Iterable[padding.Need]) -> Compilation:
    """The compilation with a node for each value of which a reader needs zeros, and takes them from it."""
    editor = PlanEditor(compilation, "partition", "fusion", "layout", "storage", "dispatch")
    chosen = compilation.plan.require("implementation")
    filled: dict[ir.Value, ir.Value] = {}
    notes = []
    readers: dict[Group, dict[ir.Value, ir.Value]] = {}
    for value, group in needs:
        if value not in filled:
            made = ir.Value(name=f"{value.name}:zero", shape=value.shape, type=value.type)
            node = ir.Node(DOMAIN, OP, [value], outputs=[made], name=made.name)
            filled[value] = editor.insert_between(value, node, part=editor.partition[group.anchor])
        readers.setdefault(group, {})[value] = filled[value]
        name = chosen[group].implementation.name
        notes.append(f"padded lanes of {value.name!r} become zero: {name!r} counts them in {group.name!r}")
    for group, replaced in readers.items():
        editor.redirect(group, replaced)
    return replace(editor.finish(), notes=(*compilation.notes, *notes))
