"""Declared sparse inputs: bounds, choice by cost, execution in poisoned memory beside float64."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app import sparse_inputs
from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.served_model import ServedModel
from app.engine.export.image import rejections
from app.engine.model.load import Loaded
from app.engine.planning import session
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.inputs import WrittenOut, as_stored, tensors
from app.engine.types.errors import InputError, StorageBoundError
from app.engine.types.options import Bindings, Options
from app.engine.types.sparse_array import SparseArray
from app.engine.types.storage import DeclaredStorage
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import model_of

Array = np.ndarray[Any, Any]
OPTIONS = Options(choose="first", backends=("numba-cpu", "reference"))
rng = np.random.default_rng(7)


def csr(nnz: int) -> Bindings:
    return Bindings(storage={"x": DeclaredStorage("csr", nnz)})


def planned(
    text: str, bindings: Bindings, constants: dict[str, Array] | None = None, options: Options = OPTIONS
) -> Program:
    model = model_of(f'<ir_version: 10, opset_import: ["": 21]> g {text}', constants)
    compilation = session.canonical(
        Loaded(model, (), len(model.graph)), host(), options, bindings, load_registry()
    )
    return session.planned(compilation, options)


def rows(program: Program) -> list[str]:
    return [step.choice.implementation.name for step in program.steps]


def ran(program: Program, compiler: Compiler, inputs: dict[str, object]) -> dict[str, Array]:
    executor = Executor(program, compiler, poison=True)
    try:
        return {k: np.asarray(v) for k, v in executor.run(inputs).items()}
    finally:
        executor.close()


def matrix(m: int, n: int, nnz: int) -> Array:
    x = np.zeros((m, n), np.float32)
    x.reshape(-1)[rng.choice(m * n, nnz, replace=False)] = rng.standard_normal(nnz)
    return x


PRODUCT = "(float[256,2000] x, float[2000,24] w, float[24] b) => (float[256,24] y) {{ {} }}"


@pytest.mark.parametrize(
    ("body", "oracle"),
    [
        ("y = MatMul(x, w)", lambda x, w, b: x @ w),
        ("p = MatMul(x, w) q = Add(p, b) y = Relu(q)", lambda x, w, b: np.maximum(x @ w + b, 0)),
        ("y = Gemm(x, w, b)", lambda x, w, b: x @ w + b),
        ("s = Sqrt(x) p = MatMul(s, w) y = Add(p, b)", lambda x, w, b: np.sqrt(x) @ w + b),
    ],
)
def test_a_declared_input_is_multiplied_sparse(compiler: Compiler, body: str, oracle: Any) -> None:
    constants = {"w": rng.standard_normal((2000, 24)).astype("f4"), "b": rng.standard_normal(24).astype("f4")}
    program = planned(PRODUCT.format(body), csr(500), constants)
    assert any(name.endswith("csr_value") for name in rows(program)), program.compilation.notes
    x = np.abs(matrix(256, 2000, 500))
    expected = oracle(x.astype("f8"), *(constants[n].astype("f8") for n in "wb"))
    stored = SparseArray.of_dense("csr", x)
    for given_x in (x, stored):
        found = ran(program, compiler, {"x": given_x})
        np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-5)


def test_the_buffers_of_sparse_values_have_the_size_of_the_bound() -> None:
    program = planned(
        "(float[256,2000] x, float[2000,24] w) => (float[256,24] y) { s = Sqrt(x) y = MatMul(s, w) }",
        csr(500),
    )
    storage = program.compilation.plan.require("storage")
    sparse = {v.name: s for v, s in storage.items() if s.kind == "csr"}
    assert sparse.keys() == {"x", "s"}
    assert {s.bound for s in sparse.values()} == {500}
    for value, found in storage.items():
        if found.kind == "csr":
            assert value_bytes(value, program.compilation) == 8 * 257 + 4 * 500 + 4 * 500
            assert program.placement.values[value].nbytes == 8 * 257 + 4 * 500 + 4 * 500


def test_a_full_input_stays_dense_and_the_note_says_so(compiler: Compiler) -> None:
    program = planned("(float[64,64] x, float[64,64] w) => (float[64,64] y) { y = MatMul(x, w) }", csr(4000))
    storage = program.compilation.plan.require("storage")
    assert {s.kind for s in storage.values()} == {"default"}
    assert any("input 'x' is dense: sparse it would cost" in note for note in program.compilation.notes)
    x, w = matrix(64, 64, 3000), matrix(64, 64, 4096)
    found = ran(program, compiler, {"x": SparseArray.of_dense("csr", x), "w": w})
    np.testing.assert_allclose(found["y"], x.astype("f8") @ w, rtol=1e-5, atol=1e-4)


PAIR = "(float[256,2000] x, float[2000,24] w) => (float[256,24] y) { s = Sqrt(x) y = MatMul(s, w) }"


@pytest.fixture
def fresh(compiler: Compiler, tmp_path: Path) -> Compiler:
    """The shared compiler with a timings table of its own."""
    own = Compiler(compiler.cache, processes=1)
    own.folder = tmp_path
    return own


Change: TypeAlias = Callable[[dict[str, float]], dict[str, float]]


def tuned(text: str, bindings: Bindings, compiler: Compiler, table: Change) -> Program:
    """The plan by what was measured, after a change of the table."""
    model = model_of(f'<ir_version: 10, opset_import: ["": 21]> g {text}')
    compilation = session.canonical(
        Loaded(model, (), len(model.graph)), host(), OPTIONS, bindings, load_registry()
    )
    measured = session.tuned(compilation, OPTIONS, compiler)
    timings = table(dict(measured.timings))
    return session.planned(dataclasses.replace(measured, timings=timings), OPTIONS)


def test_rows_on_sparse_values_are_measured_beside_those_on_dense_ones(fresh: Compiler) -> None:
    found: dict[str, float] = {}
    program = tuned(PAIR, csr(500), fresh, lambda table: found.update(table) or table)  # type: ignore[func-returns-value]
    sparse = [
        name.split(" ")[0] for name in found if name.startswith(("matmul.csr_value", "elementwise.csr"))
    ]
    assert sorted(sparse) == ["elementwise.csr@500,500", "matmul.csr_value@500"]
    ends = {name.split(" ", 2)[2] for name in found if "csr" in name}
    for end in ends:
        assert any(name.endswith(end) and "csr" not in name for name in found), "its rival on dense operands"
    assert rows(program) == ["elementwise.csr", "matmul.csr_value"]


def test_the_measured_times_decide(fresh: Compiler) -> None:
    """The sparse row is left where the table says that it is slow."""

    def slow(table: dict[str, float]) -> dict[str, float]:
        return {name: 1.0 if name.startswith("matmul.csr_value") else s for name, s in table.items()}

    program = tuned(PAIR, csr(500), fresh, slow)
    assert not any("csr_value" in name for name in rows(program))


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_a_prediction_is_scaled_as_that_of_the_row_that_was_measured(factor: float, fresh: Compiler) -> None:
    """Without times of sparse rows, a machine that is faster or slower than predicted changes no choice."""

    def scaled(table: dict[str, float]) -> dict[str, float]:
        return {name: s * factor for name, s in table.items() if "csr" not in name}

    assert rows(tuned(PAIR, csr(500), fresh, scaled)) == rows(planned(PAIR, csr(500)))


@pytest.mark.parametrize("nnz", [500, None], ids=["declared", "undeclared"])
def test_a_csr_file_reaches_the_program_as_it_is(
    nnz: int | None, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bindings = csr(nnz) if nnz else Bindings()
    program = planned(PAIR, bindings)
    x, w = np.abs(matrix(256, 2000, 500)), matrix(2000, 24, 48000)
    parts = SparseArray.of_dense("csr", x)
    sparse_inputs.write(
        tmp_path / "x.npz", sparse_inputs.Csr(x.shape, parts.values, parts.indices, parts.indptr)
    )
    np.save(tmp_path / "w.npy", w)
    paths = {"x": str(tmp_path / "x.npz"), "w": str(tmp_path / "w.npy")}
    inputs = tensors(program.compilation, dataclasses.replace(bindings, tensors=paths), 0)
    assert isinstance(inputs["x"], SparseArray)
    np.testing.assert_array_equal(WrittenOut(inputs)["x"], x)
    fed = as_stored(inputs, program)
    assert isinstance(fed["x"], SparseArray) == bool(nnz)
    if nnz:
        monkeypatch.setattr(SparseArray, "dense", lambda _self: pytest.fail("written out"))
    np.testing.assert_allclose(ran(program, compiler, fed)["y"], np.sqrt(x) @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nnz", [500, 4000])
def test_more_than_is_declared_is_refused_with_both_numbers(compiler: Compiler, nnz: int) -> None:
    shape = "256,2000" if nnz == 500 else "64,64"
    k = shape.split(",")[1]
    text = (
        f"(float[{shape}] x, float[{k},24] w) => (float[{shape.split(',')[0]},24] y) {{ y = MatMul(x, w) }}"
    )
    program = planned(text, csr(nnz))
    m, n = (int(d) for d in shape.split(","))
    x = matrix(m, n, nnz + 1)
    for value in (x, SparseArray.of_dense("csr", x)):
        with pytest.raises(InputError, match=rf"stores {nnz + 1} elements.*at most {nnz} "):
            ran(program, compiler, {"x": value, "w": np.zeros((n, 24), np.float32)})


def test_readers_that_want_it_dense_share_one_cast(compiler: Compiler) -> None:
    program = planned(
        "(float[2000,3000] x, float[3000,200] w) => (float[2000,200] y, float[3000] t, float[3000] u) {"
        " y = MatMul(x, w) a = Constant<value_ints=[0]>() t = ReduceMax<keepdims=0>(x, a)"
        " u = ReduceMin<keepdims=0>(x, a) }",
        csr(300),
    )
    assert rows(program).count("cast_storage.dense_of_csr") == 1, program.compilation.notes
    x, w = matrix(2000, 3000, 300), matrix(3000, 200, 600000)
    found = ran(program, compiler, {"x": x, "w": w})
    np.testing.assert_allclose(found["y"], x.astype("f8") @ w, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(found["t"], x.max(0))
    np.testing.assert_array_equal(found["u"], x.min(0))


STEP = (
    "(float[{v},{d}] w, int64[{k}] ids, float[{k},{d}] dy) => (float[{v},{d}] new) {{"
    " zeros = Constant<value = float[1] {{0.0}}>() shape = Constant<value_ints=[{v},{d}]>()"
    " none = Expand(zeros, shape) axis = Constant<value_ints=[1]>() rows = Unsqueeze(ids, axis)"
    ' g = ScatterND<reduction="add">(none, rows, dy) rate = Constant<value_float=0.5>()'
    " step = Mul(g, rate) {last} }}"
)


@pytest.mark.parametrize("last", ["new = Sub(w, step)", "n = Neg(step) new = Add(n, w)"])
def test_the_gradient_of_gathered_rows_is_row_sparse(compiler: Compiler, last: str) -> None:
    v, d, k = 20000, 32, 40
    program = planned(STEP.format(v=v, d=d, k=k, last=last), Bindings())
    assert {"scatter_nd.row_sparse", "elementwise.row_sparse_update"} <= set(rows(program)), (
        rows(program),
        program.compilation.notes,
    )
    storage = program.compilation.plan.require("storage")
    assert {s.bound for s in storage.values() if s.kind == "row_sparse"} == {k}
    w, dy = rng.standard_normal((v, d)).astype("f4"), rng.standard_normal((k, d)).astype("f4")
    ids = rng.integers(-v, v, k)
    ids[:9] = 17
    expected = w.astype("f8")
    np.subtract.at(expected, ids, 0.5 * dy.astype("f8"))
    found = ran(program, compiler, {"w": w, "ids": ids, "dy": dy})
    np.testing.assert_allclose(found["new"], expected, rtol=1e-5, atol=1e-5)


def test_two_gradients_of_one_table_are_added_as_rows(compiler: Compiler) -> None:
    v, d, k = 20000, 32, 40
    text = (
        f"(float[{v},{d}] w, int64[{k},1] i, int64[{k},1] j, float[{k},{d}] a, float[{k},{d}] b)"
        f" => (float[{v},{d}] new) {{ zeros = Constant<value = float[1] {{0.0}}>()"
        f" shape = Constant<value_ints=[{v},{d}]>() none = Expand(zeros, shape)"
        ' g = ScatterND<reduction="add">(none, i, a) h = ScatterND<reduction="add">(none, j, b)'
        " sum = Add(g, h) new = Sub(w, sum) }"
    )
    program = planned(
        text, Bindings(), options=Options(choose="first", backends=OPTIONS.backends, fuse=False)
    )
    storage = program.compilation.plan.require("storage")
    bounds = sorted(s.bound or 0 for s in storage.values() if s.kind == "row_sparse")
    assert bounds == [k, k, 2 * k], program.compilation.notes
    w = rng.standard_normal((v, d)).astype("f4")
    i, j = rng.integers(0, v, (k, 1)), rng.integers(0, v, (k, 1))
    j[:5] = i[:5]
    a, b = (rng.standard_normal((k, d)).astype("f4") for _ in "ab")
    expected = w.astype("f8")
    np.subtract.at(expected, i[:, 0], a.astype("f8"))
    np.subtract.at(expected, j[:, 0], b.astype("f8"))
    found = ran(program, compiler, {"w": w, "i": i, "j": j, "a": a, "b": b})
    np.testing.assert_allclose(found["new"], expected, rtol=1e-5, atol=1e-5)


def test_an_index_outside_shows_as_nan(compiler: Compiler) -> None:
    v, d, k = 20000, 32, 40
    program = planned(STEP.format(v=v, d=d, k=k, last="new = Sub(w, step)"), Bindings())
    ids = np.full(k, v, np.int64)
    zeros = {"w": np.zeros((v, d), np.float32), "dy": np.zeros((k, d), np.float32)}
    assert np.isnan(ran(program, compiler, {**zeros, "ids": ids})["new"]).any()


def test_inputs_that_are_drawn_keep_the_declared_bound() -> None:
    bindings = Bindings(storage={"x": DeclaredStorage("csr", density=0.01)})
    program = planned("(float[64,64] x, float[64,64] w) => (float[64,64] y) { y = MatMul(x, w) }", bindings)
    drawn = tensors(program.compilation, bindings, 0)["x"]
    assert np.count_nonzero(drawn) == 41  # ceil(4096 / 100)


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        (DeclaredStorage("csr"), "state either"),
        (DeclaredStorage("csr", 3, 0.5), "state either"),
        (DeclaredStorage("csr", -1), "negative"),
        (DeclaredStorage("csr", density=2.0), "density"),
        (DeclaredStorage("2:4", 3), "csr or row_sparse"),
    ],
)
def test_declarations_that_say_nothing_are_refused(storage: DeclaredStorage, told: str) -> None:
    with pytest.raises(InputError, match=told):
        planned(
            "(float[64,64] x, float[64,64] w) => (float[64,64] y) { y = MatMul(x, w) }",
            Bindings(storage={"x": storage}),
        )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_parts_are_a_matrix_or_a_reason(data: st.DataObject) -> None:
    """The checks accept exactly what a slow reading of the definition accepts."""
    m, n = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
    count = data.draw(st.integers(0, 5))
    small = st.integers(-1, 5)
    heads = np.array(data.draw(st.lists(small, min_size=max(m, 0), max_size=m + 2)), np.int64)
    columns = np.array(data.draw(st.lists(small, min_size=count, max_size=count)), np.int64)
    values = np.arange(1.0, data.draw(st.sampled_from([count, count, count + 1])) + 1)
    given_parts = SparseArray("csr", (m, n), values, columns, heads)
    right = (
        len(heads) == m + 1
        and len(values) == count
        and heads[0] == 0
        and heads[-1] == count
        and all(a <= b for a, b in itertools.pairwise(heads))
        and all(0 <= c < n for c in columns)
        and all(a < b for i in range(m) for a, b in itertools.pairwise(columns[heads[i] : heads[i + 1]]))
    )
    assert (given_parts.fault() is None) == right
    if right:
        full = given_parts.dense()
        again = SparseArray.of_dense("csr", full)
        np.testing.assert_array_equal(again.dense(), full)
        assert again.entries == count


def test_bounds_follow_operators_as_mxnet_infers_them(compiler: Compiler) -> None:
    options = Options(choose="first", backends=OPTIONS.backends, semantics="mxnet-1.9")
    text = "(float[256,2000] x, float[2000,24] w) => (float[256,24] y) { s = Sqrt(x) y = MatMul(s, w) }"
    program = planned(text, csr(500), options=options)
    storage = program.compilation.plan.require("storage")
    assert {v.name: s.bound for v, s in storage.items() if s.kind == "csr"} == {"x": 500, "s": 500}
    x, w = np.abs(matrix(256, 2000, 500)), matrix(2000, 24, 48000)
    found = ran(program, compiler, {"x": SparseArray.of_dense("csr", x), "w": w})
    np.testing.assert_allclose(found["y"], np.sqrt(x.astype("f8")) @ w, rtol=1e-5, atol=1e-5)


def test_a_served_model_takes_sparse_inputs_and_keeps_the_bound(compiler: Compiler, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[n,2000] x, float[2000,24] w) => (float[n,24] y)'
        " { y = MatMul(x, w) }"
    )
    onnx.save(proto, tmp_path / "m.onnx")
    served = ServedModel(tmp_path / "m.onnx", OPTIONS, csr(300), kernels=compiler.cache)
    program = served.program({"x": (128, 2000), "w": (2000, 24)})
    x, w = matrix(128, 2000, 300), matrix(2000, 24, 48000)
    program.feed({"x": SparseArray.of_dense("csr", x), "w": w})
    program.step()
    np.testing.assert_allclose(np.asarray(program.peek()["y"]), x.astype("f8") @ w, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match="stores 301 elements"):
        program.feed({"x": matrix(128, 2000, 301), "w": w})
    program.close()


LAYERS = (
    "(float[256,2000] x, float[2000] t) => (float[256,256] y, float[256] z) {{ s = Sub(x, t) h = Relu(s)"
    " p = MatMul(h, w) y = Add(p, b) z = ReduceMax<keepdims=0>(h, axes) }}"
)


def layers(most: DeclaredStorage, options: Options = OPTIONS) -> tuple[Program, dict[str, Array]]:
    """Two layers whose values in between, `h`, are declared csr; and their constants."""
    text = LAYERS.format().replace(") => (", ", float[2000,256] w, float[256] b, int64[1] axes) => (", 1)
    constants = {
        "w": rng.standard_normal((2000, 256)).astype("f4"),
        "b": rng.standard_normal(256).astype("f4"),
    }
    bindings = Bindings(value_storage={"h": most})
    return planned(text, bindings, {**constants, "axes": np.array([1])}, options), constants


def test_a_declared_value_is_stored_and_multiplied_sparse(compiler: Compiler) -> None:
    """Beside its dense form, which another reader takes; a run that stores more is refused, the next is not."""
    program, constants = layers(DeclaredStorage("csr", density=0.02))
    assert {"cast_storage.csr_of_dense", "matmul.csr_value"} <= set(rows(program)), program.compilation.notes
    storage = program.compilation.plan.require("storage")
    sizes = {v.name: (s.kind, value_bytes(v, program.compilation)) for v, s in storage.items()}
    assert sizes["h"] == ("default", 256 * 2000 * 4)
    assert sizes["h:csr"] == ("csr", 8 * 257 + 10240 * 8)
    x = rng.standard_normal((256, 2000)).astype("f4")
    few, many = np.full(2000, 2.5, "f4"), np.full(2000, 1.5, "f4")
    h = np.maximum(x.astype("f8") - few, 0)
    executor = Executor(program, compiler, poison=True)
    for _ in range(2):
        found = executor.run({"x": x, "t": few})
        np.testing.assert_allclose(found["y"], h @ constants["w"].astype("f8") + constants["b"], atol=1e-4)
        np.testing.assert_allclose(found["z"], h.max(1), rtol=1e-6)
        stored = np.count_nonzero(x > many)
        with pytest.raises(
            StorageBoundError, match=f"'h' stores {stored} elements .* csr of density 0.02, at"
        ):
            executor.run({"x": x, "t": many})
    executor.close()
    drawn = Executor(program, compiler, drawn=True)
    assert np.isnan(np.asarray(drawn.run({"x": x, "t": many})["y"])).any()
    drawn.close()
    assert any("/value_storage/h: a declared bound" in reason for reason in rejections(program))


def test_a_declared_value_stays_dense_where_sparse_costs_more() -> None:
    program, _ = layers(DeclaredStorage("csr", density=0.9))
    assert not any(name.startswith("cast_storage") for name in rows(program))
    assert any("value 'h' is dense: sparse it would cost" in note for note in program.compilation.notes)


def test_a_declared_value_that_no_group_makes_is_told() -> None:
    text = "(float[64,64] x) => (float[64,64] y) { a = Relu(x) b = Identity(a) y = Exp(a) }"
    stated = dict.fromkeys("ab", DeclaredStorage("csr", 9))
    notes = planned(text, Bindings(value_storage=stated)).compilation.notes
    assert any("'a' is dense: Elementwise" in note and "on the way to 'y'" in note for note in notes), notes
    assert "value 'b' is dense: the rewrites leave no value of this name" in notes


@pytest.mark.parametrize(
    ("stated", "semantics", "told"),
    [
        ({"x": DeclaredStorage("csr", 3)}, "stowplan", "no node of the main graph makes .* 'x'"),
        ({"i": DeclaredStorage("csr", 3)}, "stowplan", "those of sparse values are floats"),
        ({"r": DeclaredStorage("csr", 3)}, "stowplan", "have 2 axes"),
        ({"y": DeclaredStorage("csr", 3)}, "mxnet-1.9", "mxnet-1.9 infers how values are stored"),
    ],
)
def test_declared_values_that_cannot_be_are_refused(
    stated: dict[str, DeclaredStorage], semantics: Any, told: str
) -> None:
    text = "(float[8,8] x) => (float[8,8] y, int64[2] i, float[8] r) { y = Relu(x) i = Shape(x) r = ReduceMax<keepdims=0>(x, a) }"
    text = text.replace(") =>", ", int64[1] a) =>", 1)
    options = dataclasses.replace(OPTIONS, semantics=semantics)
    with pytest.raises(InputError, match=told) as caught:
        planned(text, Bindings(value_storage=stated), {"a": np.array([1])}, options)
    assert caught.value.pointer.startswith("/value_storage")
