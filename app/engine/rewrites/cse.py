"""Merges what is the same: initializers of equal content, nodes of equal operands."""

from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import takes_over
from app.engine.core.signature import computation
from app.engine.rewrites.constant_folding import NONDETERMINISTIC
from app.engine.types.storage import MXNET

_SAMPLED = 64  # bytes compared before whole tensors are


def merge(main: ir.Graph) -> Counter[str]:
    """Merge initializers, then nodes, of the main graph; how many went."""
    return +Counter({"merge_initializers": merge_initializers(main), "merge_nodes": merge_nodes(main)})


def merge_initializers(main: ir.Graph) -> int:
    """Let initializers of equal type and content be one, the first."""
    alike: dict[Hashable, list[ir.Value]] = {}
    merged = 0
    for name, value in tuple(main.initializers.items()):
        if value.is_graph_output() or value.is_graph_input() or value.dtype == ir.DataType.STRING:
            continue
        content = _content(value)
        sample = content[:: max(1, content.size // _SAMPLED)].tobytes()
        candidates = alike.setdefault((value.dtype, tuple(value.shape or ()), sample), [])
        for original in candidates:
            if np.array_equal(_content(original), content):
                value.replace_all_uses_with(original)
                del main.initializers[name]
                merged += 1
                break
        else:
            candidates.append(value)
    return merged


def _content(value: ir.Value) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a constant, which tell -0.0 from 0.0 and find NaN equal to itself."""
    return np.ascontiguousarray(graph.array(value)).reshape(-1).view(np.uint8)


def merge_nodes(main: ir.Graph) -> int:
    """Let nodes with the same operator, operands and attributes be one, the first.

    Later nodes see the merged operands, so that chains merge in one go.
    """
    first: dict[Hashable, ir.Node] = {}
    merged = 0
    for node in tuple(main):
        # Of operators that only MXNet has it is not known which draw numbers.
        is_kept = node.op_type in NONDETERMINISTIC or node.domain == MXNET
        key = None if is_kept else computation(node)
        if key is None:
            continue
        original = first.setdefault(key, node)
        if original is node or not all(map(takes_over, original.outputs, node.outputs)):
            continue
        for old, new in zip(node.outputs, original.outputs):
            if old.is_graph_output():
                new.name = old.name
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        main.remove(node, safe=True)
        merged += 1
    return merged
