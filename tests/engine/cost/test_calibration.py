"""Calibration recovers what measurements follow, and tells its error on models that it has not seen."""

import dataclasses
import functools
import math
from pathlib import Path

import numpy as np
import pytest

from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.cost import calibration, roofline
from app.engine.cost.calibration import COUNT, Calibration, Coefficients, Sample, features, fit
from app.engine.model.load import load
from app.engine.planning import session, utilization
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Peak, Target, find, host, peak
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import saved

TRUE = np.array([0.4, 0.2, -0.1, 0.0, 0.3, -0.2, 0.5, 0.0, 0.1, 0.0, 0.0])
CONV = """<ir_version: 10, opset_import: ["": 21]>
net (float[1,32,20,20] x) => (float[1,64,18,18] y) { y = Conv (x, w) }"""


def drawn(row: str, weights: np.ndarray, count: int, models: int = 4, noise: float = 0.0) -> list[Sample]:
    rng = np.random.default_rng(len(row))
    found = []
    for i in range(count):
        x = np.concatenate([[1.0], rng.uniform(-1, 1, COUNT - 1)])
        ratio = float(x @ weights) + noise * rng.standard_normal()
        found.append(Sample(f"model {i % models}", row, tuple(x.tolist()), ratio))
    return found


def test_coefficients_of_many_samples_are_those_that_they_follow() -> None:
    fitted = fit([*drawn("a", TRUE, 4000), *drawn("longer", -TRUE, 4000)])
    np.testing.assert_allclose(fitted.of("a").weights, TRUE, atol=0.01)
    np.testing.assert_allclose(fitted.of("longer").weights, -TRUE, atol=0.01)


def test_a_row_of_few_samples_stays_near_all_rows() -> None:
    many, (few,) = drawn("many", TRUE, 1000), drawn("few", TRUE, 1)
    slower = dataclasses.replace(few, log_ratio=few.log_ratio + 1.0)
    found = fit([*many, slower]).of("few").log_factor(few.features)
    assert few.log_ratio + 0.1 < found < slower.log_ratio - 0.1


def test_the_error_is_that_of_models_held_out() -> None:
    samples = drawn("a", TRUE, 60, models=3, noise=0.1)
    left = []
    for model in {s.model for s in samples}:  # plain least squares of the normal equations, in one step
        rest, out = [[s for s in samples if (s.model == model) is held] for held in (False, True)]
        x, y = np.array([s.features for s in rest]), np.array([s.log_ratio for s in rest])
        outer, eye = x.T @ x, np.eye(COUNT)
        common = np.linalg.inv(outer + calibration.COMMON_PENALTY * eye) @ (x.T @ y)
        own = np.linalg.inv(outer + calibration.ROW_PENALTY * eye) @ (
            x.T @ y + calibration.ROW_PENALTY * common
        )
        left += [s.log_ratio - np.dot(own, s.features) for s in out]
    assert fit(samples).of("a").error == pytest.approx(math.sqrt(np.mean(np.square(left))), rel=1e-6)


def test_a_row_that_was_not_measured_takes_the_coefficients_of_the_name_that_it_continues() -> None:
    own, common = Coefficients((0.5,) * COUNT, 0.1), Coefficients((0.0,) * COUNT, 0.3)
    found = Calibration(common, {"conv.blocked": own})
    assert found.of("conv.blocked_bf16") is own
    assert found.of("matmul.blocked_bf16") is common


def test_coefficients_are_the_same_after_a_file() -> None:
    fitted = dataclasses.replace(fit(drawn("a", TRUE, 50)), peak=Peak(1e11, {2**20: 5e10, 2**25: 2e10}, True))
    again = Calibration.from_json(fitted.to_json())
    assert again.to_json() == fitted.to_json()
    np.testing.assert_allclose(again.of("a").weights, fitted.of("a").weights, atol=1e-4)


