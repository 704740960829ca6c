"""Parts of a program in memory that are the same on every device."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import HostCall
from app.engine.core.placement import Slice
from app.engine.core.program import Program, Step
from app.engine.types.errors import OperandError, UnknownOperatorError
from app.engine.types.storage import SparseFormat

Array = np.ndarray[Any, Any]
_NAMED = 5  # nodes that an error names
POISON = 0xFF  # every floating-point type reads NaN, every index is far out of range

Owned: TypeAlias = list[tuple[int, slice]]  # number of a buffer, and bytes of the arena that it owns


def rejection(program: Program) -> str:
    """Reason why a program cannot be run, with the nodes that nothing executes; empty where it can."""
    named = [f"{s.group.anchor.op_type} {s.group.anchor.name!r}" for s in program.unexecuted]
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return (
        f"nothing executes {', '.join(named[:_NAMED])}{more}: the plan is of predicted times" if named else ""
    )


class ProgramExecutor(ABC):
    """A program bound to memory, with the objects of the host that have no place in it.

    Raises:
        UnknownOperatorError: it has steps that nothing executes.
    """

    def __init__(self, program: Program) -> None:
        if program.unexecuted:
            raise UnknownOperatorError(rejection(program))
        self.program = program
        self._model = program.compilation.graph
        self._declared = program.compilation.bindings.storage
        self._host: dict[ir.Value, object] = {}  # dynamic values of the current run

    @property
    def own_bytes(self) -> int:
        """Bytes of the arena and of inputs and outputs of known shape; constants are no part of it."""
        values = (*self._model.inputs, *self._model.outputs)
        known = (v for v in values if graph.is_tensor(v) and graph.shape(v) is not None)
        return self.arena_bytes + sum(map(graph.nbytes, known))

    @property
    def arena_bytes(self) -> int:
        """Bytes of the arena."""
        return self.program.arena_bytes

    def run(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Outputs by name, copied out of the program's memory; a `SparseArray` where one is stored sparse.

        Raises:
            InputError: an input is missing, unknown, or of another shape or dtype than planned.
        """
        self.feed(inputs)
        self.step()
        return self.fetch()

    @abstractmethod
    def feed(self, inputs: Mapping[str, object]) -> None:
        """Copy inputs to where the program reads them."""

    @abstractmethod
    def step(self) -> None:
        """Run all steps on the inputs that were fed."""

    def infer(self) -> None:
        """The same; when it returns, all is done."""
        self.step()

    @abstractmethod
    def fetch(self) -> dict[str, object]:
        """Copies of the outputs."""

    @abstractmethod
    def _write(self, value: ir.Value, array: Array) -> None:
        """Copy an array to the memory of a value."""

    def _is_placed(self, value: ir.Value) -> bool:
        """True if a value has memory; else it is an object of the host."""
        return value in self.program.placement.values

    def store(self, value: ir.Value, result: object, writer: str) -> None:
        """Keep the result of a call from Python; `writer` names the call in errors."""
        if self._is_placed(value):
            self._write(value, as_planned(value, result, writer))
        else:
            self._host[value] = _owned(result)

    def run_kernels(
        self, call: HostCall, function: Callable[..., list[object]], operands: Sequence[object | None]
    ) -> None:
        """Run kernels of a call whose results lie outside the arena: only their next run changes these."""
        self._host.update(zip(call.outputs, function(operands)))

    def _ran(self, index: int) -> None:  # noqa: B027  # a hook
        """Called after each step in poisoned memory; for tests."""


def sparse_format(program: Program, value: ir.Value) -> SparseFormat | None:
    """How an input or output lies in memory that is stored sparse; None where it is dense, or no tensor."""
    storage = program.compilation.plan.require("storage").get(value)
    if storage is None or storage.kind == "default" or value.is_initializer():
        return None
    return SparseFormat.of(storage, graph.static_shape(value), graph.element_type(value).itemsize)


def as_planned(value: ir.Value, result: object, writer: str) -> Array:
    """The result of a call as an array; raises OperandError where shape or dtype are not as planned."""
    array = np.asarray(result)
    expected, kind = graph.static_shape(value), graph.dtype(value)
    if array.shape != expected or array.dtype != kind:
        raise OperandError(
            f"{writer}: output {value.name!r} was planned as {kind}{list(expected)}, "
            f"computed as {array.dtype}{list(array.shape)}",
            pointer=f"value:{value.name}",
        )
    return array


def stretches(steps: Sequence[Step]) -> Iterator[tuple[Step, ...]]:
    """Steps that run together, in order: those that follow each other on the device, or one of the host."""
    for is_host, found in itertools.groupby(steps, key=lambda step: step.is_host):
        together = tuple(found)
        yield from ((step,) for step in together) if is_host else (together,)


def owned_by_step(program: Program) -> list[Owned]:
    """By step: the buffers that live in it, with their bytes of the arena where a value of theirs does."""
    found: list[Owned] = [[] for _ in program.steps]
    for number, buffer in enumerate(program.placement.buffers, start=1):
        whole = Slice(buffer.name, 0, buffer.nbytes, buffer.first, buffer.last)
        for part in buffer.slices or (whole,):
            start = buffer.offset + part.offset
            for index in range(part.first, part.last + 1):
                found[index].append((number, slice(start, start + part.nbytes)))
    return found


def unowned(steps: Sequence[Owned], nbytes: int) -> Iterator[tuple[list[slice], list[slice]]]:
    """By step: bytes of an arena whose contents are stale, and those of them that no buffer owns.

    Bytes that changed hands are dead or new: their old contents mean nothing.
    """
    ends = {end for pieces in steps for _, piece in pieces for end in (piece.start, piece.stop)}
    borders = sorted({0, nbytes, *ends})
    position = {border: i for i, border in enumerate(borders)}
    intervals = np.array([slice(*ends) for ends in itertools.pairwise(borders)], object)
    before = np.zeros(len(intervals), np.int32)
    for pieces in steps:
        owner = np.zeros(len(intervals), np.int32)  # of each interval; 0 for none
        for number, piece in pieces:
            owner[position[piece.start] : position[piece.stop]] = number
        yield list(intervals[(owner != before) | (owner == 0)]), list(intervals[owner == 0])
        before = owner


def _owned(result: object) -> object:
    """An object of the host that shares no memory with the arena."""
    if isinstance(result, np.ndarray):
        return result.copy()
    if isinstance(result, list):
        return [_owned(r) for r in result]
    return result
