"""Storage types of values, dispatch modes of nodes, and how one node infers them.

Source: the vocabulary of apache/mxnet include/mxnet/ndarray.h and op_attr_types.h; the scheme of one
node's inference follows operator_common.h (storage_type_assign, dispatch_fallback).
"""

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

# The last two are for constants: two of four neighbours kept, and blocks of 16 columns.
StorageKind = Literal["default", "row_sparse", "csr", "2:4", "block16"]

DECLARED = "__storage_type__"  # metadata of an input, initializer or output, as MXNet names the attribute
SPARSE_GRADIENT = "stowplan.sparse_gradient"  # metadata of a Gather whose table has a row_sparse gradient
MXNET = "mxnet"  # domain of operators that are MXNet's own
LETTERS: Mapping[str, StorageKind] = {"d": "default", "r": "row_sparse", "c": "csr"}


@dataclass(frozen=True, slots=True)
class Symbol:
    """An operator of domain `mxnet` with its attributes, and which inputs of an ONNX node are its own."""

    op: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    operands: int | None = None  # the first so many; None for all


def is_note(key: str) -> bool:
    """True for metadata under the name of an attribute that symbols of MXNet have of variables."""
    return key.startswith("__") and key.endswith("__")


@dataclass(frozen=True, slots=True)
class StorageType:
    """How a value's elements are represented: dense or sparse, of which dtype, how full.

    Attributes:
        dtype: NumPy name, or the ONNX name of a type that NumPy lacks.
        density: of a constant, as measured; of a sparse value of a run, an upper limit.
        bound: most elements that a csr value stores, most rows of a row_sparse one; None where `density`
            alone is known.
    """

    kind: StorageKind
    dtype: str
    density: float = 1.0
    bound: int | None = None


def most_entries(kind: StorageKind, shape: tuple[int, ...]) -> int:
    """Entries of a value that is full: rows of row_sparse, else elements."""
    return shape[0] if kind == "row_sparse" else math.prod(shape)


@dataclass(frozen=True, slots=True)
class DeclaredStorage:
    """Declared storage type of an input of a run, and the most that it stores: a number or a share.

    Attributes:
        entries: elements of csr, rows of row_sparse.
        density: share of all elements or rows, above 0 and at most 1.
    """

    kind: StorageKind
    entries: int | None = None
    density: float | None = None

    def bound(self, shape: tuple[int, ...]) -> int:
        """Most entries of an input of this shape."""
        most = most_entries(self.kind, shape)
        stated = math.ceil((self.density or 0.0) * most) if self.entries is None else self.entries
        return min(stated, most)

    def stored(self, dtype: str, shape: tuple[int, ...]) -> StorageType:
        """The storage type of an input of this shape."""
        bound = self.bound(shape)
        return StorageType(self.kind, dtype, bound / max(most_entries(self.kind, shape), 1), bound)

    def __str__(self) -> str:
        """As a request states it."""
        if self.entries is None:
            return f"{self.kind} of density {self.density:g}"
        return f"{self.kind} of {self.entries} {'rows' if self.kind == 'row_sparse' else 'elements'}"


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
        """The format of a value, with room for its bound, or for as much as its density allows."""
        rows, columns = shape[0], math.prod(shape[1:])
        most = most_entries(storage.kind, shape)
        stated = math.ceil(storage.density * most) if storage.bound is None else storage.bound
        return cls(storage.kind, rows, columns, min(stated, most), itemsize)

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

    def __str__(self) -> str:
        """Storage type, most entries and bytes."""
        entries = "rows" if self.kind == "row_sparse" else "elements"
        return f"{self.kind} of at most {self.capacity} {entries} in {self.nbytes} byte"


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
        mode: of nodes to which no row applies.
        of_kinds: mode by all input kinds where no row applies, outputs are dense: for many inputs.
        first: the first row that fits what is known decides, also while an input is not known.
    """

    rows: tuple[StorageRow, ...]
    otherwise: StorageKind | None = "default"
    first: bool = False
    mode: DispatchMode = DispatchMode.FALLBACK
    of_kinds: Callable[[Kinds], DispatchMode | None] | None = None


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
        found.append(StorageRow(parsed_kinds(inputs), parsed_kinds(outputs), MODES[mode]))
    return tuple(found)


def parsed_kinds(letters: str) -> tuple[StorageKind, ...]:
    """Storage types by the letters of LETTERS."""
    return tuple(LETTERS[letter] for letter in letters)


def infer(rules: StorageRules, inputs: Kinds, outputs: Kinds) -> Inferred | str:
    """The storage types of a node as far as they follow; or why the operator takes none of this kind.

    Where all inputs are known a row decides, or casts do. Where one is not, it follows if a single row
    fits what is known: this carries knowledge from readers back to what they read.
    """
    fitting = [row for row in rules.rows if _fits(row.inputs, inputs) and _fits(row.outputs, outputs)]
    if None in inputs:
        if not fitting or (len(fitting) > 1 and not rules.first):
            return Inferred(inputs, outputs, None)
        return Inferred(fitting[0].inputs, fitting[0].outputs, fitting[0].mode)
    if fitting:
        return Inferred(inputs, fitting[0].outputs, fitting[0].mode)
    mode = None if rules.of_kinds is None else rules.of_kinds(inputs)
    if mode is not None:
        return Inferred(inputs, parsed_kinds("d" * len(outputs)), mode)
    if rules.otherwise is None:
        told = ", ".join(f"({', '.join(map(str, row.inputs))})" for row in rules.rows)
        return f"takes storage types {told}; found ({', '.join(map(str, inputs))})"
    return Inferred(inputs, tuple(k or rules.otherwise for k in outputs), rules.mode)


def _fits(row: Kinds, known: Kinds) -> bool:
    return len(row) == len(known) and all(k is None or k == r for r, k in zip(row, known))
