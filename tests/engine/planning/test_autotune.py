"""Timings are measured once, kept for all, and decide what a plan runs."""

import dataclasses
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.core.registry import load as load_registry
from app.engine.cost import calibration, roofline
from app.engine.layouts.conversions import changes
from app.engine.model.load import load
from app.engine.planning import autotune, session, timing_cache
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import model_of
from tests.session import Session

OPTIONS = Options()


TEXT = """<ir_version: 10, opset_import: ["": 21]>
agraph (float[1, 3, 12, 12] x, float[16, 3, 3, 3] w) => (float[1, 16, 12, 12] y) {
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    y = Relu (c)
}"""


@pytest.fixture(scope="module")
def compilation(tmp_path_factory: pytest.TempPathFactory) -> Compilation:
    path = tmp_path_factory.mktemp("model") / "conv.onnx"
    weights = np.random.default_rng(0).standard_normal((16, 3, 3, 3), np.float32)
    onnx.save(ir.to_proto(model_of(TEXT, {"w": weights})), path)
    return session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())


@pytest.fixture
def fresh(compiler: Compiler, tmp_path: Path) -> Compiler:
    """The shared compiler with a timings table of its own."""
    own = Compiler(compiler.cache, processes=1)
    own.folder = tmp_path
    return own


def conv_of(compilation: Compilation) -> Group:
    fused = session.planned(compilation, OPTIONS).compilation
    return next(g for g in fused.plan.groups if g.op == "Conv")


def chosen(compilation: Compilation) -> str:
    plan = session.planned(compilation, OPTIONS).compilation.plan
    assert plan.implementation is not None
    return next(c.implementation.name for g, c in plan.implementation.items() if g.op == "Conv")


def test_what_is_in_the_table_is_not_measured_again(
    compilation: Compilation, fresh: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = session.tuned(compilation, OPTIONS, fresh).timings
    assert first == json.loads((fresh.folder / "timings.json").read_text())
    assert len({name.split()[0] for name in first}) > 1
    assert all(seconds > 0 for seconds in first.values())

    monkeypatch.setattr(autotune, "sampler", lambda *_: pytest.fail("measured again"))
    assert session.tuned(compilation, OPTIONS, fresh).timings == first


def test_nothing_is_measured_for_another_machine_and_without_autotune_the_peak_alone(
    compilation: Compilation, fresh: Compiler
) -> None:
    other: Target = dataclasses.replace(host(), name="another", flops=host().flops * 2)
    elsewhere = dataclasses.replace(compilation, target=other)
    assert session.tuned(elsewhere, OPTIONS, fresh) is elsewhere
    assert not timing_cache.stored(fresh.folder)
    without = session.tuned(compilation, dataclasses.replace(OPTIONS, autotune=False), fresh)
    assert without.peak is not None
    assert without == dataclasses.replace(compilation, peak=without.peak)
    assert all(key.startswith("peak ") for key in timing_cache.stored(fresh.folder))


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: timing_cache.store(tmp_path, {f"row {i}": float(i)}), range(40)))
    assert timing_cache.stored(tmp_path) == {f"row {i}": float(i) for i in range(40)}
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("fastest", ["conv.implicit_gemm", "conv.blocked", "conv.winograd_f2"])
def test_the_choice_follows_the_table(compilation: Compilation, fastest: str) -> None:
    group, context = conv_of(compilation), PlanningContext.of(compilation)
    names = ("conv.implicit_gemm", "conv.blocked", "conv.winograd_f4", "conv.winograd_f2")
    rows = [r for r in compilation.registry.candidates("Conv", ("numba-cpu",)) if r.name in names]
    table = {roofline.key(row, group, context): 1e-6 if row.name == fastest else 1.0 for row in rows}
    assert chosen(dataclasses.replace(compilation, timings=table)) == fastest


