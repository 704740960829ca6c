"""Stopgap."""

import logging
from dataclasses import dataclass
from typing import ClassVar

from onnx_ir.passes import common as c
from onnx_shape_inference import infer_symbolic_shapes
from onnxscript.optimizer import fold_constants

from app.engine.plan import Compilation

logging.getLogger("onnxscript").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Canonicalize:
    name: ClassVar[str] = "canonicalize"
    reads: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()

    def __call__(self, compilation: Compilation) -> Compilation:
        model = compilation.model
        c.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        for _ in range(5):
            before = model.graph.num_nodes()
            infer_symbolic_shapes(model, warn_on_missing=False)
            fold_constants(
                model,
                should_fold=lambda n: True if n.op_type == "ConstantOfShape" else None,
                input_size_limit=1 << 22,
                output_size_limit=1 << 24,
            )
            c.RemoveUnusedNodesPass()(model)
            if model.graph.num_nodes() == before:
                break
        c.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        c.LiftSubgraphInitializersToMainGraphPass()(model)
        try:
            c.IdentityEliminationPass()(model)
        except Exception:
            pass
        c.RemoveUnusedNodesPass()(model)
        c.NameFixPass()(model)
        c.TopologicalSortPass()(model)
        infer_symbolic_shapes(model, warn_on_missing=False)
        return compilation