def test_only_processors_of_a_kind_that_was_measured_are_calibrated(tmp_path: Path) -> None:
    path, registry = saved(CONV, tmp_path, {"w": np.ones((64, 32, 3, 3), np.float32)}), load_registry()
    for lanes in calibration.KINDS:
        measured = dataclasses.replace(host(), vector_lanes=lanes, flops=peak(lanes))
        other = dataclasses.replace(measured, name="faster", flops=2 * measured.flops)
        for target in (measured, other):
            known = calibration.calibration(target)
            assert target is measured or known is None
            started = session.canonical(load(path), target, Options(), Bindings(), registry)
            compilation = session.planned(started, Options()).compilation
            context = PlanningContext.of(compilation)
            (group,) = (g for g in compilation.plan.groups if g.op == "Conv")
            row = next(r for r in registry.candidates("Conv", ("numba-cpu",)) if r.name == "conv.blocked")
            plain = row.predicted(group, context)
            expected = plain
            if known is not None:
                weights = np.array(known.of(row.name).weights)
                expected *= math.exp(float(weights @ np.array(features(group, context, plain))))
            assert roofline.seconds(row, group, context) == (pytest.approx(expected), None)


def test_the_file_knows_the_presets_peaks_not() -> None:
    assert set(calibration._shipped()) <= set(calibration.KINDS.values())
    assert calibration.calibration(find("cpu-avx512")) is None  # described with the peak of another machine


def expected_seconds(folder: Path, machine: Target, here: Peak | None) -> float:
    """Predicted seconds of the convolution in blocks, with this peak."""
    path, registry = saved(CONV, folder, {"w": np.ones((64, 32, 3, 3), np.float32)}), load_registry()
    started = session.canonical(load(path), machine, Options(), Bindings(), registry)
    compilation = session.planned(dataclasses.replace(started, peak=here), Options()).compilation
    (group,) = (g for g in compilation.plan.groups if g.op == "Conv")
    row = next(r for r in registry.candidates("Conv", ("numba-cpu",)) if r.name == "conv.blocked")
    return roofline.expected(row, group, PlanningContext.of(compilation))


@pytest.mark.parametrize("lanes", [8, 16])
def test_predictions_follow_the_peak_of_the_machine(tmp_path: Path, lanes: int) -> None:
    machine = dataclasses.replace(host(), vector_lanes=lanes, flops=peak(lanes), launch=0.0)
    known = calibration.calibration(machine)
    usual = (known and known.peak) or Peak.described(machine)
    twice = {size: 2 * speed for size, speed in usual.bandwidth.items()}
    seconds = functools.partial(expected_seconds, tmp_path, machine)
    plain = seconds(None)
    assert seconds(usual) == pytest.approx(plain)
    assert seconds(dataclasses.replace(usual, flops=2 * usual.flops, bandwidth=twice)) == pytest.approx(
        plain / 2
    )
    assert seconds(dataclasses.replace(usual, flops=2 * usual.flops)) == pytest.approx(plain / 2)
    assert seconds(dataclasses.replace(usual, bandwidth=twice)) == pytest.approx(
        plain
    )  # arithmetic takes longer


def test_what_moves_more_bytes_than_a_cache_holds_follows_the_memory() -> None:
    usual = Peak(1e11, {2**20: 8e10, 2**25: 2e10}, measured=True)
    here = Peak(3e11, {2**20: 8e10, 2**25: 4e10}, measured=True)
    near, far = (here.beside(host(), usual, nbytes) for nbytes in (2**20, 2**21))
    assert near.flops == far.flops == pytest.approx(3 * host().flops)
    assert near.memories == host().memories
    assert far.memories[0].bandwidth == pytest.approx(2 * host().memories[0].bandwidth)


def test_the_peak_is_measured_once_for_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(tmp_path)
    first = utilization.kept(compiler, host())
    monkeypatch.setattr(utilization, "measured", None)
    assert utilization.kept(Compiler(tmp_path), host()) == first
    assert first.flops > 0
    assert list(first.bandwidth) == list(utilization.SIZES)


def test_a_described_machine_is_not_measured(tmp_path: Path) -> None:
    path = saved(CONV, tmp_path, {"w": np.ones((64, 32, 3, 3), np.float32)})
    described = dataclasses.replace(find("cpu-avx2"), cores=3)
    started = session.canonical(load(path), described, Options(), Bindings(), load_registry())
    assert session.on_this_machine(started, Compiler(tmp_path)).peak is None
