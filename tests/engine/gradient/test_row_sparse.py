"""Row_sparse gradients of tables as outputs: right, bounded, and declared through every door."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from app.engine.buffers.buffer_assignment import value_bytes
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.entry.training import training, write
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.report.onnx import export
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.errors import GraphError
from app.engine.types.options import Bindings, Options
from app.engine.types.sparse_array import SparseArray
from app.engine.types.storage import DECLARED
from app.engine.types.target import find, host
from app.kernels.cpu.runtime.compiler import Compiler
from tests.engine.gradient.derivatives import by_reference, check, model
from tests.engine.gradient.networks import Network, ints
from tests.engine.model.mxnet.writing import Symbols, params

Array = np.ndarray[Any, Any]
OPTIONS = Options(autotune=False, choose="first", backends=("numba-cpu", "reference"))
ROWS, WIDTH = 53, 5
TABLES = ("table", "shared")
# A bag of rows that are summed, with one that is looked up twice; a table that three lookups share.
DLRM = Network(
    """
    b0 = Gemm<transB=1>(x, wb, bb) b = Relu(b0) e0 = Gather(table, rows) e1 = ReduceSum<keepdims=0>(e0, bag)
    f0 = Gather(shared, rows1) f1 = Gather(shared, rows2) f2 = Gather<axis=0>(shared, rows3)
    be = Unsqueeze(b, one) ee = Unsqueeze(e1, one) fe = Unsqueeze(f0, one) ge = Unsqueeze(f1, one) he = Unsqueeze(f2, one)
    t = Concat<axis=1>(be, ee, fe, ge, he) tt = Transpose<perm=[0,2,1]>(t) z = MatMul(t, tt) zf = Flatten(z)
    r = Concat<axis=1>(b, zf) u0 = Gemm<transB=1>(r, wt, bt) u = Sigmoid(u0) loss = ReduceMean<keepdims=0>(u)
    """,
    {"x": (3, 4)},
    {"wb": (WIDTH, 4), "bb": (WIDTH,), "table": (ROWS, WIDTH), "shared": (ROWS, WIDTH), "wt": (1, WIDTH + 25), "bt": (1,)},
    {
        "rows": np.array([[1, 2], [2, -1], [0, ROWS - 1]], np.int64), "rows1": ints(5, 0, 5), "rows2": ints(0, 7, 52),
        "rows3": ints(9, -ROWS, 8), "bag": ints(1), "one": ints(1),
    },
)  # fmt: skip
TOUCHED = {"table": [0, 1, 2, ROWS - 1], "shared": [0, 5, 7, 8, 9, 52]}
BOUNDS = {"table": 6, "shared": 9}


def saved(folder: Path, dtype: str = "float32") -> tuple[Path, dict[str, Array]]:
    inputs, constants = DLRM.arrays(dtype)
    path = folder / "model.onnx"
    path.write_bytes(ir.to_proto(model(DLRM.body, inputs, constants)).SerializeToString())
    return path, inputs


def planned(path: Path, options: Options = OPTIONS, target: str = "") -> Program:
    machine = find(target) if target else host()
    loaded = expanded(load(path))
    return session.planned(session.canonical(loaded, machine, options, Bindings(), load_registry()), options)


def ran(program: Program, compiler: Compiler, inputs: dict[str, Any]) -> dict[str, Any]:
    executor = Executor(program, compiler, poison=True)
    try:
        return executor.run(inputs)
    finally:
        executor.close()


def declared(path: Path) -> dict[str, str]:
    outputs = load(path).model.graph.outputs
    return {v.name or "": v.metadata_props[DECLARED] for v in outputs if DECLARED in v.metadata_props}


def test_gradients_by_the_tables_are_those_of_differences() -> None:
    inputs, constants = DLRM.arrays("float64")
    check(model(DLRM.body, inputs, constants), inputs, ("x", *DLRM.weights), directions=4)


@pytest.mark.parametrize("target", ["", "cpu-avx2"])
def test_row_sparse_gradients_are_the_dense_ones_in_buffers_of_their_bound(
    target: str, tmp_path: Path, compiler: Compiler
) -> None:
    path, inputs = saved(tmp_path)
    dense, sparse = tmp_path / "dense.onnx", tmp_path / "sparse.onnx"
    write(path, "loss", None, Bindings(), dense)
    write(path, "loss", None, Bindings(), sparse, row_sparse=TABLES)
    assert declared(dense) == {}
    assert declared(sparse) == dict.fromkeys(("table_grad", "shared_grad"), "row_sparse")
    program = planned(sparse, target=target)
    exact = {n: a.astype(np.float64) for n, a in by_reference(onnx.load(dense), inputs).items()}
    found = ran(program, compiler, inputs)
    assert found.keys() == exact.keys()
    for name, expected in exact.items():
        np.testing.assert_allclose(np.asarray(found[name]), expected, rtol=1e-5, atol=1e-6, err_msg=name)
    outputs = {v.name: v for v in program.compilation.graph.outputs}
    for table in TABLES:
        gradient = found[f"{table}_grad"]
        assert isinstance(gradient, SparseArray)
        assert gradient.fault() is None
        assert gradient.indices.tolist() == TOUCHED[table]
        value, bound = outputs[f"{table}_grad"], BOUNDS[table]
        nbytes = 8 + 8 * -(-bound // 2) + 4 * bound * WIDTH
        assert value_bytes(value, program.compilation) == nbytes < 4 * ROWS * WIDTH
        assert program.placement.values[value].nbytes == nbytes
        told = f"output '{table}_grad' is row_sparse of at most {bound} rows in {nbytes} byte"
        assert any(told in note for note in program.compilation.notes), program.compilation.notes


def test_a_bound_that_takes_more_than_the_dense_gradient_leaves_it_dense(
    tmp_path: Path, compiler: Compiler
) -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[5,3] w, int64[7] i) => (float[7,3] y) { e = Gather(w, i) y = Sin(e) }"""
    path, made = tmp_path / "model.onnx", tmp_path / "training.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    write(path, "y", ["w"], Bindings(), made, row_sparse=["w"])
    program = planned(made)
    assert any(
        "output 'w_grad' is dense, though it is declared row_sparse" in n for n in program.compilation.notes
    )
    inputs = {"w": np.ones((5, 3), np.float32), "i": np.arange(7) % 5}
    found = ran(program, compiler, inputs)["w_grad"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, by_reference(onnx.load(made), inputs)["w_grad"], rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "named", "told"),
    [
        ("e = Gather(w, i) p = Mul(e, e) s = ReduceSum<keepdims=0>(w) y = Add(p, s)", "w", "is not row_sparse"),
        ("e = Gather<axis=1>(w, i) y = Mul(e, e)", "w", "is not row_sparse: Transpose"),
        ("y = Mul(w, w)", "w", "is not row_sparse: Mul"),
        ("e = Gather(w, i) y = Mul(e, e)", "q", "row_sparse names 'q'"),
    ],
)  # fmt: skip
def test_a_gradient_of_more_than_lookups_is_not_row_sparse(
    body: str, named: str, told: str, tmp_path: Path
) -> None:
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[9,9] w, int64[3] i) => (float y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(GraphError, match=told):
        training(tmp_path / "m.onnx", "y", ["w"], row_sparse=[named])


def test_a_gradient_node_whose_output_is_declared_makes_rows(tmp_path: Path, compiler: Compiler) -> None:
    inputs, constants = DLRM.arrays("float32")
    built = model(DLRM.body, inputs, constants)
    table, domain = built.graph.initializers["table"], "ai.onnx.preview.training"
    node = ir.node("Gradient", [table], {"xs": ["table"], "y": "loss"}, domain=domain, name="g")
    output = node.outputs[0]
    output.name, output.type, output.shape = "dtable", table.type, table.shape
    output.metadata_props[DECLARED] = "row_sparse"
    built.graph.append(node)
    built.graph.outputs.append(output)
    built.opset_imports[domain] = 1
    path = tmp_path / "asked.onnx"
    path.write_bytes(ir.to_proto(built).SerializeToString())
    found = ran(planned(path), compiler, inputs)["dtable"]
    assert isinstance(found, SparseArray)
    plain, made = saved(tmp_path)[0], tmp_path / "training.onnx"
    write(plain, "loss", ["table"], Bindings(), made)
    expected = by_reference(onnx.load(made), inputs)["table_grad"]
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-7)