def test_a_job_tells_which_times_it_chose_by(compilation: Compilation, fresh: Compiler) -> None:
    timings = session.tuned(compilation, OPTIONS, fresh).timings
    of_machine = ("streams ", "copy ", "peak ")
    table = {name: seconds for name, seconds in timings.items() if not name.startswith(of_machine)}
    group = conv_of(compilation)
    others = {"conv.blocked x1 [another]": 1.0}
    assert roofline.consulted([group, *changes([group])], {**table, **others}) == table
    assert roofline.consulted([], table) == {}


def test_a_group_that_has_nothing_to_do_is_measured_too(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    agraph (float[2, 8] x) => (float[2, 8] y) <int64[2] parts = {8, 0}> {
        a, b = Split <axis = 1> (x, parts)
        c = Neg (a)
        y = Concat <axis = 1> (c, b)
    }"""
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    session = Session(path, Compiler(tmp_path / "kernels"))
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    np.testing.assert_array_equal(session.run({"x": x})["y"], -x)
    session.close()


def products(tmp_path: Path, kept: float) -> tuple[Compilation, PlanningContext]:
    """Two products with weights of 256 KiB, of the second of which so much is kept."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[4, 256] x, float[256, 256] v, float[256, 256] w) => (float[4, 256] y) {
        z = MatMul (x, v)
        y = MatMul (z, w)
    }"""
    rng = np.random.default_rng(0)
    v, w = rng.standard_normal((2, 256, 256), np.float32)
    w *= rng.random(w.shape) < kept
    path = tmp_path / "products.onnx"
    onnx.save(ir.to_proto(model_of(text, {"v": v, "w": w})), path)
    loaded = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    compilation = session.planned(loaded, OPTIONS).compilation
    return compilation, PlanningContext.of(compilation)


def test_all_that_may_be_the_best_way_to_store_a_constant_is_measured(tmp_path: Path) -> None:
    groups = autotune._worth_measuring(*products(tmp_path, 0.01)).groups
    names = {row.name for group, rows in groups for row in rows if group.outputs[0].name == "y"}
    assert {"matmul.csr_weights", "matmul.block16", "matmul.blocked"} <= names


@pytest.mark.parametrize("kept", [0.01, 1.0])
def test_constants_that_others_store_sparse_take_less_of_the_caches(tmp_path: Path, kept: float) -> None:
    compilation, context = products(tmp_path, kept)
    groups = autotune._worth_measuring(compilation, context).groups
    around = autotune._around(compilation, groups, context)
    first, second = (next(g for g in compilation.plan.groups if g.outputs[0].name == n) for n in "zy")
    dense = 4 * 256 * 256
    assert around(second) == dense
    assert around(first) == dense if kept == 1.0 else around(first) < dense / 2


def strided(tmp_path: Path) -> tuple[Compilation, PlanningContext]:
    """Three convolutions, the last of which has least to do."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 32, 28, 28] x) => (float[1, 24, 7, 7] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, u)
        b = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (a, v)
        y = Conv <strides = [2, 2]> (b, w)
    }"""
    rng = np.random.default_rng(0)
    shapes = {"u": (64, 32, 3, 3), "v": (64, 64, 3, 3), "w": (24, 64, 1, 1)}
    weights = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    path = tmp_path / "strided.onnx"
    onnx.save(ir.to_proto(model_of(text, weights)), path)
    loaded = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    compilation = session.planned(loaded, OPTIONS).compilation
    return compilation, PlanningContext.of(compilation)


def test_a_kernel_that_the_predicted_plan_lacks_must_be_able_to_save_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilation, context = strided(tmp_path)
    missing = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(autotune, "KERNEL_WORTH", share)
        worth = autotune._worth_measuring(compilation, context)
        cuts = [
            (group, row, dataclasses.replace(context, tuning=tuning))
            for group, row, tuning in worth.tunings(context)
        ]
        # The best that multiplies as often as the definition is measured in any case.
        cuts += [(group, row, context) for group, rows in worth.groups for row in rows if row.fast]
        calls = [call for group, row, cut in cuts for call in row.lower(group, cut)]
        missing.append({call.request for call in calls} - worth.present)
    assert missing[0]
    assert not missing[1]


def test_what_is_measured_may_be_the_fastest_by_the_error_of_its_prediction(tmp_path: Path) -> None:
    compilation, context = strided(tmp_path)
    worth = autotune._worth_measuring(compilation, context)
    known = calibration.calibration(context.target)
    for group, rows in worth.groups:
        seconds = {row: roofline.expected(row, group, context) for row in rows}
        best = min(seconds, key=lambda row: seconds[row])
        plainly = [row for row in rows if not row.fast]
        for row in rows:
            doubt = math.log(autotune.FACTOR)
            if known is not None:
                doubt = min(math.hypot(known.of(row.name).error, known.of(best.name).error), doubt)
            # The best that multiplies as often as the definition is measured beside fast algorithms alone.
            assert math.log(seconds[row] / seconds[best]) <= doubt + 1e-9 or plainly == [row]


def test_groups_whose_inputs_are_8_bits_are_measured_and_those_of_indices_are_not(tmp_path: Path) -> None:
    """What a convolution reads may be any numbers; what Gather reads must be rows that there are."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (uint8[1, 32, 28, 28] x, int64[3] i) => (int32[1, 64, 28, 28] y, float[3, 100] z) {
        y = ConvInteger <pads = [1, 1, 1, 1]> (x, w)
        z = Gather (table, i)
    }"""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(-9, 9, (64, 32, 3, 3)).astype(np.int8),
        "table": rng.standard_normal((50, 100), np.float32),
    }
    path = tmp_path / "integers.onnx"
    onnx.save(ir.to_proto(model_of(text, weights)), path)
    loaded = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    compilation = session.planned(loaded, OPTIONS).compilation
    found = autotune.candidates(compilation, PlanningContext.of(compilation))
    rows = {row.name for group, row in found if group.op != "ChangeLayout"}
    assert {"conv_integer.pairs", "conv_integer.winograd_f2"} <= rows
    assert not any(name.startswith("gather") for name in rows)


def test_channels_last_is_measured_where_it_may_spare_transposes(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 28, 28, 64] x) => (float[1, 28, 28, 64] y) {
        i = Transpose <perm = [0, 3, 1, 2]> (x)
        c = Conv <group = 64, pads = [1, 1, 1, 1]> (i, w)
        y = Transpose <perm = [0, 2, 3, 1]> (c)
    }"""
    path = tmp_path / "tokens.onnx"
    weights = np.random.default_rng(0).standard_normal((64, 1, 3, 3), np.float32)
    onnx.save(ir.to_proto(model_of(text, {"w": weights})), path)
    loaded = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    compilation = session.planned(loaded, OPTIONS).compilation
    context = PlanningContext.of(compilation)
    convolution = next(g for g in compilation.plan.groups if g.op == "Conv")
    spared = autotune._spared_by_last(compilation, context)
    assert set(spared) == {convolution.inputs[0], convolution.outputs[0]}
    assert all(seconds > 0 for seconds in spared.values())
    found = next(c for c in autotune._predicted(compilation, context) if c.group is convolution)
    assert "conv.depthwise_last" in {row.name for row in found.seconds}


def test_channels_last_is_not_measured_where_it_spares_nothing_and_takes_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilation, context = strided(tmp_path)
    convolution = next(g for g in compilation.plan.groups if g.op == "Conv")

    def measured() -> set[str]:
        found = next(c for c in autotune._predicted(compilation, context) if c.group is convolution)
        return {row.name for row in found.seconds}

    assert "conv.last" not in measured()
    monkeypatch.setattr(autotune, "_spared_by_last", lambda *_: {convolution.inputs[0]: math.inf})
    assert "conv.last" in measured()
