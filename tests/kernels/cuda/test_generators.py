"""Every generator's kernels, compiled offline: no spills, as many warps as assumed, the instructions claimed."""

import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import app.kernels.cuda
from app.kernels.cuda.kernel import Kernel, Launch, Launches
from tests.conftest import KERNELS
from tests.kernels.cuda.compiled import Compiled, compiled, faults, missing, present, together, warm
from tests.kernels.cuda.generators import EVERYDAY, REST

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made(offline, tmp_path_factory) -> dict[Kernel, tuple[Compiled, ...]]:
    kernels = [step.kernel for row in EVERYDAY.values() for step in row.made()]
    warm(kernels, KERNELS)
    return compiled(kernels, offline, tmp_path_factory.mktemp("cubins"))


@pytest.mark.parametrize("name", EVERYDAY)
def test_machine_code_is_as_claimed(name: str, made: dict[Kernel, tuple[Compiled, ...]]) -> None:
    row = EVERYDAY[name]
    steps = [made[step.kernel] for step in row.made()]
    assert [fault for step in steps for one in step for fault in faults(one, row.warps, row.stack)] == []
    found = list(together(steps))
    assert found
    for generation in found:
        assert missing(row.expected, generation) == []
        assert present(row.refused, generation) == []


def _makers() -> Iterator[types.CodeType]:
    """Functions of the package that give kernels or launches."""
    wanted = {Launches, Launch, Kernel, tuple[Launch, ...]}
    for module in pkgutil.iter_modules(app.kernels.cuda.__path__, "app.kernels.cuda."):
        if module.name.endswith(".primitives"):
            continue
        scope = vars(importlib.import_module(module.name))
        own = [x for x in scope.values() if getattr(x, "__module__", "") == module.name]
        methods = [x for c in own if inspect.isclass(c) for x in vars(c).values()]
        for function in (*own, *methods):
            if inspect.isfunction(function) and function.__annotations__.get("return") in wanted:
                yield function.__code__


def test_every_function_that_makes_kernels_is_compiled() -> None:
    called: set[types.CodeType] = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code) if event == "call" else None)
    try:
        for row in EVERYDAY.values():
            row.made()
    finally:
        sys.setprofile(before)
    makers = list(_makers())
    assert len(makers) > 40
    assert [f"{Path(c.co_filename).stem}.{c.co_qualname}" for c in makers if c not in called] == []


def test_what_is_left_to_the_long_run_is_told_apart() -> None:
    assert len(REST) > 10 * len(EVERYDAY)
    assert not set(REST) & set(EVERYDAY)
