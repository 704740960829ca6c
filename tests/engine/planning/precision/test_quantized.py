"""Quantized models and the simulation of them: two computations of the same, in onnxruntime and by formulas."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from app.engine.core import graph
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.model.spool import Spool
from app.engine.planning import session
from app.engine.planning.precision import seconds
from app.engine.planning.precision.budgeted import Planner
from app.engine.planning.precision.candidates import BY_NAME, CANDIDATES, offered, saturates
from app.engine.planning.precision.qdq import Quantities, quantized
from app.engine.planning.precision.rounding import ranges
from app.engine.planning.precision.rounding.weights import rounded
from app.engine.planning.precision.samples import Samples
from app.engine.planning.precision.simulation import Simulation
from app.engine.planning.precision.sites import activations, rejected, results, sites
from app.engine.report.onnx import export
from app.engine.runtime.oracle import runtime
from app.engine.types.options import Bindings, Options
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.planning.precision import models
from tests.harness import OWN

OPTIONS = Options(backends=OWN)


def prepared(name: str, folder: Path):
    """The model, its sites, a simulation and quantities by min-max."""
    model = models.plain(name, folder)
    found = sites(model)
    simulation = Simulation(model, found, folder, 1)
    seen = {name: ranges.Observed() for name in (*activations(found), *results(found))}
    simulation.observe(models.inputs(name, 3), lambda name, x: seen[name].add(x), tuple(seen))
    levels = {k: ranges.min_max(v) for k, v in seen.items()}
    random = np.random.default_rng(2)
    weights = {
        (s.name, r.name): replace(
            rounded(s, r), shift=random.standard_normal(s.channels).astype(np.float32) / 9
        )
        for s in found
        for r in CANDIDATES
        if s.rejection(r) is None and not r.half
    }
    return model, found, simulation, Quantities(levels, weights)


@pytest.mark.parametrize("unsigned", [False, True], ids=["signed", "unsigned"])
@pytest.mark.parametrize(
    ("name", "row"),
    [
        (name, row.name)
        for name in models.TEXTS
        for row in CANDIDATES
        if not row.half
        and "Gemm" in row.ops
        and (name == "mlp" or row.block < 64)  # the others have products of 32 inputs
        and (
            name != "layers" or not row.beside or row.activation != "static"
        )  # nothing else reads its operands
    ],
)
def test_the_quantized_model_computes_what_was_simulated(
    name: str, row: str, unsigned: bool, tmp_path: Path
) -> None:
    model, found, simulation, given = prepared(name, tmp_path)
    given = replace(given, unsigned=unsigned)
    assignment = {s.name: row for s in found if s.rejection(BY_NAME[row]) is None}
    assert assignment
    export(quantized(model, found, assignment, given), tmp_path / "quantized.onnx")
    run = runtime(tmp_path / "quantized.onnx", threads=1, optimized=False)
    for sample in models.inputs(name, 3, seed=9):
        (expected,), (y,) = simulation.outputs_of(sample, assignment, given).values(), run(sample).values()
        (exact,) = simulation.outputs_of(sample, {}, given).values()
        scale = np.abs(np.asarray(exact)).max()
        assert np.abs(np.asarray(y) - np.asarray(expected)).max() <= 2e-3 * scale
        assert np.abs(np.asarray(y) - np.asarray(exact)).max() > 1e-6 * scale  # it rounds


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("cnn", {"QLinearConv": 3, "QLinearAdd": 1, "QGemm": 1}),
        ("layers", {"MatMulIntegerToFloat": 2}),
    ],
)
def test_onnxruntime_multiplies_integers_where_a_model_in_8_bits_does(
    name: str, kernels: dict[str, int], tmp_path: Path
) -> None:
    model, found, _, given = prepared(name, tmp_path)
    assignment = {site.name: "int8" for site in found}
    path, optimized = tmp_path / "quantized.onnx", tmp_path / "optimized.onnx"
    export(quantized(model, found, assignment, given, results=True), path)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(optimized)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    counts = Counter(node.op_type for node in ir.load(optimized).graph)
    assert {op: counts[op] for op in kernels} == kernels
    assert not {"Conv", "FusedConv", "MatMul", "Gemm"} & set(counts)


@pytest.mark.parametrize("between", ["Identity", "MaxPool<kernel_shape = [2, 2]>"])
def test_onnxruntime_keeps_float32_weights_between_roundings(
    between: str, compiler: Compiler, tmp_path: Path
) -> None:
    text = f"""g (float[1,3,9,9] x) => (float y) {{
        a0 = Conv(x, w0, b0) a1 = Relu(a0) a2 = {between}(a1) a3 = Conv(a2, w1, b1) a4 = Relu(a3)
        y = Conv(a4, w2) }}"""
    random = np.random.default_rng(3)
    shapes = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 8, 3, 3), "b1": (8,), "w2": (4, 8, 1, 1)}
    weights = {name: models.drawn(random, shape) for name, shape in shapes.items()}
    model = models.canonical(models.saved(f"{models.HEAD} {text}", tmp_path, weights))
    found = sites(model)
    seen = ranges.Observed()
    seen.add(np.linspace(-3, 6, 999, dtype=np.float32))
    levels = dict.fromkeys((*activations(found), *results(found)), ranges.min_max(seen))
    whole = {site.name: "int8" for site in found}
    rounded_weights = {(s.name, "int8"): rounded(s, BY_NAME["int8"]) for s in found}
    del whole[found[1].name]
    path = tmp_path / "quantized.onnx"
    export(quantized(model, found, whole, Quantities(levels, rounded_weights), results=True), path)
    runs = [runtime(path, threads=1, optimized=optimized) for optimized in (False, True)]
    compilation = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
    with closing(session.bound(session.planned(compilation, OPTIONS), compiler)) as executor:
        for _ in range(4):
            x = random.standard_normal((1, 3, 9, 9)).astype(np.float32)
            plain, fused, own = (np.asarray(*run({"x": x}).values()) for run in (*runs, executor.run))
            np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-5 * np.abs(plain).max())
            np.testing.assert_allclose(own, plain, rtol=0, atol=1e-5 * np.abs(plain).max())


@pytest.mark.parametrize("row", ["int8", "int8-dynamic", "w8-block32"])
@pytest.mark.parametrize("name", models.TEXTS)
def test_unsigned_weights_are_the_same_numbers_here(
    name: str, row: str, compiler: Compiler, tmp_path: Path
) -> None:
    model, found, _, given = prepared(name, tmp_path)
    assignment = {s.name: row for s in found if s.rejection(BY_NAME[row]) is None}
    (sample,) = models.inputs(name, 1)
    outputs = []
    for unsigned in (False, True):
        path = tmp_path / f"{unsigned}.onnx"
        export(quantized(model, found, assignment, replace(given, unsigned=unsigned)), path)
        kinds = {v.dtype for v in ir.load(path).graph.initializers.values() if v.const_value.size > 9}  # type: ignore[union-attr]  # initializers
        assert (ir.DataType.INT8 in kinds) is not unsigned
        compilation = session.canonical(load(path), host(), OPTIONS, Bindings(), load_registry())
        executor = session.bound(session.planned(compilation, OPTIONS), compiler)
        outputs.append(np.asarray(*executor.run(sample).values()))
        executor.close()
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=2e-3 * np.abs(outputs[0]).max())


@pytest.mark.parametrize(
    ("target", "expected"),
    [("cpu-avx2", True), ("cpu-avx512", True), ("cpu-avx512-bf16", False), ("cpu-neon-dotprod", False)],
)
def test_weights_of_7_bits_and_unsigned_ones_are_for_x86_without_vnni(target: str, expected: bool) -> None:
    assert saturates(find(target)) is expected
    assert ("int8-7bit-weights" in {row.name for row in offered(find(target))}) is expected


def test_biases_are_integers_of_the_sums_scales_so_that_other_runtimes_fuse_them(tmp_path: Path) -> None:
    model, found, _, given = prepared("cnn", tmp_path)
    made = quantized(model, found, {s.name: "int8" for s in found}, given)
    nodes = {n.name: n for n in made.graph}
    for site in found:
        scales = given.weights[site.name, "int8"].scales * np.float32(given.levels[site.activation].scale)
        bias = nodes[site.name].inputs[2].producer()  # type: ignore[union-attr]  # shifted
        assert bias is not None
        assert bias.op_type == "DequantizeLinear"
        assert bias.inputs[0].dtype == ir.DataType.INT32  # type: ignore[union-attr]  # constant
        np.testing.assert_array_equal(graph.constant(bias.inputs[1]), scales)


def test_a_bias_that_its_scales_do_not_hold_stays_float32(tmp_path: Path) -> None:
    model, found, _, given = prepared("cnn", tmp_path)
    site = found[0]
    integers, scales = (
        np.array(a)
        for a in (given.weights[site.name, "int8"].integers, given.weights[site.name, "int8"].scales)
    )
    integers[0], scales[0] = 0, 1.0  # a channel without weights
    weights = {
        **given.weights,
        (site.name, "int8"): replace(given.weights[site.name, "int8"], integers=integers, scales=scales),
    }
    made = quantized(model, found, {site.name: "int8"}, replace(given, weights=weights))
    (node,) = [n for n in made.graph if n.name == site.name]
    assert graph.constant(node.inputs[2]) is not None


def test_products_in_bfloat16_err_as_simulated_and_others_not_at_all(
    compiler: Compiler, tmp_path: Path
) -> None:
    if "bf16" not in host().precisions:
        pytest.skip("no processor that multiplies bfloat16")
    given = Samples(tuple(models.inputs("mlp", 2)), tuple(models.inputs("mlp", 2, seed=9)), "given", ())
    model, found, simulation, quantities = prepared("mlp", tmp_path)
    with closing(seconds.Bench(compiler, given.held_back[0])) as bench:
        planner = Planner(
            host(), OPTIONS, Bindings(), Spool(tmp_path / "weights"), found, given, compiler, bench
        )
        names = [s.name for s in found]
        for halves in ([], [found[1].name], [s.name for s in found]):
            program = planner.plan(model, dict.fromkeys(halves, "bf16"))
            used = {
                n.name
                for step in program.steps
                for n in step.group.nodes
                if step.choice.implementation.precision == "bf16"
            }
            assert {seconds.origin(name or "", names) for name in used} - {""} <= set(halves)
            outputs = planner.outputs(program)
            assert outputs is not None
            for sample, own in zip(given.held_back, outputs, strict=True):
                (y,), (exact,) = own.values(), simulation.outputs_of(sample, {}, quantities).values()
                assignment = dict.fromkeys(halves, "bf16") if used else {}
                (told,) = simulation.outputs_of(sample, assignment, quantities).values()
                scale = np.abs(np.asarray(exact)).max()
                assert np.abs(np.asarray(y) - np.asarray(told)).max() <= 2e-4 * scale
                assert not used or np.abs(np.asarray(y) - np.asarray(exact)).max() > 1e-4 * scale


@pytest.mark.parametrize(("name", "ops"), [("cnn", ("Conv",)), ("mlp", ("MatMul", "Gemm"))])
def test_products_in_int16_err_as_simulated(
    name: str, ops: tuple[str, ...], compiler: Compiler, tmp_path: Path
) -> None:
    given = Samples(tuple(models.inputs(name, 2)), tuple(models.inputs(name, 2, seed=9)), "given", ())
    model, found, simulation, quantities = prepared(name, tmp_path)
    products = [s.name for s in found if s.op in ops]
    with closing(seconds.Bench(compiler, given.held_back[0])) as bench:
        planner = Planner(
            replace(host(), flops=192e9),  # where int16 is predicted to be faster, on AVX2 too
            replace(OPTIONS, timings="predicted"),
            Bindings(),
            Spool(tmp_path / "weights"),
            found,
            given,
            compiler,
            bench,
        )
        program = planner.plan(model, dict.fromkeys(products, "int16"))
        names = [
            n.name
            for s in program.steps
            if s.choice.implementation.precision == "int16"
            for n in s.group.nodes
        ]
        used = {
            product
            for product in products
            if any(seconds.origin(n or "", products) == product for n in names)
        }
        outputs = planner.outputs(program)
    assert used
    assert outputs is not None
    for sample, own in zip(given.held_back, outputs, strict=True):
        (y,), (exact,) = own.values(), simulation.outputs_of(sample, {}, quantities).values()
        (told,) = simulation.outputs_of(sample, dict.fromkeys(used, "int16"), quantities).values()
        errors = [np.abs(np.asarray(a) - np.asarray(exact)).max() for a in (y, told)]
        # Kernels have scales of strips and chunks of rows, the simulation of the tensor or row, which are larger.
        assert 0 < errors[0] < 2 * errors[1]


def test_without_an_assignment_the_simulation_is_the_model(tmp_path: Path) -> None:
    model, _, simulation, given = prepared("cnn", tmp_path)
    export(model, tmp_path / "plain.onnx")
    (sample,) = models.inputs("cnn", 1)
    expected = runtime(tmp_path / "plain.onnx", threads=1, optimized=False)(sample)
    found = simulation.outputs_of(sample, {}, given)
    for name, array in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(array), rtol=0, atol=1e-5)


def test_one_product_in_8_bits_is_what_the_definition_says(tmp_path: Path) -> None:
    model, found, simulation, given = prepared("mlp", tmp_path)
    last = found[-1]
    activation = next(v for v in graph.values(model.graph) if v.name == last.activation)
    model.graph.outputs.append(activation)
    export(model, tmp_path / "plain.onnx")
    (sample,) = models.inputs("mlp", 1, seed=4)
    x = np.asarray(runtime(tmp_path / "plain.onnx", threads=1, optimized=False)(sample)[last.activation])
    (y,) = simulation.outputs_of(sample, {last.name: "int8"}, given).values()
    levels, weights = given.levels[last.activation], given.weights[last.name, "int8"]
    q = np.clip(np.rint(x / np.float32(levels.scale)) + levels.zero, 0, 255) - levels.zero
    exact = (q.astype(np.int64) @ weights.integers.astype(np.int64)) * (
        np.float64(levels.scale) * weights.scales
    )
    exact += np.asarray(weights.shift)
    assert np.abs(np.asarray(y) - exact).max() <= 1e-5 * np.abs(exact).max()


def test_what_only_moves_elements_is_quantized_before(tmp_path: Path) -> None:
    model, found, _, given = prepared("cnn", tmp_path)
    made = quantized(model, found, {found[1].name: "int8"}, given)
    pool = next(node for node in made.graph if node.op_type == "MaxPool")
    before, after = pool.inputs[0], [use.node.op_type for use in pool.outputs[0].uses()]
    assert before is not None
    assert before.producer().op_type == "DequantizeLinear"  # type: ignore[union-attr]  # a node makes it
    assert after == ["QuantizeLinear"]


def test_other_readers_keep_float32_where_the_precision_says_so(tmp_path: Path) -> None:
    model, found, _, given = prepared("cnn", tmp_path)
    (site,) = [s for s in found if s.shared]
    for row, expected in (("int8", "DequantizeLinear"), ("int8-beside-f32", "MaxPool")):
        made = quantized(model, found, {site.name: row}, given)
        add = next(node for node in made.graph if node.op_type == "Add")
        source = next(v for v in add.inputs if v is not None and v.producer().op_type != "Conv")  # type: ignore[union-attr]  # nodes make both
        assert source.producer().op_type == expected  # type: ignore[union-attr]  # as above


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    model, found, _, given = prepared("cnn", tmp_path)
    before = [(n.op_type, [v.name for v in n.inputs if v]) for n in model.graph]
    for row in CANDIDATES:
        quantized(model, found, {s.name: row.name for s in found if s.rejection(row) is None}, given)
    assert before == [(n.op_type, [v.name for v in n.inputs if v]) for n in model.graph]


def test_products_that_are_no_sites_have_a_reason(tmp_path: Path) -> None:
    text = "g (float[4,8] x, float[8,4] w) => (float[4,4] y) { y = MatMul(x, w) }"
    path = models.saved(f"{models.HEAD} {text}", tmp_path)
    model = ir.load(path)
    for node in model.graph:
        node.name = "product"
    assert sites(model) == ()
    assert rejected(model) == {"product": "its second operand 'w' changes between runs"}
