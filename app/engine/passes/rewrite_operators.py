"""Replace operators by the sets of operators that a target's backends compute better."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import ClassVar

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.rewriter import rewrite
from app.engine.model.shape_inference import inference
from app.engine.passes.canonicalize import reduce
from app.engine.rewrites import float_widening
from app.engine.rewrites.bounded import row_loops

WIDENING = "numba-cpu"  # the backend whose kernels compute 16-bit floats in float32


@dataclass(frozen=True, slots=True)
class RewriteOperators:
    """Apply the tables REWRITES of the target's backends: other operators, other numbers of operands.

    Before that, 16-bit floats become float32 where the target's kernels compute in it; the portable graph,
    which is exported, keeps them.

    What a rule replaces keeps its shape and dtype, and in the planned graph its layout, which is
    chosen later. What becomes possible by it is simplified as a canonical graph is.

    `growth` is by how many bytes folded constants may make the model grow.
    """

    growth: int = 2**30

    name: ClassVar[str] = "rewrite_operators"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        """The rewritten graph, in place; the notes tell how often each rule applied.

        Raises:
            ValueError: a rule changed the shape or dtype of a value.
        """
        model, leaves = compilation.model, bool(compilation.options.export)
        rows = compilation.registry.rewrites_for(compilation.target, leaves)
        wide = WIDENING in compilation.target.backends
        widened = float_widening.widen(model) if wide else Counter()
        before = {v.name: _type(v) for v in graph.values(model.graph)}
        applied = rewrite(model.graph, rows)
        if not applied and not widened:
            return compilation
        inference.infer(model)
        for value in graph.values(model.graph):
            expected = before.get(value.name)
            if expected is not None and expected != _type(value):
                raise ValueError(
                    f"value {value.name!r} was {expected}, is {_type(value)} after {dict(applied)}"
                )
        applied += widened + reduce(model, self.growth, rows)
        if wide and (more := float_widening.widen(model)):  # what came out of bodies
            applied += more + reduce(model, self.growth, rows, typed=True)
        on_host = compilation.target.device == "cpu" and wide
        if on_host and not leaves and (loops := row_loops.loop_over_rows(model.graph)):
            applied += Counter({"loop_over_rows": loops}) + reduce(model, self.growth, rows)
        notes = (f"{rule}: {count}" for rule, count in sorted(applied.items()))
        return replace(compilation, notes=(*compilation.notes, *notes))


def _type(value: ir.Value) -> tuple[ir.DataType | None, tuple[int, ...]] | None:
    """Dtype and shape; None where the shape is not static."""
    shape = graph.shape(value)
    return None if shape is None else (value.dtype, shape)
