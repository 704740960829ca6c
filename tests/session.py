"""A model that is planned, compiled and run in the process of the test, as the product does it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import onnx

from app.engine.core.calls import HostCall, KernelCall
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.inputs import samples
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import OWN


class Session:
    """A model file, tuned and planned for this machine or for the GPU in it, ready to run."""

    def __init__(
        self,
        path: Path,
        kernels: Compiler,
        *,
        options: Options | None = None,
        bindings: Bindings | None = None,
        target: Target | None = None,
        poison: bool = False,
    ) -> None:
        options, self._bindings = options or Options(), bindings or Bindings()
        compilation = session.canonical(
            load(path), target or host(), options, self._bindings, load_registry()
        )
        tuned = session.tuned(compilation, options, kernels)
        self.compilation, self.program = session.runnable(
            tuned, options, kernels, samples(tuned.graph.inputs)
        )
        self._executor = session.bound(self.program, kernels, poison=poison)

    def run(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """Outputs by name; inputs that were bound to a value may be left out or given."""
        names = {v.name for v in self.compilation.graph.inputs}
        bound = self._bindings.values
        return self._executor.run({k: v for k, v in inputs.items() if k in names or k not in bound})

    def close(self) -> None:
        """End the executor's threads."""
        self._executor.close()


def on_own_kernels(compiler: Compiler, folder: Path, text: str, target: Target | None = None) -> Session:
    """A model in ONNX text in poisoned memory, all of it on compiled kernels; shapes of its outputs are unknown."""
    model = onnx.parser.parse_model(text)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    onnx.save(model, folder / "model.onnx")
    machine = dataclasses.replace(target or host(), backends=OWN)
    session = Session(folder / "model.onnx", compiler, target=machine, poison=True)
    calls = [c for s in session.program.steps for c in s.calls]
    assert all(isinstance(c, KernelCall) or (isinstance(c, HostCall) and c.is_compiled) for c in calls), calls
    return session
