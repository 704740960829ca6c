"""Models whose nodes ask for gradients, as plain operators; others stay as they are."""

import onnx_ir as ir

from app.engine.gradient import expand
from app.engine.model import given_tensors
from app.engine.model.load import Loaded
from app.engine.passes.infer_types import bind_shapes
from app.engine.types.limits import Limits
from app.engine.types.options import Bindings


def expanded(loaded: Loaded, bindings: Bindings = Bindings()) -> Loaded:  # noqa: B008  # frozen
    """The model with its gradients expanded, for the shapes that are bound; it is changed in place.

    Raises:
        EngineError: a shape on the way is not known, or an operator has no gradient.
    """
    expanded_model(loaded.model, bindings)
    return loaded


def expanded_model(model: ir.Model, bindings: Bindings = Bindings()) -> ir.Model:  # noqa: B008  # frozen
    """The model, changed in place: see `expanded`."""
    if expand.asks(model):
        bind_shapes(model.graph, bindings.shapes, given_tensors.shapes(bindings.tensors))
        expand.expand(model, Limits())
    return model
