"""The engine behind the interface of the official ONNX backend tests.

`onnx.backend.test.BackendTest(StowplanBackend, __name__)` makes test cases of all official tests.
"""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from app.engine.core import graph
from app.engine.core.calls import HostCall, KernelCall
from app.engine.types.options import Bindings
from app.kernels.cpu.runtime.compiler import Compiler
from tests.session import Session

Prepared = Callable[["Representation"], None]


class Representation(BackendRep):
    """A model, planned and compiled for the shapes of the first inputs that it is run on."""

    def __init__(self, model: onnx.ModelProto, kernels: Compiler) -> None:
        self._model = model
        self._kernels = kernels
        self.session: Session | None = None

    def run(self, inputs: Sequence[Any], **_options: object) -> list[Any]:
        """Outputs in the model's order; inputs are those that are no initializers, in order."""
        fixed = {i.name for i in self._model.graph.initializer}
        names = [i.name for i in self._model.graph.input if i.name not in fixed]
        given = {n: np.asarray(a) if isinstance(a, np.generic) else a for n, a in zip(names, inputs)}
        if self.session is None:
            tensors = {i.name for i in self._model.graph.input if i.type.HasField("tensor_type")}
            self.session = self._planned({n: a.shape for n, a in given.items() if n in tensors})
        outputs = self.session.run(given)
        return [outputs[o.name] for o in self._model.graph.output]

    def own_kernels(self) -> bool:
        """True if every step was a kernel of ours or a view, and one of them read what varies."""
        return not self.is_folded and not self.foreign()

    @property
    def is_folded(self) -> bool:
        """True if the model was folded to constants, which are copied at most: nothing varies."""
        assert self.session is not None
        steps = self.session.program.steps
        return all(graph.is_constant(v) for s in steps for v in s.group.inputs)

    def foreign(self) -> list[str]:
        """What computes each step that is no kernel of ours."""
        assert self.session is not None
        return [
            s.choice.implementation.name
            for s in self.session.program.steps
            if not all(
                isinstance(c, KernelCall) or (isinstance(c, HostCall) and c.is_compiled) for c in s.calls
            )
        ]

    def implementations(self) -> list[str]:
        """What computes each step."""
        assert self.session is not None
        return [s.choice.implementation.name for s in self.session.program.steps]

    def close(self) -> None:
        """End the threads of the session."""
        if self.session is not None:
            self.session.close()

    def _planned(self, shapes: dict[str, tuple[int, ...]]) -> Session:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(self._model.SerializeToString())
            return Session(path, self._kernels, bindings=Bindings(shapes=shapes))


class StowplanBackend(Backend):
    """The host's CPU, without a device memory of its own."""

    kernels: Compiler  # set by `backend`
    prepared: Prepared

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_options: object) -> Representation:
        representation = Representation(model, cls.kernels)
        cls.prepared(representation)
        return representation

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


def backend(kernels: Compiler, prepared: Prepared = lambda _representation: None) -> type[StowplanBackend]:
    """The backend with a cache of kernels; `prepared` is told every representation that it makes."""
    attributes = {"kernels": kernels, "prepared": staticmethod(prepared)}
    return type("HostBackend", (StowplanBackend,), attributes)
