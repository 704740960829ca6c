"""From a model file to its training graph: forward nodes, backward nodes, one gradient for each variable."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from app.engine.core import graph, pipeline
from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.gradient import marks
from app.engine.gradient.differentiate import TrainingGraph, training_graph, unroll
from app.engine.gradient.rule import is_float
from app.engine.gradient.tables import RULES
from app.engine.model import naming
from app.engine.model.load import Loaded, load
from app.engine.passes.canonicalize import lift_initializers
from app.engine.planning import session, training_memory
from app.engine.planning.expansion import expanded
from app.engine.report.onnx import export
from app.engine.types.errors import GraphError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host

NO_FILES: Mapping[str, Path] = {}
PLANNED = Options(autotune=False, choose="first")
_SHOWN = 50  # values kept for backward that a summary lists

Json = dict[str, Any]


def training(
    path: Path,
    loss: str,
    wrt: Sequence[str] | None = None,
    bindings: Bindings = Bindings(),  # noqa: B008  # frozen
    external: Mapping[str, Path] = NO_FILES,
    row_sparse: Sequence[str] = (),
) -> TrainingGraph:
    """The training graph of a model file, its inputs bound to static shapes; see `training_graph`.

    Weights are variables while the graph becomes canonical, so that none is folded away.

    Raises:
        EngineError: the model is refused, a name is unknown, or an operator has no gradient.
    """
    loaded = expanded(load(path, external=external), bindings)
    model = loaded.model
    naming.make_unique(model)
    lift_initializers(model)
    given = {v.name: v for v in graph.values(model.graph) if v.name}
    if loss not in given:
        names = ", ".join(repr(v.name) for v in model.graph.outputs)
        raise GraphError(
            f"loss {loss!r}: expected a value of the graph, found none; outputs are {names}", pointer="/loss"
        )
    opened = _open(model, wrt)
    added = not given[loss].is_graph_output()
    if added:
        model.graph.outputs.append(given[loss])
    compilation = Compilation(model, host(), load_registry(), PLANNED, bindings)
    compilation = pipeline.run(compilation, session.FRONTEND_PASSES[:2])
    variables = [v.name or "" for v in compilation.graph.inputs if v.name in opened] if wrt is None else wrt
    if variables and unroll(compilation.model, loss, variables):
        # Numbers of turns, and all that steps compute from them, are constants.
        compilation = pipeline.run(compilation, session.FRONTEND_PASSES[:2])
    canonical = compilation.model
    _close(canonical, opened)
    made = training_graph(canonical, loss, wrt, row_sparse)
    if added and made.loss != loss:
        outputs = canonical.graph.outputs
        outputs.pop([v.name for v in outputs].index(loss))
    return made


def _open(model: ir.Model, wrt: Sequence[str] | None) -> dict[str, ir.TensorProtocol]:
    """Make inputs of the initializers that may be variables; returns their elements."""
    main = model.graph
    names = [n for n, v in main.initializers.items() if _may_vary(v)] if wrt is None else wrt
    found: dict[str, ir.TensorProtocol] = {}
    for name in dict.fromkeys(names):
        value = main.initializers.get(name)
        if value is None or value.const_value is None or value.is_graph_input():
            continue
        tensor = value.const_value
        found[name] = tensor
        del main.initializers[name]
        value.const_value, value.shape = None, ir.Shape(tensor.shape.numpy())
        value.type = ir.TensorType(tensor.dtype)
        main.inputs.append(value)
    return found


def _may_vary(value: ir.Value) -> bool:
    """True if an initializer of floats is read by some operator that takes it for more than a setting."""
    if value.const_value is None or not is_float(value):
        return False
    rules = ((RULES.get(u.node.op_type), u.idx) for u in value.uses())
    return any(rule is None or index not in rule.settings for rule, index in rules)


def _close(model: ir.Model, opened: Mapping[str, ir.TensorProtocol]) -> None:
    """Give the variables that were weights their elements back; those that nothing reads are gone."""
    for value in tuple(model.graph.inputs):
        tensor = opened.get(value.name or "")
        if tensor is not None:
            model.graph.inputs.remove(value)
            value.const_value = tensor
            model.graph.register_initializer(value)


def peaks(
    path: Path,
    made: Path,
    bindings: Bindings = Bindings(),  # noqa: B008  # frozen
    external: Mapping[str, Path] = NO_FILES,
) -> Json:
    """Arena of the plan of a model for this machine beside that of its training graph, a file too.

    `memory` is what `app.engine.planning.training_memory` says of the latter, times predicted.
    """
    inference = session.planned(
        _canonical(expanded(load(path, external=external), bindings), bindings), PLANNED
    )
    loaded = load(made)
    gradients = marks.gradients(loaded.model)
    compilation = _canonical(loaded, Bindings())
    program = session.planned(compilation, PLANNED)
    build = session.builder(compilation, PLANNED)
    return {
        "forward_peak_bytes": inference.arena_bytes,
        "training_peak_bytes": program.arena_bytes,
        "memory": training_memory.described(program, gradients, build),
    }


def _canonical(loaded: Loaded, bindings: Bindings) -> Compilation:
    return session.canonical(loaded, host(), PLANNED, bindings, load_registry())


def write(
    path: Path,
    loss: str,
    wrt: Sequence[str] | None,
    bindings: Bindings,
    target: Path,
    external: Mapping[str, Path] = NO_FILES,
    row_sparse: Sequence[str] = (),
) -> Json:
    """Write a training graph as one file; return what it is: see `training`."""
    made = training(path, loss, wrt, bindings, external, row_sparse)
    export(made.model, target)
    largest = sorted(made.kept, key=lambda k: -k.nbytes)[:_SHOWN]
    return {
        "loss": made.loss,
        "gradients": dict(made.gradients),
        "nodes": {"forward": len(made.model.graph) - made.backward, "backward": made.backward},
        "kept_bytes": made.kept_bytes,
        "kept": [{"name": k.name, "bytes": k.nbytes} for k in largest],
    }
