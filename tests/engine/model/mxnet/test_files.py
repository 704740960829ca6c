"""Files of symbols and parameters: formats, limits, and errors that name the defect; a fuzz of broken ones."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.cli.main import main
from app.cli.submit import beside
from app.engine.model.load import inspect, load
from app.engine.model.mxnet import params_file
from app.engine.model.mxnet.params_file import V1, V2, V3
from app.engine.types.errors import (
    CyclicGraphError,
    DtypeError,
    EngineError,
    ExternalDataError,
    GraphError,
    ModelTooLargeError,
    NotOnnxError,
    UnknownOperatorError,
)
from app.engine.types.limits import Limits
from app.engine.types.storage import DECLARED
from app.jobs.worker import prescan
from tests.engine.model.mxnet.writing import Symbols, listed, loaded, packed, params

W = np.arange(12, dtype=np.float32).reshape(3, 4)


def dense(**attributes: str) -> Symbols:
    s = Symbols()
    s.add("FullyConnected", "fc", s.var("x", shape="(2, 4)"), s.var("fc_weight"), num_hidden=3, no_bias=True)
    for name, value in attributes.items():
        s.nodes[-1]["attrs"][name] = value
    return s


def read(folder: Path, content: bytes, limits: Limits = Limits()) -> dict[str, params_file.Parameter]:  # noqa: B008  # frozen
    (folder / "w.params").write_bytes(content)
    return params_file.read(folder / "w.params", "w", limits)


@pytest.mark.parametrize("magic", [None, V1, V2, V3])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "uint8", "int32", "int8", "int64", "bool"]
)
def test_arrays_of_all_formats_and_types_are_read(tmp_path: Path, magic: int | None, dtype: str) -> None:
    array = (W % 2).astype(dtype)
    found = read(tmp_path, listed({"arg:a": packed(array, magic), "aux:b": packed(array[:1], magic)}))
    assert found["a"].array.dtype == dtype
    np.testing.assert_array_equal(found["a"].array, array)
    np.testing.assert_array_equal(found["b"].array, array[:1])


def test_a_scalar_is_an_array_since_v3_alone(tmp_path: Path) -> None:
    assert read(tmp_path, listed({"a": packed(np.float32(7).reshape(()), V3)}))["a"].array == 7
    assert read(tmp_path, listed({"a": struct.pack("<IiI", V2, 0, 0)})) == {}


def csr(starts: list[int], columns: list[int], values: list[float], shape: tuple[int, int] = (3, 4)) -> bytes:
    head = struct.pack("<Iiiqi2q", V2, 2, 1, len(values), 2, *shape) + struct.pack("<iii", 1, 0, 0)
    aux = struct.pack("<iiq", 6, 1, len(starts)) + struct.pack("<iiq", 6, 1, len(columns))
    data = (
        np.array(values, "f4").tobytes()
        + np.array(starts, "i8").tobytes()
        + np.array(columns, "i8").tobytes()
    )
    return head + aux + data


def row_sparse(rows: list[int], values: np.ndarray[Any, Any]) -> bytes:
    head = struct.pack("<Iii2qi2q", V2, 1, 2, *values.shape, 2, 3, 4) + struct.pack("<iii", 1, 0, 0)
    return head + struct.pack("<iiq", 6, 1, len(rows)) + values.tobytes() + np.array(rows, "i8").tobytes()


def test_sparse_arrays_are_written_out(tmp_path: Path) -> None:
    content = listed({"c": csr([0, 1, 1, 3], [2, 0, 3], [5, 6, 7]), "r": row_sparse([2, 0], W[:2])})
    found = read(tmp_path, content)
    assert [(n, p.storage) for n, p in found.items()] == [("c", "csr"), ("r", "row_sparse")]
    np.testing.assert_array_equal(found["c"].array, [[0, 0, 5, 0], [0, 0, 0, 0], [6, 0, 0, 7]])
    np.testing.assert_array_equal(found["r"].array, [W[1], np.zeros(4), W[0]])


@pytest.mark.parametrize(
    "array",
    [
        csr([0, 1, 1, 3], [2, 0, 4], [5, 6, 7]),
        csr([0, 1, 1, 3], [2, 0, -1], [5, 6, 7]),
        csr([0, 2, 1, 3], [2, 0, 3], [5, 6, 7]),
        csr([0, 1, 1, 2], [2, 0, 3], [5, 6, 7]),
        csr([1, 1, 1, 3], [2, 0, 3], [5, 6, 7]),
        csr([0, 1, 3], [2, 0, 3], [5, 6, 7]),
        row_sparse([3, 0], W[:2]),
        row_sparse([0], W[:2]),
        row_sparse([0, 1], W[:2, :3].copy()),
    ],
)
def test_indices_of_sparse_arrays_are_checked(tmp_path: Path, array: bytes) -> None:
    with pytest.raises(ExternalDataError, match="array"):
        read(tmp_path, listed({"a": array}))


@pytest.mark.parametrize(
    ("content", "error", "text"),
    [
        (b"", ExternalDataError, "cut short"),
        (b"\x13" * 64, ExternalDataError, "0x112"),
        (listed({"a": packed(W)})[:-1], ExternalDataError, "cut short"),
        (listed({"a": packed(W)}) + b"x", ExternalDataError, "1 byte follow"),
        (struct.pack("<QQQ", 0x112, 0, 2**60), ExternalDataError, "cut short"),
        (listed({"arg:a": packed(W), "aux:a": packed(W)}), ExternalDataError, "two arrays"),
        (
            listed({"a": struct.pack("<IiiqqiiI", V2, 0, 2, 2**20, 2**20, 1, 0, 0)}),
            ModelTooLargeError,
            "1048576",
        ),
        (listed({"a": struct.pack("<Iiiq", V2, 0, 1, -1)}), ExternalDataError, r"\[-1\]"),
        (listed({"a": struct.pack("<Iii", V2, 0, 99)}), ExternalDataError, "99 axes"),
        (listed({"a": struct.pack("<Ii", V2, 7)}), ExternalDataError, "storage type 7"),
        (listed({"a": struct.pack("<Iiiqiii", V2, 0, 1, 1, 1, 0, 99)}), DtypeError, "99"),
    ],
)
def test_broken_parameters_are_refused(
    tmp_path: Path, content: bytes, error: type[EngineError], text: str
) -> None:
    with pytest.raises(error, match=text):
        read(tmp_path, content)


def test_a_small_file_cannot_ask_for_much_memory(tmp_path: Path) -> None:
    many = listed({f"r{i}": row_sparse([], W[:0])[:12] + struct.pack("<2qi2q", 0, 2**20, 2, 2**10, 2**20)
                   + row_sparse([], W[:0])[48:] for i in range(4)})  # fmt: skip
    with pytest.raises(ModelTooLargeError):
        read(tmp_path, many, Limits(nbytes=2**30))


def test_a_weight_keeps_its_storage_type(tmp_path: Path) -> None:
    s = dense()
    (tmp_path / "w").write_bytes(listed({"fc_weight": csr([0, 1, 1, 3], [2, 0, 3], [5, 6, 7])}))
    model = load(s.save(tmp_path), external={"w": tmp_path / "w"}).model
    assert model.graph.initializers["fc_weight"].metadata_props[DECLARED] == "csr"


def test_a_weight_without_data_names_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        ExternalDataError, match=r"'fc_weight' is the weight of FullyConnected 'fc'.*0000\.params"
    ):
        loaded(tmp_path, dense())


def test_data_that_do_not_fit_the_declared_shape_are_refused(tmp_path: Path) -> None:
    s = dense()
    s.nodes[1]["attrs"]["__shape__"] = "(3, 5)"
    with pytest.raises(GraphError, match=r"declared as \[3, 5\].*\[3, 4\]"):
        loaded(tmp_path, s, fc_weight=W)


def test_all_unknown_operators_are_listed_with_their_nodes(tmp_path: Path) -> None:
    s = Symbols()
    x = s.add("_set_value", "r0")
    s.add("_backward_Convolution", "b", s.add("_set_value", "r1"), x)
    with pytest.raises(
        UnknownOperatorError,
        match=r"_backward_Convolution \(node 'b'\), _set_value \(nodes 'r0', 'r1'\)",
    ):
        loaded(tmp_path, s)


def test_an_attribute_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="FullyConnected 'fc': attributes surprise are not known"):
        loaded(tmp_path, dense(surprise="1"), fc_weight=W)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"nodes": 1}, NotOnnxError, "lists `nodes` and `heads`"),
        ({"heads": []}, GraphError, "no outputs"),
        ({"heads": [[9, 0, 0]]}, GraphError, "head 0"),
        ({"heads": [[2, 1, 0]]}, GraphError, "no output 1"),
        ({"heads": [[2, -1, 0]]}, GraphError, "output -1"),
        ({"heads": ["x"]}, GraphError, "expected"),
        (
            {"nodes": [{"op": "relu", "name": "a", "inputs": [[0, 0, 0]]}]},
            CyclicGraphError,
            "does not come before",
        ),
        ({"nodes": [{"op": "relu", "name": 3}]}, GraphError, "expected text"),
        ({"nodes": [{"op": "null", "name": "\ud800"}]}, GraphError, "surrogate"),
        ({"nodes": [{"op": "null", "name": "a", "attrs": {"k": 1}}]}, GraphError, "attribute 'k'"),
        ({"nodes": [{"op": "null", "name": "a"}] * 3}, GraphError, "two variables"),
    ],
)
def test_broken_symbols_are_refused(
    tmp_path: Path, change: dict[str, Any], error: type[EngineError], text: str
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(dense().json() | change))
    with pytest.raises(error, match=text):
        load(tmp_path / "s.json", external={"w": params(tmp_path, {"fc_weight": W})})


def test_what_is_no_json_is_no_model(tmp_path: Path) -> None:
    for content in (b"{", b'{"nodes": ' + b"[" * 100_000, b"{\xff"):
        (tmp_path / "s.json").write_bytes(content)
        with pytest.raises(NotOnnxError):
            inspect(tmp_path / "s.json")


def test_the_scan_counts_and_bounds_a_symbol(tmp_path: Path) -> None:
    path = dense().save(tmp_path)
    assert prescan.scan_file(path).nodes == 3
    with pytest.raises(ModelTooLargeError, match="more than 2 nodes"):
        prescan.scan_file(path, prescan.Bounds(nodes=2))


def test_parameters_are_found_beside_the_symbol(tmp_path: Path) -> None:
    symbol = dense().save(tmp_path)
    assert beside(symbol) == {}
    (tmp_path / "net-0007.params").write_bytes(b"")
    assert beside(symbol) == {"net-0007.params": tmp_path / "net-0007.params"}
    (tmp_path / "net-0008.params").write_bytes(b"")
    assert beside(symbol) == {}
    (tmp_path / "net.params").write_bytes(b"")
    assert list(beside(symbol)) == ["net.params"]
    (tmp_path / "net-0000.params").write_bytes(b"")
    assert list(beside(symbol)) == ["net-0000.params"]


def test_convert_writes_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    symbol = dense().save(tmp_path)
    params(tmp_path, {"fc_weight": W})
    assert main(["convert", str(symbol), str(tmp_path / "net.onnx")]) == 0
    assert inspect(tmp_path / "net.onnx").operators == {"Gemm": 1}
    assert main(["convert", str(symbol), str(tmp_path / "net.json")]) == 1
    assert "expected a name that ends with .onnx" in capsys.readouterr().err


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, cut out or repeated."""
    found = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found))
        end = min(at + chance.randint(1, 16), len(found))
        kind = chance.randrange(4)
        if kind == 0:
            found[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, *b'0189-{}[]",', chance.randrange(256)])
        elif kind == 1 and len(found) > 32:
            del found[at:end]
        elif kind == 2:
            found[at:at] = found[at:end]
        else:
            found[at:end] = found[at:end][::-1]
    return bytes(found)


