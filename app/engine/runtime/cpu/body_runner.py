"""A body of a control-flow node that is ready to run, in the memory of the program around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from app.engine.core.calls import Body
from app.engine.runtime.executor import Array
from app.kernels.cpu.runtime.driver import Team

if TYPE_CHECKING:
    from app.engine.runtime.cpu.executor import Executor


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Memory and threads that a body gets from the program around it, or programs of several shapes share.

    Attributes:
        arena: bytes that its values live in.
        roots: bytes of inputs and outputs; it takes memory for the others.
        packed: bytes of constants, by identity of the argument.
    """

    arena: Array
    roots: Mapping[ir.Value, Array]
    team: Team
    packed: Mapping[int, Array] = field(default_factory=dict)


class BodyRunner:
    """A body that is ready to run; see `app.engine.core.calls.RunBody`.

    Attributes:
        timed: whether runs count the time of its steps.
        seconds: of each step, since `timed` was set.
    """

    def __init__(self, executor: "Executor", body: Body) -> None:
        model = body.program.compilation.graph
        self.executor = executor
        self.timed = False
        self.seconds = [0.0] * len(body.program.steps)
        own = zip(model.inputs[: body.own], body.inputs[: body.own], strict=True)
        self._inputs = {i: v.name or "" for v, i in own}
        self._places = {i: executor.place_of(v) for v, i in zip(model.inputs, body.inputs[: body.own])}
        fed = [p for p in self._places.values() if p is not None]
        self._outputs: list[tuple[ir.Value, Array | None, bool]] = []
        for i in body.outputs:
            place = executor.place_of(model.outputs[i])
            # An output that is an input is written over as the next turn is fed.
            shared = place is not None and any(np.may_share_memory(place, p) for p in fed)
            self._outputs.append((model.outputs[i], place, shared))

    def __call__(self, values: Sequence[object | None], /) -> list[object]:
        """See `RunBody`."""
        self.executor.forget()
        self.executor.refeed({name: values[i] for i, name in self._inputs.items()})
        return self._run()

    def again(self, changed: Mapping[int, object], /) -> list[object]:
        """See `RunBody`."""
        for i, value in changed.items():
            place = self._places[i]
            if place is None:
                self.executor.refeed({self._inputs[i]: value})
            else:
                place[...] = value
        return self._run()

    def turn(self) -> None:
        """Run it once on what lies in its memory."""
        if self.timed:
            turn = self.executor.timed_run()
            self.seconds = [a + b for a, b in zip(self.seconds, turn, strict=True)]
        else:
            self.executor.step()

    def count(self, rows: Array) -> None:
        """Add to the time of its steps what its rows took, in seconds, in all turns of a run."""
        for segment in self.executor.segments:  # one, if it has any steps
            for index, seconds in enumerate(self.executor.timed_steps(rows, segment), segment.first):
                self.seconds[index] += seconds

    def _run(self) -> list[object]:
        self.turn()
        return [
            self.executor.held(value) if place is None else place.copy() if shared else place
            for value, place, shared in self._outputs
        ]