def embedded(attributes: dict[str, Any]) -> Symbols:
    s = Symbols()
    index, weight = s.var("i", shape="(4, 3)"), s.var("w", shape=f"({ROWS}, {WIDTH})")
    s.add("Embedding", "e", index, weight, input_dim=ROWS, output_dim=WIDTH, **attributes)
    return s


@pytest.mark.parametrize("sparse", [True, False])
def test_an_embedding_of_a_symbol_says_which_gradient_it_has(
    sparse: bool, tmp_path: Path, compiler: Compiler
) -> None:
    symbol = embedded({"sparse_grad": sparse})
    symbol.add("square", "y", len(symbol.nodes) - 1)
    weights = np.random.default_rng(3).standard_normal((ROWS, WIDTH)).astype("f4")
    path, made = symbol.save(tmp_path), tmp_path / "training.onnx"
    write(path, "y_output", ["w"], Bindings(), made, {"p": params(tmp_path, {"w": weights})})
    assert declared(made) == ({"w_grad": "row_sparse"} if sparse else {})
    index = np.array([[1, 2, 3], [3, 3, 99], [-4, 0, 7], [8, 9, 10]], np.float32)  # some outside: clipped
    expected = np.zeros((ROWS, WIDTH))
    places = np.clip(index.astype(np.int64), 0, ROWS - 1)
    np.add.at(expected, places, 2 * weights.astype("f8")[places])
    found = ran(planned(made), compiler, {"i": index})["w_grad"]
    assert isinstance(found, SparseArray) == sparse
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("twice", [True, False])
def test_a_backward_embedding_of_a_symbol_makes_rows(twice: bool, tmp_path: Path, compiler: Compiler) -> None:
    """`_backward_Embedding` as MXNet's gradient pass writes it; with two lookups their gradients are added."""
    s = embedded({"sparse_grad": True})
    made, backward = [2], []
    attributes = {"input_dim": ROWS, "output_dim": WIDTH, "sparse_grad": True}
    if twice:
        made.append(s.add("Embedding", "e2", s.var("i2", shape="(4, 3)"), 1, **attributes))
    for number, forward in enumerate(made):
        head = s.var(f"head{number}", shape=f"(4, 3, {WIDTH})")
        index = s.nodes[forward]["inputs"][0][0]
        back = s.add("_backward_Embedding", f"b{number}", head, index, 1, **attributes)
        s.nodes[back]["control_deps"] = [forward]
        backward.append((back, 1))
    last = s.add("_grad_add", "sum", *backward) if twice else backward[0]
    path = s.save(tmp_path, last)
    export(expanded(load(path)).model, tmp_path / "m.onnx")
    (output,) = declared(tmp_path / "m.onnx").items()
    assert output[1] == "row_sparse"
    rng = np.random.default_rng(4)
    inputs: dict[str, Any] = {
        f"head{n}": rng.standard_normal((4, 3, WIDTH)).astype("f4") for n in range(len(made))
    }
    inputs |= {n: rng.integers(0, 9, (4, 3)).astype("f4") for n in ("i", "i2")[: len(made)]}
    program = planned(path)
    taken = {v.name for v in program.compilation.graph.inputs}
    weights = {"w": np.zeros((ROWS, WIDTH), np.float32)} if "w" in taken else {}
    (found,) = ran(program, compiler, {**inputs, **weights}).values()
    assert isinstance(found, SparseArray)
    expected = np.zeros((ROWS, WIDTH))
    for number, name in enumerate(("i", "i2")[: len(made)]):
        np.add.at(expected, inputs[name].astype(np.int64), inputs[f"head{number}"].astype("f8"))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)
