"""Kernels of whole networks, compiled offline: none spills, and each leaves the warps that dispatch counts on.

Kernels whose texts differ in sizes, in the kind of 16-bit floats, in what ends a product, or in how often it is
taken in tf32 are compiled once, as the longest of them; `make cuda-kernels` compiles every one.
"""

import pytest

from app.kernels.cuda.kernel import Kernel
from tests.conftest import KERNELS
from tests.engine.runtime.cuda.networks import NETWORKS, family, kernels, representatives, warps
from tests.kernels.cuda.compiled import compiled, faults, warm

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def launched(shared, tmp_path_factory) -> dict[str, tuple[Kernel, ...]]:
    """The kernels of each network."""
    scratch = tmp_path_factory.mktemp("models")
    return {name: kernels(name, shared, scratch) for name in NETWORKS}


@pytest.fixture(scope="module")
def chosen(launched) -> set[Kernel]:
    """One of each family, over all networks."""
    found = representatives(kernel for each in launched.values() for kernel in each)
    warm(found, KERNELS)
    return set(found)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_kernel_of_a_network_spills(name, launched, chosen, offline, tmp_path) -> None:
    assert {family(k) for k in launched[name]} <= {family(k) for k in chosen}
    own = [k for k in launched[name] if k in chosen]
    made = compiled(own, offline, tmp_path)
    assert [f for k, two in made.items() for one in two for f in faults(one, warps(k))] == []
