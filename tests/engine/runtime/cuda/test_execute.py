"""The executor on a device that only writes down what is asked of it, and on one that simulates kernels."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.runtime.cuda.device import ALIGNMENT, Pointer
from app.engine.runtime.cuda.executor import DeviceExecutor, kernels_of
from app.engine.types.errors import CapacityError, InputError
from app.engine.types.options import Options
from tests.engine.runtime.cuda.devices import START, FakeDevice, SimulatedDevice
from tests.engine.runtime.cuda.programs import fallbacks, planned, saved, simulated

pytestmark = pytest.mark.simulated

RNG = np.random.default_rng(1)
WEIGHTS = {"w": RNG.standard_normal((16, 8), np.float32), "b": RNG.standard_normal(8).astype(np.float32)}


@pytest.fixture
def chain(tmp_path: Path) -> Program:
    text = "h = MatMul(x, w) a = Add(h, b) c = Relu(a) d = Transpose<perm=[1,0]>(c) y = Softmax(d)"
    return planned(saved(tmp_path, text, "float[6,16] x", "float[8,6] y", WEIGHTS))


@pytest.fixture
def falling_back(tmp_path: Path) -> Program:
    """Mish and products run on the device, Det on the host."""
    text = "a = Mul(x, x) d = Det(a) e = Reshape(d, one) y = Add(e, a)"
    constants = {"one": np.array([1, 1], np.int64)}
    return planned(saved(tmp_path, text, "float[3,3] x", "float[3,3] y", constants))


def test_there_are_three_allocations_and_everything_is_aligned(chain: Program) -> None:
    device = FakeDevice()
    executor = DeviceExecutor(chain, device)
    sizes = [nbytes for _, nbytes in device.log.of("allocate")]
    assert sizes == [max(n, ALIGNMENT) for n in (r.nbytes for r in executor._regions)]
    assert executor._arena.nbytes == chain.arena_bytes
    executor.feed({"x": np.zeros((6, 16), np.float32)})
    executor.step()
    for _, _, arguments in device.log.of("launch"):
        for argument in arguments:
            if isinstance(argument, Pointer):
                assert argument.address % 16 == 0
                assert argument.address >= START
                assert argument.nbytes > 0
    executor.close()
    assert len(device.log.of("release")) == len(sizes)


def test_the_first_run_launches_and_the_next_ones_replay_the_same(chain: Program) -> None:
    device = FakeDevice()
    executor = DeviceExecutor(chain, device)
    executor.step()
    eager = device.log.of("launch")
    assert len(eager) == sum(len(s.calls) for s in chain.steps)
    (recorded,) = device.log.of("record")
    assert recorded == eager
    executor.step()
    executor.step()
    assert device.log.of("replay") == [eager, eager]
    assert device.log.of("launch") == eager


def test_kernels_are_loaded_once(chain: Program) -> None:
    device = FakeDevice()
    DeviceExecutor(chain, device)
    assert device.log.of("load") == list(kernels_of(chain))


def test_eager_recorded_and_poisoned_runs_agree(chain: Program) -> None:
    x = RNG.standard_normal((6, 16), np.float32)
    executor = DeviceExecutor(chain, SimulatedDevice(seed=4))
    first, second = executor.run({"x": x}), executor.run({"x": x})
    poisoned = simulated(chain, {"x": x})
    for found in (second, poisoned):
        np.testing.assert_array_equal(found["y"], first["y"])
    h = np.maximum(x.astype(np.float64) @ WEIGHTS["w"] + WEIGHTS["b"], 0).T
    expected = np.exp(h) / np.exp(h).sum(-1, keepdims=True)
    np.testing.assert_allclose(first["y"], expected, atol=1e-5)


def test_what_falls_back_runs_on_the_host_between_two_graphs(falling_back: Program) -> None:
    assert [f.split()[0] for f in fallbacks(falling_back)] == ["Det"]
    x = RNG.standard_normal((3, 3), np.float32)
    device = SimulatedDevice()
    executor = DeviceExecutor(falling_back, device)
    for _ in range(2):
        found = executor.run({"x": x})["y"]
    np.testing.assert_allclose(found, np.linalg.det(x * x) + x * x, rtol=1e-4)
    assert len(device.log.of("record")) == 2


def test_inputs_that_do_not_fit_are_refused(chain: Program) -> None:
    executor = DeviceExecutor(chain, FakeDevice())
    with pytest.raises(InputError, match=r"expected float32\[6, 16\], found float64\[6, 16\]"):
        executor.feed({"x": np.zeros((6, 16))})
    with pytest.raises(InputError, match="is missing"):
        executor.feed({})
    with pytest.raises(InputError, match="unknown"):
        executor.feed({"x": np.zeros((6, 16), np.float32), "z": 0})


def test_a_device_without_room_gives_back_what_it_gave(chain: Program) -> None:
    device = FakeDevice(capacity=700)
    with pytest.raises(CapacityError):
        DeviceExecutor(chain, device)
    given = [address for address, _ in device.log.of("allocate")]
    assert sorted(device.log.of("release")) == sorted(given)


def test_memory_that_dies_is_poisoned_before_the_next_step(chain: Program) -> None:
    device = FakeDevice()
    executor = DeviceExecutor(chain, device, poison=True)
    executor.run({"x": np.zeros((6, 16), np.float32)})
    assert device.log.of("fill")
    assert not device.log.of("record")


def test_a_wrong_plan_shows_in_poisoned_memory(chain: Program) -> None:
    """A step that reads what the plan took for dead gets NaN."""
    executor = DeviceExecutor(chain, SimulatedDevice(), poison=True)
    executor._stale[-1] = [slice(0, chain.arena_bytes)]
    found = executor.run({"x": np.ones((6, 16), np.float32)})["y"]
    reads_arena = any(
        not graph.is_constant(v) and chain.placement.values[v].space == "arena"
        for v in chain.steps[-1].group.inputs
    )
    assert np.isnan(found).any() == reads_arena


@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 3e-2), ("fp16", 4e-3), ("tf32", 4e-3)])
def test_a_program_in_another_precision_is_near(precision: str, tolerance: float, tmp_path: Path) -> None:
    weights = {"w": RNG.standard_normal((16, 16), np.float32) / 4, "s": np.ones(16, np.float32)}
    text = "h = MatMul(x, w) a = LayerNormalization(h, s) c = Relu(a) y = Add(c, x)"
    path = saved(tmp_path, text, "float[12,16] x", "float[12,16] y", weights)
    program = planned(path, Options(precision=precision))
    assert fallbacks(program) == []
    names = [s.choice.implementation.name for s in program.steps]
    assert f"cuda.matmul_{precision}" in names
    x = RNG.standard_normal((12, 16), np.float32)
    found = simulated(program, {"x": x})["y"]
    h = x.astype(np.float64) @ weights["w"]
    h = (h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)
    expected = np.maximum(h, 0) + x
    error = np.max(np.abs(found - expected)) / np.max(np.abs(expected))
    assert 1e-6 < error < tolerance


@pytest.mark.parametrize(("n", "launches"), [(16, 1), (13, 2)])
def test_products_of_activations_copy_what_is_not_aligned_only(n: int, launches: int, tmp_path: Path) -> None:
    path = saved(
        tmp_path, "y = MatMul(x, z)", f"float[2,12,20] x, float[2,20,{n}] z", f"float[2,12,{n}] y", {}
    )
    program = planned(path)
    assert sum(len(s.calls) for s in program.steps) == launches
    x, z = RNG.standard_normal((2, 12, 20), np.float32), RNG.standard_normal((2, 20, n), np.float32)
    np.testing.assert_allclose(simulated(program, {"x": x, "z": z})["y"], x @ z, atol=1e-4)


def test_control_flow_runs_on_the_host(tmp_path: Path) -> None:
    text = (
        "a = Relu(x) b = If (c) <then_branch = t () => (float[4] u) { u = Add(a, a) }, "
        "else_branch = e () => (float[4] w) { w = Mul(a, a) }> y = Add(b, x)"
    )
    program = planned(saved(tmp_path, text, "float[4] x, bool c", "float[4] y", {}))
    x = RNG.standard_normal(4).astype(np.float32)
    a = np.maximum(x, 0)
    for c, expected in ((True, a + a + x), (False, a * a + x)):
        np.testing.assert_allclose(simulated(program, {"x": x, "c": np.array(c)})["y"], expected, rtol=1e-6)
