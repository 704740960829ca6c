"""Labels and scores of classifiers and regressors of ai.onnx.ml from their sums: shared by several rows."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu.calls import Operand, kernel_call
from app.engine.core import graph
from app.engine.core.calls import Constant, KernelCall, Workspace
from app.engine.operators.forest import TRANSFORMS, floats, targets_of
from app.kernels.cpu.scores import PAIRS

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Classes:
    """Choice of a label and transform of the sums of a row, see `app.kernels.cpu.scores.scores`.

    Attributes:
        labels: integers by class; empty where there is no label.
    """

    choice: str
    limit: float
    transform: str
    labels: tuple[int, ...] = ()


def transform_of(node: ir.Node, width: int) -> str:
    """Transform of a row of sums: of a single one there is only PROBIT."""
    found = graph.attribute(node, "post_transform", "NONE")
    name = TRANSFORMS[found] if isinstance(found, int) else str(found)
    return name if width > 1 or name == "PROBIT" else "NONE"


def classes_of(node: ir.Node, ids: Array, weights: Array) -> Classes:
    """Labels and scores of an ensemble of trees whose leaves have these weights for these classes.

    Of two classes of which one has weights, the other has what is left.
    """
    width = targets_of(node)
    if node.op_type != "TreeEnsembleClassifier":
        return Classes("none", 0, transform_of(node, width))
    labels: tuple[int, ...] = tuple(graph.attribute(node, "classlabels_int64s", ()))
    if width != 2:
        return Classes("largest", 0, transform_of(node, width), labels)
    used = set(np.unique(ids).tolist())
    limit = 0.5 if len(used) == 1 and bool((weights >= 0).all()) else 0.0
    if used == {0} and len(floats(node, "base_values")) < 2:
        return Classes("single", limit, pair_of(node, complement=bool(limit)), labels)
    # onnxruntime gives numbers of classes, not labels, where both have weights.
    return Classes("second", limit, transform_of(node, 2), (0, 1) if len(used) > 1 else labels)


def pair_of(node: ir.Node, *, complement: bool) -> str:
    """Transform of one sum to the scores of two classes."""
    if graph.attribute(node, "post_transform", "NONE") == "LOGISTIC":
        return "logistic"
    return "complement" if complement else "negative"


def scored(
    node: ir.Node, classes: Classes, raw: Operand, there: Operand | None, rows: int, width: int
) -> KernelCall:
    """The call that makes labels and scores of sums, which it writes over."""
    number = raw[0].removesuffix("*")
    outputs = list(node.outputs) if classes.labels else [None, node.outputs[-1]]
    chosen, y = (v if v is not None and v.name else None for v in outputs)
    columns = 2 if classes.transform in PAIRS else width
    kind = "float32" if y is None else graph.element_type(y).name
    operands = (
        raw,
        ("uint8*", Workspace(1)) if there is None else there,
        ("int64*", Constant(np.array(classes.labels or (0,), np.int64))),
        ("int64*", Workspace(8 * rows if classes.labels else 8) if chosen is None else chosen),
        (f"{kind}*", Workspace(4 * rows * columns) if y is None else y),
        width,
    )
    static = (number, classes.choice, classes.limit, classes.transform, there is not None)
    return kernel_call("app.kernels.cpu.scores:scores", operands, rows, static)
