"""From a model file to a symbol of MXNet and its parameters."""

from collections.abc import Mapping
from pathlib import Path

from app.engine.core import graph, pipeline
from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.passes import canonicalize
from app.engine.planning import session
from app.engine.report.mxnet.convert import Written, symbol_of
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host

_GROWTH = 2**30  # byte that folded constants may add
_PLAIN = Options(autotune=False, choose="first")


def to_symbol(path: Path, external: Mapping[str, Path], bindings: Bindings = Bindings()) -> Written:  # noqa: B008  # frozen
    """The symbol of a model file in canonical form; free dimensions stay free where no shape is bound.

    Raises:
        SymbolError: names all nodes that MXNet has no spelling of, with reasons.
        EngineError: the model or a binding is refused.
    """
    model = load(path, external=external).model
    if bindings.shapes or bindings.values:
        compilation = Compilation(model, host(), load_registry(), _PLAIN, bindings)
        model = pipeline.run(compilation, session.FRONTEND_PASSES[:2]).model
    else:
        canonicalize.lift_initializers(model)
        graph.order_by_wiring(model.graph)
        canonicalize.reduce(model, _GROWTH)
    return symbol_of(model)
