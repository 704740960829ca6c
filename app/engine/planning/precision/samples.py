"""Samples that precisions are calibrated and checked on: given, or drawn from seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.model import given_tensors
from app.engine.runtime.inputs import WrittenOut, tensors
from app.engine.types.errors import InputError
from app.engine.types.options import Bindings

Array = np.ndarray[Any, Any]
Sample = Mapping[str, object]

DRAWN = 32  # samples where none are given
MOST = 64  # samples that are used of those given; the others are left out, and the report says so
POINTER = "/samples"


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs of a model.

    Attributes:
        calibration: what levels and precisions are chosen on.
        held_back: what the error is told of; the same where there is one sample only.
        source: `given` or `drawn`.
        warnings: on what the samples do to the result.
    """

    calibration: tuple[Sample, ...]
    held_back: tuple[Sample, ...]
    source: str
    warnings: tuple[str, ...]


def samples(compilation: Compilation, bindings: Bindings, seed: int) -> Samples:
    """The samples of a job, every second one held back.

    Raises:
        InputError: the file is none, an array has another type or shape than its input, or holds NaN or
            infinity, or an input has none.
    """
    if bindings.samples:
        found, warnings = _given(compilation, bindings, seed)
        source = "given"
    else:
        found, warnings, source = _drawn(compilation, bindings, seed), [], "drawn"
        warnings.append(
            f"no samples were given: levels and errors are those of {len(found)} random inputs, and say "
            "nothing of real ones; give some of those with `samples`"
        )
    if len(found) == 1:
        warnings.append(
            "there is one sample only: the error is told of the sample that levels were chosen on, and may "
            "be larger on others; give at least two"
        )
        return Samples(tuple(found), tuple(found), source, tuple(warnings))
    return Samples(tuple(found[0::2]), tuple(found[1::2]), source, tuple(warnings))


def _drawn(compilation: Compilation, bindings: Bindings, seed: int) -> list[Sample]:
    fixed = set(bindings.tensors)
    free = {v.name or "" for v in compilation.graph.inputs}
    count = 1 if free <= fixed else DRAWN
    return [dict(WrittenOut(tensors(compilation, bindings, seed + k))) for k in range(count)]


def _given(compilation: Compilation, bindings: Bindings, seed: int) -> tuple[list[Sample], list[str]]:
    arrays = _read(Path(bindings.samples))
    inputs = {v.name or "": v for v in compilation.graph.inputs}
    if unknown := [name for name in arrays if name not in inputs]:
        raise InputError(
            f"samples: no input is called {unknown[0]!r}; the model has {', '.join(map(repr, inputs))}",
            pointer=POINTER,
        )
    if absent := [name for name in inputs if name not in arrays and name not in bindings.tensors]:
        raise InputError(f"samples: there is no array for input {absent[0]!r}", pointer=POINTER)
    columns = {name: _column(inputs[name], array) for name, array in arrays.items()}
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {name!r}" for name, count in counts.items())
        raise InputError(f"samples: there must be as many of each input, found {told}", pointer=POINTER)
    count = min(counts.values(), default=0)
    if not count:
        raise InputError("samples: the file holds none", pointer=POINTER)
    warnings = [w for name, column in columns.items() if (w := _constant(name, column))]
    if count > MOST:
        warnings.append(f"the first {MOST} of {count} samples are used")
    others = dict(WrittenOut(tensors(compilation, _without(bindings, arrays, inputs), seed)))
    rows: list[Sample] = [
        {**others, **{name: column[k] for name, column in columns.items()}} for k in range(min(count, MOST))
    ]
    return rows, warnings


def _without(bindings: Bindings, arrays: Mapping[str, Array], inputs: Mapping[str, ir.Value]) -> Bindings:
    """Bindings with which inputs that samples are given of can be drawn: integers need a range."""
    ranges = dict(bindings.ranges)
    for name in arrays:
        if inputs[name].dtype is not None and inputs[name].dtype.is_integer():  # type: ignore[union-attr]  # not None
            ranges.setdefault(name, (0, 1))
    return Bindings(bindings.shapes, bindings.values, bindings.tensors, ranges, bindings.storage)


def _read(path: Path) -> dict[str, Array]:
    try:
        return given_tensors.archived(path)
    except ValueError as cause:
        raise InputError(
            f"samples: expected an npz file of numbers by input name: {cause}", pointer=POINTER
        ) from None


def _column(value: ir.Value, array: Array) -> Array:
    """One input's samples, [samples, *shape]; an array of the input's own shape is one sample."""
    name, shape = value.name, graph.static_shape(value)
    kind = graph.element_type(value)
    if array.dtype != kind:
        raise InputError(f"samples: expected {kind} for input {name!r}, found {array.dtype}", pointer=POINTER)
    if array.shape == shape:
        array = array[np.newaxis]
    if array.shape[1:] != shape or array.ndim == 0:
        raise InputError(
            f"samples: expected shape [samples, {', '.join(map(str, shape))}] for input {name!r}, found "
            f"{list(array.shape)}",
            pointer=POINTER,
        )
    if kind.kind == "f":
        bad = [k for k, sample in enumerate(array) if not np.all(np.isfinite(sample))]
        if bad:
            count = int(np.sum(~np.isfinite(array[bad[0]])))
            raise InputError(
                f"samples: sample {bad[0]} of input {name!r} has {count} elements that are NaN or infinite, "
                "of which no range can be made",
                pointer=POINTER,
            )
    return array


def _constant(name: str, column: Array) -> str | None:
    """A warning on an input that never changes, or None."""
    if column.dtype.kind != "f" or column[0].size < 2:
        return None
    if np.all(column == column.reshape(-1)[0]):
        return (
            f"all elements of all samples of input {name!r} are {column.reshape(-1)[0]:g}: levels that "
            "follow from them saturate anything else"
        )
    if len(column) > 1 and all(np.array_equal(column[0], sample) for sample in column[1:]):
        return f"all samples of input {name!r} are equal: the error is told of what levels were chosen on"
    return None
