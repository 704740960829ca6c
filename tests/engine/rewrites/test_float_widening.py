"""Graphs of 16-bit floats compute in float32, and round where they say so."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from app.engine.core.calls import KernelCall
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.options import Bindings, Options
from app.engine.types.target import PRESETS
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.canonical import canonical, operators, saved
from tests.harness import OWN
from tests.session import Session

KINDS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
HEADER = '<ir_version: 10, opset_import: ["": 23]>'


def typed(text: str, folder: Path, kind: str = "float16") -> Path:
    """A file of the graph in the text, in which `half` stands for the type."""
    return saved(f"{HEADER} {text}".replace("half", kind), folder)


def computed_in(graph: ir.Graph) -> set[ir.DataType]:
    """Element types of the results of all nodes but casts."""
    return {v.dtype for n in graph if n.op_type != "Cast" for v in n.outputs if v.dtype is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_nodes_compute_in_float32_between_the_border_of_the_graph(kind: str, tmp_path: Path) -> None:
    path = typed(
        "g (half[4,5] x, half[5,3] w) => (half[4,3] y) { p = MatMul(x, w) y = Relu(p) }", tmp_path, kind
    )
    graph = canonical(path).graph
    assert computed_in(graph) == {ir.DataType.FLOAT}
    expected = ir.DataType[kind.upper()]
    assert {v.dtype for v in (*graph.inputs, *graph.outputs)} == {expected}
    assert [v.name for v in graph.outputs] == ["y"]
    assert operators(graph).count("Cast") == 3


def test_the_graph_that_is_exported_keeps_its_types(tmp_path: Path) -> None:
    path = typed("g (half[4,5] x, half[5,3] w) => (half[4,3] y) { p = MatMul(x, w) y = Relu(p) }", tmp_path)
    exported: list[set[ir.DataType]] = []
    compilation = session.canonical(
        load(path),
        PRESETS[0],
        Options(),
        Bindings(),
        load_registry(),
        before_rewrites=lambda model: exported.append(computed_in(model.graph)),
    )
    assert exported == [{ir.DataType.FLOAT16}]
    assert computed_in(compilation.graph) == {ir.DataType.FLOAT}


def test_what_only_moves_keeps_16_bits(tmp_path: Path) -> None:
    text = """g (int64[7] i, half[100,6] t) => (half[7,1,6] y)
        { r = Gather(t, i) s = Constant<value = int64[3] {7, 1, 6}>() y = Reshape(r, s) }"""
    graph = canonical(typed(text, tmp_path)).graph
    assert computed_in(graph) == {ir.DataType.FLOAT16}
    assert "Cast" not in operators(graph)


def test_new_rows_of_a_cache_are_rounded_and_the_cache_is_not_converted(tmp_path: Path) -> None:
    text = """g (half[1,100,8] past, half[1,1,8] x) => (half[1,101,8] present)
        { r = Exp(x) present = Concat<axis = 1>(past, r) }"""
    graph = canonical(typed(text, tmp_path)).graph
    (joined,) = (n for n in graph if n.op_type == "Concat")
    assert [v.dtype for v in (*joined.inputs, *joined.outputs) if v is not None] == [ir.DataType.FLOAT16] * 3
    cast = [n.inputs[0] for n in graph if n.op_type == "Cast"]
    assert sum(1 for v in cast if v is not None and v.name == "past") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_cast_that_the_model_has_rounds(kind: str, tmp_path: Path, compiler: Compiler) -> None:
    text = "g (float[50] x) => (float[50] y) { h = Cast<to = TO>(x) e = Add(h, h) y = Cast<to = 1>(e) }"
    number = str(int(ir.DataType[kind.upper()]))
    path = typed(text.replace("TO", number), tmp_path, kind)
    x = np.random.default_rng(0).standard_normal(50).astype(np.float32)
    session = Session(path, compiler, options=Options(backends=OWN, autotune=False))
    found = session.run({"x": x})["y"]
    session.close()
    np.testing.assert_array_equal(found, 2 * x.astype(KINDS[kind]).astype(np.float32))


def test_a_type_that_an_attribute_states_stays(tmp_path: Path) -> None:
    text = "g (half[4] x) => (half[4] y) { r = RandomUniformLike<dtype = 10>(x) y = Mul(r, x) }"
    graph = canonical(typed(text, tmp_path)).graph
    (drawn,) = (n for n in graph if n.op_type == "RandomUniformLike")
    assert [v.dtype for v in (drawn.inputs[0], drawn.outputs[0]) if v is not None] == [
        ir.DataType.FLOAT16
    ] * 2


def test_a_scale_of_16_bits_gives_float32(tmp_path: Path) -> None:
    text = """g (int8[4,4] x, half s) => (half[4,4] y) { d = DequantizeLinear(x, s) y = Relu(d) }"""
    graph = canonical(typed(text, tmp_path)).graph
    assert computed_in(graph) == {ir.DataType.FLOAT}


def test_a_body_reads_captured_values_as_they_were(tmp_path: Path, compiler: Compiler) -> None:
    text = """g (half[3] x, bool c) => (half[3] y)
        { e = Exp(x)
          y = If (c) <then_branch = t () => (half[3] a) { a = Add(e, e) },
                      else_branch = f () => (half[3] b) { b = Neg(e) }> }"""
    path = typed(text, tmp_path)
    session = Session(path, compiler, options=Options(backends=OWN, autotune=False))
    x = np.array([0.1, 0.2, -1], np.float16)
    for chosen in (True, False):
        found = session.run({"x": x, "c": np.array(chosen)})["y"]
        e = np.exp(x.astype(np.float32)).astype(np.float16)
        np.testing.assert_allclose(np.asarray(found), e + e if chosen else -e, rtol=2e-3)
    session.close()


def test_targets_without_kernels_for_processors_keep_their_types(tmp_path: Path) -> None:
    path = typed("g (half[4,5] x) => (half[4,5] y) { y = Relu(x) }", tmp_path)
    target = next(t for t in PRESETS if "numba-cpu" not in t.backends)
    assert computed_in(canonical(path, target=target).graph) == {ir.DataType.FLOAT16}


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_runs_on_own_kernels_and_is_rounded_once(
    kind: str, tmp_path: Path, compiler: Compiler
) -> None:
    text = """g (half[1,3,16,16] x) => (half[1,10] y)
        { c = Conv<pads = [1,1,1,1]>(x, w) r = Relu(c) d = Conv(r, v) a = GlobalAveragePool(d)
          f = Flatten(a) n = LayerNormalization(f, s, b) p = MatMul(n, m) y = Softmax(p) }"""
    rng = np.random.default_rng(0)
    shapes = {"w": (32, 3, 3, 3), "v": (512, 32, 1, 1), "m": (512, 10), "s": (512,), "b": (512,)}
    weights = {n: (rng.standard_normal(s) / 4).astype(KINDS[kind]) for n, s in shapes.items()}
    x = rng.standard_normal((1, 3, 16, 16)).astype(KINDS[kind])
    found = {}
    for name, dtype in ((kind, KINDS[kind]), ("float", np.dtype(np.float32))):
        folder = tmp_path / name
        folder.mkdir()
        stored = {n: a.astype(dtype) for n, a in weights.items()}
        file = saved(f"{HEADER} {text}".replace("half", name), folder, stored)
        session = Session(file, compiler, options=Options(backends=OWN, autotune=False), poison=True)
        found["half" if name == kind else name] = np.asarray(session.run({"x": x.astype(dtype)})["y"])
        steps = session.program.steps
        assert all(isinstance(c, KernelCall) for s in steps for c in s.calls)
        if name == kind:
            assert sum("half_weights" in s.choice.implementation.name for s in steps) >= 1
        session.close()
    assert found["half"].dtype == KINDS[kind]
    expected = found["float"].astype(np.float64)
    unit = float(ml_dtypes.finfo(KINDS[kind]).eps)
    np.testing.assert_allclose(found["half"].astype(np.float64), expected, rtol=0.51 * unit, atol=1e-6)


ISLAND = """g (half[1,2,3,3] x) => (half[1,2,6,6] y)
    { r = Relu(x) w = Cast<to = 1>(r)
      s = Constant<value = float[4] {1.0, 1.0, 2.0, 2.0}>() e = Resize<mode = "linear">(w, , s)
      h = Cast<to = TO>(e) y = Exp(h) }"""


@pytest.mark.parametrize("kind", KINDS)
def test_an_operator_in_float32_between_casts_is_not_rounded(kind: str, tmp_path: Path) -> None:
    """Converters leave Resize in float32; its result has the type of its operand again."""
    text = ISLAND.replace("TO", str(int(ir.DataType[kind.upper()])))
    graph = canonical(typed(text, tmp_path, kind)).graph
    assert operators(graph) == ["Cast", "Relu", "Resize", "Exp", "Cast"]


def test_a_cast_to_other_16_bits_rounds(tmp_path: Path) -> None:
    text = ISLAND.replace("TO", str(int(ir.DataType.BFLOAT16))).replace(
        "half[1,2,6,6] y", "bfloat16[1,2,6,6] y"
    )
    assert operators(canonical(typed(text, tmp_path)).graph).count("Cast") > 2


def test_a_cast_of_what_float32_operands_decide_too_rounds(tmp_path: Path) -> None:
    text = """g (half[4] x, float[4] z) => (half[4] y)
        { r = Relu(x) w = Cast<to = 1>(r) p = Mul(w, z) h = Cast<to = 10>(p) y = Exp(h) }"""
    kinds = [n.outputs[0].dtype for n in canonical(typed(text, tmp_path)).graph if n.op_type == "Cast"]
    assert kinds.count(ir.DataType.FLOAT16) == 2  # p, and y
