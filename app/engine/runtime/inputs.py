"""The tensors on which a program is verified and measured."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.model import dropout_masks, given_tensors
from app.engine.model.operand_types import title
from app.engine.passes.infer_types import bound_inputs
from app.engine.types.errors import InputError
from app.engine.types.options import Bindings
from app.engine.types.sparse_array import SparseArray
from app.engine.types.storage import DeclaredStorage, most_entries

Array = np.ndarray[Any, Any]


def tensors(compilation: Compilation, bindings: Bindings, seed: int) -> dict[str, object]:
    """An array for every input of the uploaded model, bound ones included, in the model's order.

    A given tensor is read from its file, a sparse one as it is stored there; masks of Dropout are drawn with
    their share of zeros, other floats from the standard normal distribution, booleans evenly, integers from
    the declared range. What is drawn for an input depends on the seed and its position only.

    Raises:
        InputError: a tensor or range does not fit its input, or an input that cannot be drawn
            has none.
    """
    bound = {b.position: b for b in bound_inputs(compilation.model)}
    free = iter(compilation.graph.inputs)
    found: dict[str, object] = {}
    for position in range(len(compilation.graph.inputs) + len(bound)):
        if position in bound:
            found[bound[position].value.name or ""] = bound[position].array
        else:
            value = next(free)
            found[value.name or ""] = _tensor(value, bindings, np.random.default_rng([seed, position]))
    for option, names in (("inputs", bindings.tensors), ("input_ranges", bindings.ranges)):
        for name in names:
            if name not in found:
                raise InputError(
                    f"no input is called {name!r}; the model has {', '.join(map(repr, found)) or 'none'}",
                    pointer=f"/{option}/{name}",
                )
    return found


class WrittenOut(Mapping[str, object]):
    """Inputs for runtimes without sparse arrays: a sparse one is written out whenever it is read."""

    def __init__(self, inputs: Mapping[str, object]) -> None:
        self._inputs = inputs

    def __getitem__(self, name: str) -> object:
        """The input, all its elements."""
        found = self._inputs[name]
        return found.dense() if isinstance(found, SparseArray) else found

    def __iter__(self) -> Iterator[str]:
        """Names, in order."""
        return iter(self._inputs)

    def __len__(self) -> int:
        """Number of inputs."""
        return len(self._inputs)


def as_stored(inputs: Mapping[str, object], program: Program) -> dict[str, object]:
    """The inputs that a program has; sparse ones are written out, once, where its plan has them dense."""
    storage, dense = program.compilation.plan.require("storage"), WrittenOut(inputs)
    values = {v.name or "": v for v in program.compilation.graph.inputs}
    return {
        name: inputs[name] if storage[value].kind != "default" else dense[name]
        for name, value in values.items()
        if name in inputs
    }


def _tensor(value: ir.Value, bindings: Bindings, random: np.random.Generator) -> Array | SparseArray:
    name = value.name or ""
    if name in bindings.tensors:
        return _given(value, Path(bindings.tensors[name]))
    kind = graph.dtype(value) if graph.is_tensor(value) else None
    if kind is None:
        way = (
            "a job computes on tensors alone: extract the part of the model behind it"
            if graph.is_composite(value)
            else f"no elements are drawn of it: give a tensor (`stowplan optimize --tensor {name}=FILE.npy`)"
        )
        raise InputError(f"input {name!r} has type {title(value.type)}; {way}", pointer=f"/inputs/{name}")
    shape = graph.static_shape(value)
    if (share := dropout_masks.share_of(value)) is not None and kind.kind == "f":
        return dropout_masks.drawn(share, shape, kind, random)
    if name in bindings.storage and kind.kind == "f":
        return _sparse(bindings.storage[name], shape, kind, random)
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(kind)
    if value.dtype is not None and value.dtype.is_integer():
        return _integers(name, bindings.ranges.get(name), value.dtype, shape, random)
    return random.standard_normal(shape).astype(kind)


def _sparse(
    storage: DeclaredStorage, shape: tuple[int, ...], kind: np.dtype[Any], random: np.random.Generator
) -> Array:
    """As many elements or rows that are not zero as the storage type allows, where chance has them."""
    most = most_entries(storage.kind, shape)
    found = np.zeros(shape, kind)
    if storage.kind == "row_sparse":
        kept = random.choice(most, storage.bound(shape), replace=False)
        found[kept] = random.standard_normal((len(kept), *shape[1:])).astype(kind)
    else:
        kept = random.choice(most, storage.bound(shape), replace=False)
        found.reshape(-1)[kept] = random.standard_normal(len(kept)).astype(kind)
    return found


def _integers(
    name: str,
    interval: tuple[int, int] | None,
    dtype: ir.DataType,
    shape: tuple[int, ...],
    random: np.random.Generator,
) -> Array:
    """Integers of the half-open interval; which ones mean something only the caller knows."""
    pointer = f"/input_ranges/{name}"
    if interval is None:
        raise InputError(
            f"input {name!r} is {dtype.numpy().name}: random integers mean nothing to most models; "
            "give a tensor, or a range to draw from",
            pointer=pointer,
        )
    low, high = interval
    bits = dtype.bitwidth
    least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if dtype.is_signed() else (0, 2**bits)
    if not least <= low < high <= most:
        raise InputError(
            f"input {name!r}: range [{low}, {high}) must not be empty and must fit {dtype.numpy().name}, "
            f"which holds [{least}, {most})",
            pointer=pointer,
        )
    wide = np.uint64 if high > 2**63 else np.int64
    return random.integers(low, high, shape, dtype=wide).astype(dtype.numpy())


def _given(value: ir.Value, path: Path) -> Array | SparseArray:
    """The array of a file, checked against the input's type and shape."""
    name = value.name or ""
    pointer = f"/inputs/{name}"
    found = given_tensors.given(name, path)
    if isinstance(found, SparseArray):
        planned, kind = graph.shape(value), graph.dtype(value)
        if found.shape != planned or found.values.dtype != kind:
            wanted, held = f"{kind}{list(planned or ())}", f"{found.values.dtype}{list(found.shape)}"
            raise InputError(f"input {name!r}: expected {wanted}, found {held}", pointer=pointer)
        return found
    array: Array = np.array(found)
    if graph.is_composite(value):
        raise InputError(f"input {name!r} is no tensor; only tensors can be given", pointer=pointer)
    if value.dtype == ir.DataType.STRING:
        if array.dtype.kind != "U":
            raise InputError(f"input {name!r}: expected strings, found {array.dtype}", pointer=pointer)
        array = array.astype(object)
    elif array.dtype != graph.dtype(value):
        raise InputError(
            f"input {name!r}: expected {graph.dtype(value)}, found {array.dtype}", pointer=pointer
        )
    shape = graph.shape(value)
    if array.shape != shape:
        raise InputError(
            f"input {name!r}: expected shape {list(shape or ())}, found {list(array.shape)}", pointer=pointer
        )
    return array


def samples(
    values: Iterable[ir.Value], storage: Mapping[str, DeclaredStorage] = MappingProxyType({})
) -> dict[str, object]:
    """Arrays of the right shapes and types, by name: small positive floats, integers zero.

    Inputs that are declared sparse hold what `storage` allows.
    """
    rng = np.random.default_rng(0)
    found: dict[str, object] = {}
    for value in values:
        kind = graph.dtype(value)
        if kind is None or graph.is_dynamic(value):
            continue
        shape = graph.static_shape(value)
        drawn = rng.uniform(0.5, 1.0, shape) if kind.kind == "f" else np.zeros(shape)
        if (name := value.name or "") in storage:
            drawn *= _sparse(storage[name], shape, np.dtype(np.float64), rng) != 0
        found[value.name or ""] = drawn.astype(kind)
    return found
