"""Kernels of whole networks, compiled offline: none spills, and each leaves the warps that dispatch counts on.

Kernels whose texts differ in sizes, in the kind of 16-bit floats, in what ends a product, or in how often it is
taken in tf32 are compiled once, as the longest of them; `make cuda-kernels` compiles every one. That may be one of
`generators.EVERYDAY`, which `test_generators.py` compiles and expects at least as much of.
"""

import gc
from functools import cache

import pytest

from app.kernels.cuda.kernel import Kernel
from tests.conftest import KERNELS
from tests.engine.runtime.cuda.networks import NETWORKS, family, kernels, representatives, warps
from tests.kernels.cuda.compiled import compiled, faults, warm
from tests.kernels.cuda.generators import EVERYDAY

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def launched(shared, tmp_path_factory) -> dict[str, tuple[Kernel, ...]]:
    """The kernels of each network."""
    scratch = tmp_path_factory.mktemp("models")
    found = {}
    for name in NETWORKS:
        found[name] = kernels(name, shared, scratch)
        gc.collect()  # its weights
    return found


@pytest.fixture(scope="module")
def chosen(launched) -> set[Kernel]:
    """One of each family, over all networks, but for those that `test_generators.py` has."""
    found = representatives(kernel for each in launched.values() for kernel in each)
    own = [k for k in found if not is_everyday(k)]
    warm(own, KERNELS)
    return set(own)


@cache
def everyday() -> dict[str, list[tuple[int, int]]]:
    """Length and expected warps of the kernels of each family that `test_generators.py` compiles."""
    made: dict[str, list[tuple[int, int]]] = {}
    for row in EVERYDAY.values():
        for step in row.made():
            if not row.stack:
                made.setdefault(family(step.kernel), []).append((len(step.kernel.source), row.warps))
    return made


def is_everyday(kernel: Kernel) -> bool:
    """True if a kernel of its family, as long or longer, is expected to leave as many warps elsewhere."""
    found = everyday().get(family(kernel), [])
    return any(length >= len(kernel.source) and told >= warps(kernel) for length, told in found)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_kernel_of_a_network_spills(name, launched, chosen, offline, tmp_path) -> None:
    compiled_here = {family(k) for k in chosen}
    assert [k.name for k in launched[name] if family(k) not in compiled_here and not is_everyday(k)] == []
    own = [k for k in launched[name] if k in chosen]
    made = compiled(own, offline, tmp_path)
    assert [f for k, two in made.items() for one in two for f in faults(one, warps(k))] == []
