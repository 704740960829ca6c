"""Graphs written as symbols of MXNet, read back and run by onnxruntime; `make test-mxnet` runs them in MXNet."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.cli.main import main
from app.engine.entry.symbols import to_symbol
from app.engine.model.mxnet import params_file
from app.engine.report.mxnet import convert
from app.engine.report.mxnet.operators import ROWS
from app.engine.runtime import oracle
from app.engine.types.errors import SymbolError
from app.engine.types.limits import Limits
from tests.engine.model.mxnet.writing import Symbols
from tests.mxnet.__main__ import difference, outputs_of
from tests.mxnet.graphs import graphs

GRAPHS = {name: (model, inputs) for name, model, inputs in graphs()}
# Equal up to the rounding of sums in another order, relative to the largest element.
TOLERANCE = 2e-6
HALVES = 2.0**-10  # a step of float16, to which onnxruntime rounds less often


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_goes_out_and_comes_back_computes_the_same(name: str, tmp_path: Path) -> None:
    model, inputs = GRAPHS[name]
    onnx.save(model, tmp_path / "m.onnx")
    (expected,) = oracle.runtime(tmp_path / "m.onnx", threads=1, optimized=False)(inputs).values()
    to_symbol(tmp_path / "m.onnx", {}).save(tmp_path / "m-symbol.json", tmp_path / "m-0000.params")
    (found,) = outputs_of(tmp_path / "m-symbol.json", inputs, tmp_path)
    allowed = HALVES if name.endswith("16") else TOLERANCE
    assert difference(np.atleast_1d(np.asarray(expected)), found) < allowed


def test_files_are_the_same_each_time_and_hold_what_mxnet_wants(tmp_path: Path) -> None:
    model, _ = GRAPHS["lstm"]
    onnx.save(model, tmp_path / "m.onnx")
    for name in ("a", "b"):
        assert main(["convert", str(tmp_path / "m.onnx"), str(tmp_path / f"{name}-symbol.json")]) == 0
    symbol, parameters = ((tmp_path / f"a{end}").read_bytes() for end in ("-symbol.json", "-0000.params"))
    assert symbol == (tmp_path / "b-symbol.json").read_bytes()
    assert parameters == (tmp_path / "b-0000.params").read_bytes()
    found = json.loads(symbol)
    assert found["attrs"] == {"mxnet_version": ["int", 10901]}
    assert [found["nodes"][i]["op"] for i in found["arg_nodes"]] == ["null"] * 4
    arrays = params_file.read(tmp_path / "a-0000.params", "a", Limits())
    assert {name: p.array.shape for name, p in arrays.items()} == {
        "y.parameters": (288,),
        "y.state0": (2, 2, 4),
        "y.state1": (2, 2, 4),
    }


def test_every_row_is_written_by_some_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    rows = {op: lambda c, row=row: seen.add(c.node.op_type) or row(c) for op, row in ROWS.items()}
    monkeypatch.setattr(convert, "ROWS", rows)
    for model, _ in GRAPHS.values():
        onnx.save(model, tmp_path / "m.onnx")
        to_symbol(tmp_path / "m.onnx", {})
    assert sorted(ROWS.keys() - seen) == []


def test_all_nodes_without_a_spelling_are_listed_with_reasons(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 22]> g (float[2,1,6,6] x, float[n,m] y) => (float z, float u, float v) {
        z, i = MaxPool<kernel_shape = [2, 2]>(x)
        j = Shape(y)
        k = Cast<to = 1>(i)
        u = Neg(k)
        d = Det(x)
        v = Reshape(d, j)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(SymbolError) as told:
        to_symbol(tmp_path / "m.onnx", {})
    assert "no spelling of 4 nodes" in told.value.message
    for part in (
        "MaxPool 'MaxPool z'",
        "indices of the largest",
        "Det 'Det d'",
        "no operator",
        "bind the shapes",
    ):
        assert part in told.value.message


def test_free_dimensions_stay_free_or_are_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """<ir_version: 10, opset_import: ["": 22]> g (float[n,3,m,8] x) => (float[n,k] y)
        <float[2,3,1,1] w = {1, 2, 3, 4, 5, 6}> {
        a = Conv(x, w)
        b = GlobalAveragePool(a)
        y = Flatten(b)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    out = tmp_path / "o-symbol.json"
    for more, shape in (([], "(0, 3, 0, 8)"), (["--input", "x=2x3x4x8"], "(2, 3, 4, 8)")):
        assert main(["convert", str(tmp_path / "m.onnx"), str(out), *more]) == 0
        assert json.loads(out.read_text())["nodes"][0]["attrs"]["__shape__"] == shape
        x = np.random.default_rng(3).random((2, 3, 4, 8), np.float32)
        expected = oracle.runtime(tmp_path / "m.onnx", threads=1, optimized=False)({"x": x})["y"]
        (found,) = outputs_of(out, {"x": x}, tmp_path)
        assert difference(np.asarray(expected), found) < TOLERANCE
    assert main(["convert", str(tmp_path / "m.onnx"), str(out), "--opset", "17"]) == 1
    assert "--opset and --external-data are of ONNX files" in capsys.readouterr().err


def test_attributes_of_variables_and_storage_types_are_kept_both_ways(tmp_path: Path) -> None:
    s = Symbols()
    weight = s.var("w", storage_type="1", lr_mult="0.5", wd_mult="1.0", init="zeros")
    s.add("Embedding", "e", s.var("i", shape="(2,)", layout="N"), weight, input_dim=5, output_dim=2)
    w = np.zeros((5, 2), np.float32)
    w[[1, 4]] = [[1, 2], [3, 4]]
    path = s.save(tmp_path)
    params_file.write(tmp_path / "net-0000.params", {"arg:w": params_file.Parameter(w, "row_sparse")})
    given = {"net-0000.params": tmp_path / "net-0000.params"}
    to_symbol(path, given).save(tmp_path / "o-symbol.json", tmp_path / "o-0000.params")
    nodes = {n["name"]: n.get("attrs") for n in json.loads((tmp_path / "o-symbol.json").read_text())["nodes"]}
    assert nodes["w"] == {
        "__dtype__": "0",
        "__shape__": "(5, 2)",
        "__init__": "zeros",
        "__lr_mult__": "0.5",
        "__storage_type__": "1",
    }
    assert nodes["i"]["__layout__"] == "N"
    found = params_file.read(tmp_path / "o-0000.params", "o", Limits())["w"]
    assert found.storage == "row_sparse"
    np.testing.assert_array_equal(found.array, w)
    assert main(["convert", str(path), str(tmp_path / "m.onnx")]) == 0
    (tensor,) = [t for t in onnx.load(tmp_path / "m.onnx").graph.initializer if t.name == "w"]
    notes = {p.key: p.value for p in tensor.metadata_props}
    assert notes == {"__storage_type__": "row_sparse", "__lr_mult__": "0.5", "__init__": "zeros"}
    (back,) = outputs_of(tmp_path / "o-symbol.json", {"i": np.array([4, 1], np.float32)}, tmp_path)
    np.testing.assert_array_equal(back, w[[4, 1]])
