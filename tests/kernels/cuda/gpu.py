"""The tests of the simulator on a GPU of this machine (`pytest --gpu`), and what compiles its kernels elsewhere.

Every launch that a test would simulate goes to the GPU: arrays there and back, so that the oracles are the
same. Where the toolkit is absent or another one, cubins come from the folder of kernels, by its manifest:
`pytest -m simulated --compile` on a machine with it fills the folder.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from app.engine.runtime.cuda.device import Pointer
from app.engine.runtime.cuda.driver import Gpu, open_gpu, sm_of
from app.engine.types.target import find
from app.kernels.cuda.compiler import Compiler
from app.kernels.cuda.kernel import Launch, Ref

TARGET = "cuda-sm90"
UNDEFINED = 0xFF


class Compiling:
    """Compiles what is simulated."""

    def __init__(self, folder: Path) -> None:
        self._compiler = Compiler(folder)
        self._sm = sm_of(find(TARGET))

    def __call__(self, steps: Sequence[Launch], _arrays: Mapping[str, np.ndarray], _workspace: int) -> bool:
        """False: the launches are still to be simulated."""
        for step in steps:
            self._compiler.compile(step.kernel, self._sm)
        return False


class Launching:
    """Launches what is to be simulated.

    A process that has lost the device can launch nothing any more: one of several ends, and is replaced.
    """

    def __init__(self, folder: Path) -> None:
        self.gpu: Gpu = open_gpu(folder, find(TARGET), trusted=True)

    def __call__(self, steps: Sequence[Launch], arrays: Mapping[str, np.ndarray], workspace: int) -> bool:
        """True: nothing is left to simulate."""
        gpu, whole = self.gpu, dict[int, np.ndarray]()  # by where it begins: roles may share memory
        flat = {role: array.reshape(-1).view(np.uint8) for role, array in arrays.items()}
        begins = {role: array.__array_interface__["data"][0] for role, array in flat.items()}
        if workspace and "workspace" not in flat:
            flat["workspace"], begins["workspace"] = np.full(workspace, UNDEFINED, np.uint8), -1
        for role, array in flat.items():
            if len(array) >= len(whole.get(begins[role], ())):
                whole[begins[role]] = array
        places = {begin: gpu.allocate(max(len(array), 1)) for begin, array in whole.items()}
        for begin, array in whole.items():
            gpu.write(places[begin], array)
        for step in steps:
            passed = [
                Pointer(places[begins[given.role]] + given.offset, len(flat[given.role]), kind[:-1])
                if isinstance(given, Ref)
                else given
                for kind, given in zip(step.kernel.signature, step.arguments, strict=True)
            ]
            if math.prod(step.grid):
                gpu.load(step.kernel).bound(step.grid, passed)()
        gpu.wait()
        for begin, array in whole.items():
            if len(array) and array.flags.writeable:
                gpu.read(places[begin], array)
            gpu.release(places[begin])
        return True

    def pytest_runtest_teardown(self) -> None:
        """End a process of several whose device is lost."""
        if self.gpu.lost is not None and "PYTEST_XDIST_WORKER" in os.environ:  # noqa: TID251
            os._exit(3)

    def pytest_unconfigure(self) -> None:
        """Give the device back."""
        self.gpu.close()


@pytest.fixture(scope="session")
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """The GPU of `--gpu`; tests that need it skip without."""
    found = request.config.pluginmanager.get_plugin("gpu")
    if not isinstance(found, Launching):
        pytest.skip("no GPU is asked for: --gpu")
    return found.gpu
