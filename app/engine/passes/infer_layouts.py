"""Layout of every value."""

from dataclasses import dataclass
from typing import ClassVar

from app.engine import graph
from app.engine.layout import Layout, plain
from app.engine.plan import Compilation


@dataclass(frozen=True)
class InferLayouts:
    """Every implementation so far reads and writes row-major order."""

    name: ClassVar[str] = "infer_layouts"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ("layout",)
    keeps: ClassVar[tuple[str, ...]] = ("partition", "fusion", "storage", "dispatch")

    def __call__(self, compilation: Compilation) -> Compilation:
        """Write the column `layout`; a value of unknown rank has the layout of a scalar."""
        layout: dict[object, Layout] = {
            value: plain(len(value.shape) if value.shape is not None else 0)
            for value in graph.values(compilation.graph)
        }
        return compilation.with_plan(layout=layout)
