"""Layout of every value, and the conversions between them."""

from dataclasses import dataclass, replace
from typing import ClassVar

from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.layouts.choice import Policy, choose
from app.engine.layouts.insert_conversions import insert_conversions

_TOLD = 5e-6  # of a gap that is not 0 with three decimals of a percent


@dataclass(frozen=True)
class InferLayouts:
    """Choose the layouts that implementations read and write, at the least predicted cost.

    `policy` other than `joint` is there to compare with, see `app.engine.layouts.choice`.
    """

    policy: Policy = "joint"

    name: ClassVar[str] = "infer_layouts"
    reads: ClassVar[tuple[str, ...]] = ("partition", "fusion", "storage", "dispatch")
    writes: ClassVar[tuple[str, ...]] = (*reads, "layout")
    keeps: ClassVar[tuple[str, ...]] = ("passed_over",)

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the column `layout`, and nodes that convert into the graph."""
        assignment = choose(
            compilation,
            PlanningContext.of(compilation, compilation.plan.require("storage")),
            "plain" if compilation.concessions.row_major_only else self.policy,
        )
        notes = compilation.notes
        if assignment.cuts:
            least = (
                f"at most {assignment.gap:.3%} above the least" if assignment.gap >= _TOLD else "proved least"
            )
            notes = (
                *notes,
                f"layouts: {assignment.seconds * 1e6:.4g} us for groups and conversions, {least} "
                f"by {assignment.cuts} minimum cut{'s' * (assignment.cuts > 1)}",
            )
        return insert_conversions(replace(compilation, notes=notes), assignment)
