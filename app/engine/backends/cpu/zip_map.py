"""ZipMap: the maps are made when somebody reads them, a run only keeps the scores."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import Call, HostCall
from app.engine.core.group import Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.operands import data
from app.engine.types.score_maps import Label, ScoreMaps

SECONDS = 1e-6  # of the call and of a copy of few scores


def _labels(node: ir.Node) -> tuple[Label, ...]:
    return tuple(
        graph.attribute(node, "classlabels_strings", ()) or graph.attribute(node, "classlabels_int64s", ())
    )


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    x = data(group.anchor)
    shape = graph.shape(x)
    if len(group.nodes) > 1 or shape is None or len(shape) not in (1, 2):
        return f"input {x.name!r} has the shape {x.shape}, expected samples of scores"
    if shape[-1] != len(_labels(group.anchor)):
        return f"input {x.name!r} has {shape[-1]} scores a sample for {len(_labels(group.anchor))} labels"
    return None


def prepare(node: ir.Node) -> Callable[[Sequence[object | None]], list[object]]:
    """See `app.engine.core.calls.HostCall`."""
    labels = _labels(node)
    shape = graph.static_shape(data(node))
    matrix = (1, *shape)[-2:]

    def run(values: Sequence[object | None]) -> list[object]:
        scores = values[0]
        assert isinstance(scores, np.ndarray)
        return [ScoreMaps(labels, scores.reshape(matrix).copy())]

    return run


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    node = group.anchor
    return (HostCall(f"{__name__}:prepare", node, tuple(node.inputs), tuple(node.outputs)),)


def _cost(_group: Group, _context: PlanningContext) -> float:
    return SECONDS


IMPLEMENTATIONS = (Implementation("zip_map.lazy", "ZipMap", "numba-cpu", _rejection, _lower, _cost),)
