"""Sparse tensors of inference requests: JSON and bytes, what is refused, and the client's side of both."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from app import sparse_inputs
from app.engine.model import given_tensors
from app.engine.report.npz import write_outputs
from app.engine.types.errors import InputError
from app.engine.types.sparse_array import SparseArray
from app.serving import oip_answers
from app.serving.oip_codec import NO_HEADER, Inference, InferenceError, parse
from app.serving.oip_forms import Forms


@dataclass(frozen=True)
class Port:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None


X = Port("x", np.dtype(np.float32), (3, 4))
DENSE = np.array([[0, 1, 0, 2], [0, 0, 0, 0], [3, 0, 0, 0]], np.float32)
CSR = {"values": [1.0, 2.0, 3.0], "indices": [1, 3, 0], "indptr": [0, 2, 2, 3]}
TRIPLES = {"values": [3.0, 1.0, 2.0], "rows": [2, 0, 0], "columns": [0, 1, 3]}
ROWS = {"values": [0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 0.0, 0.0], "indices": [0, 2]}


def request(form: str, data: object, shape: tuple[int, ...] = (3, 4), **more: object) -> bytes:
    parameters = {"sparse": form, **more}
    row = {"name": "x", "datatype": "FP32", "shape": list(shape), "parameters": parameters, "data": data}
    return json.dumps({"inputs": [row]}).encode()


def parsed(body: bytes, header: int = NO_HEADER, port: Port = X) -> Inference:
    return parse(memoryview(body), header, [port], [], {})


@pytest.mark.parametrize(("form", "data"), [("csr", CSR), ("triples", TRIPLES), ("row_sparse", ROWS)])
def test_a_sparse_tensor_in_json_is_the_dense_one(form: str, data: object) -> None:
    found = parsed(request(form, data)).inputs["x"]
    assert isinstance(found, SparseArray)
    np.testing.assert_array_equal(found.dense(), DENSE)
    assert found.entries == (2 if form == "row_sparse" else 3)


@pytest.mark.parametrize(
    ("form", "change", "told"),
    [
        ("csr", {"indices": [1, 4, 0]}, "must be 0 to 3, found 0 to 4"),
        ("csr", {"indices": [1, -1, 0]}, "must be 0 to 3, found -1"),
        ("csr", {"indices": [3, 1, 0]}, "increase strictly in each row: found 3 before 1"),
        ("csr", {"indices": [1, 1, 0]}, "found 1 before 1"),
        ("csr", {"indptr": [0, 2, 3]}, "indptr must be 4 integers"),
        ("csr", {"indptr": [0, 3, 2, 3]}, "indptr must not decrease"),
        ("csr", {"indptr": [0, 2, 2, 2**62]}, "from 0 to 3"),
        ("csr", {"indptr": [1, 2, 2, 3]}, "from 0 to 3"),
        ("csr", {"values": [1.0, 2.0]}, "values must have shape"),
        ("csr", {"values": [[1.0, 2.0, 3.0]]}, "flat list"),
        ("csr", {"values": "abc"}, "list of numbers"),
        ("csr", {"indices": [0.5, 1, 2]}, "expected integers"),
        ("csr", {"more": []}, "expected an object with values, indices, indptr"),
        ("triples", {"rows": [0, 0, 0], "columns": [1, 3, 1]}, r"\[0, 1\] is there twice"),
        ("triples", {"rows": [0, 0, 3]}, "row numbers must be 0 to 2"),
        ("row_sparse", {"indices": [2, 0]}, "increase strictly"),
        ("row_sparse", {"values": [1.0]}, "2 rows of shape"),
    ],
)
def test_parts_that_are_no_matrix_are_refused(form: str, change: dict[str, object], told: str) -> None:
    data = {"csr": CSR, "triples": TRIPLES, "row_sparse": ROWS}[form]
    with pytest.raises(InferenceError, match=told):
        parsed(request(form, {**data, **change}))


def test_forms_and_shapes_that_are_not_known_are_refused() -> None:
    with pytest.raises(InferenceError, match="expected one of csr, row_sparse, triples"):
        parsed(request("coo", CSR))
    with pytest.raises(InferenceError, match="expected shape"):
        parsed(request("csr", CSR, (3, 5)))
    free = Port("x", np.dtype(np.float32), (None, None))
    for shape in ((2**40, 2**40), (2**40, 0), (0, 2**40)):
        with pytest.raises(InferenceError, match="the limit is"):
            parsed(request("triples", {"values": [], "rows": [], "columns": []}, shape), port=free)
    for entries in (None, -1, True, 2**62):
        with pytest.raises(InferenceError, match=r"entries|binary_data_size"):
            parsed(request("csr", None, entries=entries, binary_data_size=10))


@settings(max_examples=80, deadline=None)
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 6), st.integers(1, 6)),
        elements=st.sampled_from([0, 0, 0, 1.5, -2]),
    )
)
def test_bytes_of_the_client_are_what_was_sent(dense: Any) -> None:
    rows, columns = np.nonzero(dense)
    matrix = sparse_inputs.from_triples(
        dense.shape, rows[::-1].tolist(), columns[::-1].tolist(), dense[rows, columns][::-1]
    )
    row, block = sparse_inputs.inference_input("x", matrix)
    header = json.dumps({"inputs": [row]}).encode()
    port = Port("x", np.dtype(np.float32), dense.shape)
    forms = Forms([port], [], {})
    for _ in range(2):  # a header that was seen before
        found = forms.parse(memoryview(header + block), len(header)).inputs["x"]
        assert isinstance(found, SparseArray)
        np.testing.assert_array_equal(found.dense(), dense)


def test_a_file_of_the_client_is_read_and_hostile_ones_are_refused(tmp_path: Path) -> None:
    matrix = sparse_inputs.from_triples((3, 4), [2, 0, 0], [0, 1, 3], np.array([3, 1, 2], np.float32))
    good = tmp_path / "good.npz"
    sparse_inputs.write(good, matrix)
    found = given_tensors.given("x", good)
    assert isinstance(found, SparseArray)
    np.testing.assert_array_equal(found.dense(), DENSE)
    parts: dict[str, Any] = {
        "format": np.array(b"csr"), "shape": np.array([3, 4]), "data": matrix.data,
        "indices": matrix.indices, "indptr": matrix.indptr,
    }  # fmt: skip
    for change, told in (
        ({"format": np.array(b"csc")}, "its format is"),
        ({"shape": np.array([3, 2])}, "must be 0 to 1"),
        ({"shape": np.array([-3, 4])}, "not two numbers"),
        ({"indptr": np.array([0, 3])}, "indptr must be 4"),
        ({"indices": np.array([1, 1, 0])}, "increase strictly"),
        ({"data": np.array([object()] * 3)}, "objects"),
    ):
        bad = tmp_path / "bad.npz"
        np.savez(bad, **{**parts, **change})
        with pytest.raises(InputError, match=told):
            given_tensors.given("x", bad)
    cut = tmp_path / "cut.npz"
    cut.write_bytes(good.read_bytes()[:100])
    with pytest.raises(InputError, match="expected a .npy file"):
        given_tensors.given("x", cut)


def test_triples_that_are_no_matrix_are_refused_by_the_client() -> None:
    for rows, columns, told in (([0, 0], [1, 1], "twice"), ([0], [9], "column"), ([0], [1, 2], "length")):
        with pytest.raises(ValueError, match=told):
            sparse_inputs.from_triples((3, 4), rows, columns, np.ones(len(rows), np.float32))


def wanted(form: object, *, binary: bool = False) -> Inference:
    """A request for the output `y` in a sparse form."""
    row = {"name": "y", "parameters": {"sparse": form, "binary_data": binary}}
    return parse(
        memoryview(json.dumps({"outputs": [row]}).encode()), NO_HEADER, [], [Port("y", X.dtype, None)], {}
    )


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("form", ["csr", "triples", "row_sparse"])
@pytest.mark.parametrize("held", [None, "csr", "row_sparse"])
def test_a_sparse_output_is_an_input_of_the_same_notation(held: Any, form: str, binary: bool) -> None:
    """However the program has it: what is answered is read as an input, and is the dense array again."""
    array = DENSE if held is None else SparseArray.of_dense(held, DENSE)
    answer = oip_answers.answer("m", "1", wanted(form, binary=binary), {"y": array})
    place = bytearray(answer.nbytes)
    answer.write(memoryview(place))
    end = len(place) if answer.header_nbytes == NO_HEADER else answer.header_nbytes
    (row,) = json.loads(bytes(place[:end]))["outputs"]
    assert row["shape"] == [3, 4]
    assert row["parameters"]["sparse"] == form
    header = json.dumps({"inputs": [row | {"name": "x"}]}).encode()
    found = parsed(header + bytes(place[end:]), len(header) if binary else NO_HEADER).inputs["x"]
    assert isinstance(found, SparseArray)
    np.testing.assert_array_equal(found.dense(), DENSE)


def test_an_output_that_has_no_such_form_is_refused() -> None:
    with pytest.raises(
        InferenceError, match="'y': parameter 'sparse': expected one of csr, row_sparse, triples"
    ):
        wanted(["coo"])
    with pytest.raises(InferenceError, match="output 'y': csr has 2 axes, found shape"):
        oip_answers.answer("m", "1", wanted("csr"), {"y": np.zeros((2, 3, 4), np.float32)})
    with pytest.raises(InferenceError, match="ask for `binary_data`"):
        oip_answers.answer("m", "1", wanted("csr"), {"y": np.full((2, 2), np.nan, np.float32)})
    nan = oip_answers.answer(
        "m", "1", wanted("row_sparse", binary=True), {"y": np.full((2, 2), np.nan, np.float32)}
    )
    assert json.loads(nan.header)["outputs"][0]["parameters"]["entries"] == 2


def test_sparse_outputs_of_a_job_are_parts_in_the_file(tmp_path: Path) -> None:
    write_outputs(tmp_path / "outputs.npz", {"g": SparseArray.of_dense("row_sparse", DENSE), "y": DENSE})
    with np.load(tmp_path / "outputs.npz") as found:
        assert set(found) == {"y", "g.shape", "g.values", "g.indices"}
        read = SparseArray("row_sparse", tuple(found["g.shape"]), found["g.values"], found["g.indices"])
    np.testing.assert_array_equal(read.dense(), DENSE)