def test_no_broken_file_does_anything_but_be_refused(tmp_path: Path) -> None:
    """Mutations of a symbol and of its parameters load or are refused with an error of ours."""
    chance = random.Random(7)
    s = Symbols()
    x = s.add("Reshape", "r", s.var("x", shape="(2, 4)"), shape="(0, -4, 2, -1)")
    x = s.add("FullyConnected", "fc", x, s.var("fc_weight"), num_hidden=3, no_bias=True)
    x = s.add("slice", "s", s.add("softmax", "sm", x, axis=-1), begin="(0, 1)", end="(None, 3)")
    s.add("_plus_scalar", "p", x, scalar=0.5)
    symbol = s.save(tmp_path)
    arrays = {"arg:fc_weight": packed(W), "arg:c": csr([0, 1, 1, 3], [2, 0, 3], [5, 6, 7])}
    originals = symbol.read_bytes(), listed(arrays)
    weights = tmp_path / "w"
    outcomes = {True: 0, False: 0}
    for i in range(800):
        files = [mutated(c, chance) if i % 2 == j else c for j, c in enumerate(originals)]
        symbol.write_bytes(files[0])
        weights.write_bytes(files[1])
        try:
            load(symbol, external={"w": weights}, limits=Limits(nbytes=2**22, elements=2**20))
            outcomes[True] += 1
        except EngineError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 20
