"""A sub-graph that runs in a library, on our memory where the library takes it."""

from collections.abc import KeysView, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from app.engine.core.calls import SubgraphCall
from app.engine.core.program import Step
from app.engine.runtime import input_checks
from app.engine.runtime.executor import Array, as_planned
from app.engine.types.errors import LibraryError
from app.kernels.cpu.runtime.compiler import resolve

MAX_LENGTH = 400  # characters of what a library says


class Memory(Protocol):
    """The memory of the program around the sub-graph."""

    def place_of(self, value: ir.Value, /) -> Array | None:
        """A value's memory as an array; None for an object of the host."""

    def held(self, value: ir.Value, /) -> object:
        """The object of the host that a value is in the current run."""

    def store(self, value: ir.Value, result: object, writer: str, /) -> None:
        """Keep the result of a call."""


def _form(place: Array) -> tuple[tuple[int, ...], np.dtype[Any]]:
    return place.shape, place.dtype


class LibraryStep:
    """The one call of a step in a library.

    Attributes:
        bound: runs it in the program's memory; None for a library that returns arrays of its own.

    Raises:
        LibraryError: the library does not take the sub-graph.
    """

    def __init__(self, step: Step, memory: Memory) -> None:
        (call,) = step.calls
        assert isinstance(call, SubgraphCall)
        self.call = call
        self._group = step.group
        self._memory = memory
        self._writer = f"{call.backend} of {step.group.name!r}"
        places = [[memory.place_of(v) for v in values] for values in (call.inputs, call.outputs)]
        names = [[v.name or "" for v in values] for values in (call.inputs, call.outputs)]
        self._inputs = dict(zip(names[0], places[0]))
        self._names = names[1]  # of outputs
        self._planned = [(v, _form(p)) for v, p in zip(call.outputs, places[1]) if p is not None]
        self._forms = [(name, None if p is None else _form(p)) for name, p in self._inputs.items()]
        try:
            self._prepared = resolve(call.function)(call.model(), *names, call.threads)
            binds = hasattr(self._prepared, "bind") and all(p is not None for side in places for p in side)
            self.bound = self._prepared.bind(*places) if binds else None
        except Exception as cause:  # libraries raise types of their own, and any of them is a rejection
            raise self._failed(cause) from cause
        self.carried_bytes = sum(p.nbytes for side in places for p in side if p is not None)

    def run(self) -> None:
        """Compute the outputs in the memory of the program."""
        try:
            if self.bound is not None:
                self.bound()
                return
            given = [
                self._memory.held(v) if place is None else place
                for v, place in zip(self.call.inputs, self._inputs.values())
            ]
            results = self._prepared(given)
        except Exception as cause:  # as above
            raise self._failed(cause) from cause
        for value, result in zip(self.call.outputs, results, strict=True):
            self._memory.store(value, result, self._writer)

    def compute(
        self, expected: KeysView[str], returned: Sequence[str], inputs: Mapping[str, object]
    ) -> dict[str, object]:
        """Outputs by name without the memory of the program.

        Args:
            expected: names of the inputs.
            returned: names of the outputs, in order.
            inputs: by name.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype than planned.
        """
        if inputs.keys() != expected:
            input_checks.check_complete(inputs, expected)
            input_checks.check_known(inputs, expected)
        # A call of a function for each would be a tenth of the time of a small model.
        values = [
            given
            if form is None or (type(given) is np.ndarray and (given.shape, given.dtype) == form)
            else input_checks.as_planned(name, given, *form)
            for name, form in self._forms
            for given in (inputs[name],)
        ]
        try:
            made = dict(zip(self._names, self._prepared(values)))
        except Exception as cause:  # as above
            raise self._failed(cause) from cause
        for value, form in self._planned:
            result = made[value.name or ""]
            if type(result) is not np.ndarray or (result.shape, result.dtype) != form:
                as_planned(value, result, self._writer)
        return made if self._names == returned else {name: made[name] for name in returned}

    def _failed(self, cause: Exception) -> LibraryError:
        group, nodes = self._group.name, tuple(n.name or "" for n in self._group.nodes)
        told = " ".join(str(cause).split())[:MAX_LENGTH]
        return LibraryError(
            f"{self.call.backend} fails on the sub-graph of {group!r} ({len(nodes)} nodes): {told}",
            backend=self.call.backend,
            nodes=nodes,
            pointer=f"node:{group}",
        )
