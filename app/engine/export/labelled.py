"""Outputs that Python makes of numbers and of names known beforehand: a library gives the numbers.

A ZipMap makes maps of scores, and a Gather of constant names makes strings of indices. The names are in the
description of the output, from which the module of a wheel makes what the model says.
"""

from typing import NamedTuple

import onnx_ir as ir

from app.engine.backends.cpu.labels import map_labels
from app.engine.core import graph
from app.engine.operators.forest import DOMAIN
from app.engine.operators.operands import data
from app.engine.types.map_type import Label


class Labelled(NamedTuple):
    """Numbers of an output, and names of columns or of indices.

    Attributes:
        numbers: scores of samples, float32[n, labels], or indices of names.
        kind: `map_labels` of columns, `names` of indices.
    """

    numbers: ir.Value
    kind: str
    labels: tuple[Label, ...]


def labelled(value: ir.Value) -> Labelled | None:
    """The numbers of an output that Python makes of them; None of others."""
    node = value.producer()
    if node is None:
        return None
    if (node.domain, node.op_type) == (DOMAIN, "ZipMap"):
        scores, labels = data(node), map_labels(node)
        shape = graph.shape(scores)
        fits = shape is not None and len(shape) == 2 and shape[1] == len(labels)
        return Labelled(scores, "map_labels", labels) if fits else None
    if node.op_type == "Gather" and value.dtype == ir.DataType.STRING:
        names, index = graph.constant(node.inputs[0]), graph.input_at(node, 1)
        if names is not None and names.ndim == 1 and index is not None and graph.shape(index) is not None:
            texts = (n.decode() if isinstance(n, bytes) else str(n) for n in names)
            return Labelled(index, "names", tuple(texts))
    return None
