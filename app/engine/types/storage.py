"""Storage types of values, dispatch modes of nodes, and how one node infers them.

Source: the vocabulary of apache/mxnet include/mxnet/ndarray.h and op_attr_types.h; the scheme of one
node's inference follows operator_common.h (storage_type_assign, dispatch_fallback).
"""

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

# The last two are for constants: two of four neighbours kept, and blocks of 16 columns.
StorageKind = Literal["default", "row_sparse", "csr", "2:4", "block16"]

DECLARED = "__storage_type__"  # metadata of an input or initializer, as MXNet names the attribute
MXNET = "mxnet"  # domain of operators that are MXNet's own
LETTERS: Mapping[str, StorageKind] = {"d": "default", "r": "row_sparse", "c": "csr"}


def is_note(key: str) -> bool:
    """True for metadata under the name of an attribute that symbols of MXNet have of variables."""
    return key.startswith("__") and key.endswith("__")


@dataclass(frozen=True, slots=True)
class StorageType:
    """How a value's elements are represented: dense or sparse, of which dtype, how full."""

    kind: StorageKind
    dtype: str  # NumPy name, or the ONNX name of a type that NumPy lacks
    density: float = 1.0


@dataclass(frozen=True, slots=True)
class SparseFormat:
    """How a sparse value of two axes or more lies in one buffer.

    csr: int64[rows + 1] where rows begin, int32[capacity] columns, T[capacity] values. row_sparse:
    int64[1] the number of rows, int32[capacity] which, in order, T[capacity, columns] their values.
    Each part begins at a multiple of 8 byte.
    """

    kind: StorageKind
    rows: int
    columns: int
    capacity: int  # elements of csr, rows of row_sparse
    itemsize: int

    @classmethod
    def of(cls, storage: StorageType, shape: tuple[int, ...], itemsize: int) -> "SparseFormat":
        """The format of a value, with room for as much as its density allows."""
        rows, columns = shape[0], math.prod(shape[1:])
        most = rows if storage.kind == "row_sparse" else rows * columns
        return cls(storage.kind, rows, columns, min(math.ceil(storage.density * most), most), itemsize)

    @property
    def places(self) -> int:
        """Where the indices begin, in int32."""
        return 2 * (self.rows + 1 if self.kind == "csr" else 1)

    @property
    def values(self) -> int:
        """Where the values begin, in elements."""
        return 8 * (self.places // 2 + -(-self.capacity // 2)) // self.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.itemsize * (
            self.values + self.capacity * (self.columns if self.kind == "row_sparse" else 1)
        )


class DispatchMode(enum.Enum):
    """How a node is run."""

    COMPUTE = "compute"  # a kernel on dense operands
    COMPUTE_EX = "compute_ex"  # a kernel on sparse or privately laid out operands
    FALLBACK = "fallback"  # the reference evaluator, or a dense kernel behind casts of its operands
    SUBGRAPH = "subgraph"  # a library runs a whole sub-graph


MODES: Mapping[str, DispatchMode] = {
    "F": DispatchMode.COMPUTE,
    "X": DispatchMode.COMPUTE_EX,
    "B": DispatchMode.FALLBACK,
}

Kinds: TypeAlias = tuple[StorageKind | None, ...]  # None where it is not known yet
Attributes: TypeAlias = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StorageRow:
    """Storage types that an operator takes together, and how it is then run."""

    inputs: Kinds
    outputs: Kinds
    mode: DispatchMode


@dataclass(frozen=True, slots=True)
class StorageRules:
    """Storage rule of an operator.

    Attributes:
        rows: in order of preference.
        otherwise: storage type of outputs where no row applies and inputs are cast; None where that
            is an error.
    """

    rows: tuple[StorageRow, ...]
    otherwise: StorageKind | None = "default"


# From attributes and the numbers of inputs and outputs.
StorageRuleOf: TypeAlias = Callable[[Attributes, int, int], StorageRules]


@dataclass(frozen=True, slots=True)
class Inferred:
    """State of a node's storage types; the mode is None while one of them is not known."""

    inputs: Kinds
    outputs: Kinds
    mode: DispatchMode | None


def dense(mode: DispatchMode = DispatchMode.COMPUTE) -> StorageRuleOf:
    """Dense operands in this mode; sparse ones are cast. What has no rows of its own does COMPUTE."""

    def rules(_attributes: Attributes, inputs: int, outputs: int) -> StorageRules:
        kind: StorageKind = "default"
        return StorageRules((StorageRow((kind,) * inputs, (kind,) * outputs, mode),))

    return rules


def parsed(text: str) -> tuple[StorageRow, ...]:
    """Rows such as `dc>d:X`: inputs, outputs and mode, by the letters of LETTERS and MODES."""
    found = []
    for word in text.split():
        inputs, rest = word.split(">")
        outputs, mode = rest.split(":")
        taken = tuple(LETTERS[letter] for letter in inputs)
        given = tuple(LETTERS[letter] for letter in outputs)
        found.append(StorageRow(taken, given, MODES[mode]))
    return tuple(found)


def infer(rules: StorageRules, inputs: Kinds, outputs: Kinds) -> Inferred | str:
    """The storage types of a node as far as they follow; or why the operator takes none of this kind.

    Where all inputs are known a row decides, or casts do. Where one is not, it follows if a single row
    fits what is known: this carries knowledge from readers back to what they read.
    """
    fitting = [row for row in rules.rows if _fits(row.inputs, inputs) and _fits(row.outputs, outputs)]
    if None in inputs:
        if len(fitting) != 1:
            return Inferred(inputs, outputs, None)
        return Inferred(fitting[0].inputs, fitting[0].outputs, fitting[0].mode)
    if fitting:
        return Inferred(inputs, fitting[0].outputs, fitting[0].mode)
    if rules.otherwise is None:
        told = ", ".join(f"({', '.join(map(str, row.inputs))})" for row in rules.rows)
        return f"takes storage types {told}; found ({', '.join(map(str, inputs))})"
    return Inferred(inputs, tuple(k or rules.otherwise for k in outputs), DispatchMode.FALLBACK)


def _fits(row: Kinds, known: Kinds) -> bool:
    return len(row) == len(known) and all(k is None or k == r for r, k in zip(row, known))
