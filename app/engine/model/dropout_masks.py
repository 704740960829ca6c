"""Masks of Dropout in training graphs, which are inputs: 0 or 1 / (1 - p) for each element.

A mask notes the share p of elements that are left out, so that inputs that are drawn hold one.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

SHARE = "stowplan.dropout"  # metadata of an input: p


def mask(name: str, shape: Iterable[int | ir.SymbolicDim], like: ir.Value, share: float) -> ir.Value:
    """The mask of a Dropout, of the element type of a value."""
    return ir.Value(
        name=name, shape=ir.Shape(shape), type=like.type, metadata_props={SHARE: repr(float(share))}
    )


def share_of(value: ir.Value) -> float | None:
    """Share of elements that a mask leaves out; None of what is no mask."""
    try:
        share = float(value.metadata_props.get(SHARE, ""))
    except ValueError:
        return None
    return share if 0 <= share < 1 else None


def drawn(
    share: float, shape: tuple[int, ...], kind: np.dtype[Any], random: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Elements of a mask."""
    return np.where(random.random(shape) < share, 0, 1 / (1 - share)).astype(kind)
