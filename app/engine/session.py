"""From a model to something that runs, in this process."""

import dataclasses

import onnx_ir as ir

from app.engine import pipeline, program
from app.engine.options import Bindings, Options
from app.engine.passes.canonicalize import Canonicalize
from app.engine.passes.fuse import Fuse
from app.engine.passes.infer_layouts import InferLayouts
from app.engine.passes.infer_storage import InferStorage
from app.engine.passes.infer_types import InferTypes
from app.engine.passes.order import Order
from app.engine.passes.partition import Partition
from app.engine.passes.plan_memory import PlanMemory
from app.engine.passes.select_implementations import SelectImplementations
from app.engine.pipeline import Pass, Progress, silent
from app.engine.plan import Compilation
from app.engine.program import Program
from app.engine.registry import Registry
from app.engine.target import Target

FRONT: tuple[Pass, ...] = (InferTypes(), Canonicalize())


def back(options: Options) -> tuple[Pass, ...]:
    """The passes from a canonical graph to a complete plan."""
    return (
        Partition(),
        Fuse(enabled=options.fuse),
        InferStorage(),
        InferLayouts(),
        SelectImplementations(),
        Order(),
        PlanMemory(),
    )


def canonical(
    model: ir.Model,
    target: Target,
    options: Options,
    bindings: Bindings,
    registry: Registry,
    progress: Progress = silent,
) -> Compilation:
    """The canonical graph of a loaded model, its types inferred; the model is used up."""
    return pipeline.run(Compilation(model, target, registry, options, bindings), FRONT, progress)


def planned(compilation: Compilation, options: Options, progress: Progress = silent) -> Program:
    """The program of a canonical graph under these options; the graph is left as it is."""
    started = dataclasses.replace(compilation, options=options)
    return program.build(pipeline.run(started, back(options), progress))
