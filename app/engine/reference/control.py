"""If, Loop, Scan and SequenceMap; and what passes empty optional values on.

An empty optional value is None, a sequence a list.

Source: ONNX operator specifications of If-25, Loop-25, Scan-8, Scan-25, SequenceMap-17, Optional-15.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.reference.correction import Body, Correction, Scope

Array = np.ndarray[Any, Any]
Flags = Sequence[int] | None


def if_(condition: Array, *, then_branch: Body, else_branch: Body, scope: Scope) -> list[object]:
    """The outputs of one branch."""
    return scope.run(then_branch if condition.item() else else_branch, ())


def loop(
    trips: Array | None = None, condition: Array | None = None, *carried: object, body: Body, scope: Scope
) -> list[object]:
    """The last carried values, then one stack of elements per scan output."""
    limit = None if trips is None else int(trips.item())
    going = np.asarray(True) if condition is None else condition
    rows: list[list[Array]] = [[] for _ in body.output_names[1 + len(carried) :]]
    iteration = 0
    while going.item() and (limit is None or iteration < limit):
        going, *results = scope.run(body, (np.asarray(iteration, np.int64), going, *carried))
        carried = tuple(results[: len(carried)])
        for row, element in zip(rows, results[len(carried) :]):
            row.append(element)
        iteration += 1
    declared = body.output_types[1 + len(carried) :]
    return [*carried, *(_stacked(row, type_) for row, type_ in zip(rows, declared))]


def scan(
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    scope: Scope,
    scan_input_axes: Flags = None,
    scan_input_directions: Flags = None,
    scan_output_axes: Flags = None,
    scan_output_directions: Flags = None,
) -> list[Array]:
    """The last states, then one stack of elements per scan output; directions: 1 is backwards."""
    states = len(inputs) - num_scan_inputs
    zeros = [0] * max(num_scan_inputs, len(body.output_names))
    sources = [
        np.moveaxis(array, axis, 0)[:: -1 if backwards else 1]
        for array, axis, backwards in zip(
            inputs[states:], scan_input_axes or zeros, scan_input_directions or zeros
        )
    ]
    results = _scan(body, scope, inputs[:states], sources)
    stacks = [
        np.moveaxis(array[:: -1 if backwards else 1], 0, axis)
        for array, axis, backwards in zip(
            results[states:], scan_output_axes or zeros, scan_output_directions or zeros
        )
    ]
    return [*results[:states], *stacks]


def scan_batched(
    lengths: Array | None,
    *inputs: Array,
    body: Body,
    num_scan_inputs: int,
    scope: Scope,
    directions: Flags = None,
) -> list[Array]:
    """Scan of opset 8: a batch axis first, then the sequence axis; steps beyond a length give zeros."""
    states = len(inputs) - num_scan_inputs
    batch, longest = inputs[states].shape[:2]
    items = []
    for item in range(batch):
        length = longest if lengths is None else int(lengths[item])
        sources = [
            array[item, :length][:: -1 if backwards else 1]
            for array, backwards in zip(inputs[states:], directions or [0] * num_scan_inputs)
        ]
        results = _scan(body, scope, [s[item] for s in inputs[:states]], sources)
        stacks = [
            np.pad(array, [(0, longest - length)] + [(0, 0)] * (array.ndim - 1)) for array in results[states:]
        ]
        items.append([*results[:states], *stacks])
    return [np.stack(column) for column in zip(*items)]


def sequence_map(*inputs: object, body: Body, scope: Scope) -> list[list[object]]:
    """The body's outputs for each element; sequences go in step with the first, tensors are repeated."""
    first = inputs[0]
    assert isinstance(first, list)
    columns: list[list[object]] = [[] for _ in body.output_names]
    for i in range(len(first)):
        results = scope.run(body, [v[i] if isinstance(v, list) else v for v in inputs])
        for column, element in zip(columns, results):
            column.append(element)
    return columns


def unchanged(value: object | None = None, **_attributes: object) -> list[object | None]:
    """The value itself: an optional value is what it holds, or None."""
    return [value]


def _scan(body: Body, scope: Scope, states: Sequence[Array], sources: Sequence[Array]) -> list[Array]:
    """The last states, then the outputs of each step stacked along a new first axis."""
    lengths = {len(s) for s in sources}
    if len(lengths) != 1:
        raise ValueError(f"scan inputs must have one length, found {sorted(lengths)}")
    rows: list[list[Array]] = [[] for _ in body.output_names[len(states) :]]
    for elements in zip(*sources):
        results = scope.run(body, (*states, *elements))
        states = results[: len(states)]
        for row, element in zip(rows, results[len(states) :]):
            row.append(element)
    declared = body.output_types[len(states) :]
    return [*states, *(_stacked(row, type_) for row, type_ in zip(rows, declared))]


def _stacked(row: list[Array], declared: Any) -> Array:
    """The elements along a new first axis; without any, the declared shape, unknown dimensions 0."""
    if row:
        return np.stack(row)
    tensor = declared.tensor_type
    return np.empty((0, *(d.dim_value for d in tensor.shape.dim)), ir.DataType(tensor.elem_type).numpy())


CORRECTIONS = (
    Correction("If", if_, "refuses a branch that returns an empty optional value", scoped=True),
    Correction("Loop", loop, "joins scan outputs instead of stacking them; needs a condition", scoped=True),
    Correction("Scan", scan_batched, "lacks the batch axis of opset 8", until=9, scoped=True),
    Correction("Scan", scan, "lacks axes, directions and zero steps", since=9, scoped=True),
    Correction("SequenceMap", sequence_map, "lacks captured values and several sequences", scoped=True),
    Correction("Optional", unchanged, "puts the value into a list"),
    Correction("Identity", unchanged, "refuses a sequence"),
)
