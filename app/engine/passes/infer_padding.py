"""What padded lanes hold, and zeros where a reader needs them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from app.engine.core.plan import COLUMNS, Compilation, Group
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
    writes: ClassVar[tuple[str, ...]] = (*reads, "padding")
    keeps: ClassVar[tuple[str, ...]] = tuple(c for c in COLUMNS if c not in ("order", "placement"))

    def __call__(self, compilation: Compilation) -> Compilation:
        """The compilation with the column; nodes `ZeroLanes` of domain stowplan are inserted."""
        held, needs = padding.infer(compilation)
        while needs:  # other rows may be chosen once there are more nodes
            compilation = SelectImplementations()(_filled(compilation, needs))
            held, needs = padding.infer(compilation)
        return compilation.with_plan(padding=held)


def _filled(compilation: Compilation, needs: Iterable[padding.Need]) -> Compilation:
    """The compilation with a node for each value of which a reader needs zeros, and takes them from it."""
    editor, chosen = PlanEditor(compilation), compilation.plan.implementation or {}
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
    return replace(editor.finish(implementation=None), notes=(*compilation.notes, *notes))
