"""Layout of every value, and the conversions between them."""

from dataclasses import dataclass
from typing import ClassVar

from app.engine.layouts.choice import choose
from app.engine.layouts.realize import realize
from app.engine.plan import Compilation
from app.engine.registry import Known


@dataclass(frozen=True)
class InferLayouts:
    """Choose the layouts that implementations read and write, at the least predicted cost."""

    name: ClassVar[str] = "infer_layouts"
    reads: ClassVar[tuple[str, ...]] = ("partition", "fusion")
    writes: ClassVar[tuple[str, ...]] = ("partition", "fusion", "layout")
    keeps: ClassVar[tuple[str, ...]] = ("partition", "fusion")

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the column `layout`, and nodes that convert into the graph."""
        known = Known.of(compilation)
        return realize(compilation, choose(compilation, known))
