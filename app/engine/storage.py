"""Storage types of values and dispatch modes of nodes.

Source: the vocabulary of apache/mxnet include/mxnet/ndarray.h and op_attr_types.h.
"""

import enum
from dataclasses import dataclass
from typing import Literal

StorageKind = Literal["default", "row_sparse", "csr"]


@dataclass(frozen=True, slots=True)
class StorageType:
    """How a value's elements are represented: dense or sparse, of which dtype, how full."""

    kind: StorageKind
    dtype: str  # NumPy name, or the ONNX name of a type that NumPy lacks
    density: float = 1.0


class DispatchMode(enum.Enum):
    """How a node is run."""

    COMPUTE = "compute"  # a kernel on dense operands
    COMPUTE_EX = "compute_ex"  # a kernel on sparse or privately laid out operands
    FALLBACK = "fallback"  # the reference evaluator
    VARIABLE = "variable"  # no work: an input or a constant
    SUBGRAPH = "subgraph"  # a library runs a whole sub-graph
