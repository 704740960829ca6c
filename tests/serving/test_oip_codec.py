"""Requests and answers of the Open Inference Protocol, without a server."""

import json
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from app.serving import oip_answers, oip_codec
from app.serving.oip_codec import NO_HEADER, Inference, InferenceError, Wanted
from app.serving.oip_forms import Forms

NAMES = "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FP16 BF16 FP32 FP64".split()  # noqa: SIM905
TYPES = dict(
    zip(
        NAMES,
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split(),  # noqa: SIM905
        strict=True,
    )
)


@dataclass(frozen=True)
class Port:
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "BF16" else np.dtype(TYPES[name])


X = Port("x", np.dtype(np.float32), (None, 2))
OUTPUTS = (Port("y", np.dtype(np.float32), (None, 2)), Port("z", np.dtype(np.float16), None))


def parse(request: Any, binary: bytes = b"", ports: tuple[Port, ...] = (X,)) -> Inference:
    text = request if isinstance(request, bytes) else json.dumps(request).encode()
    header = len(text) if binary else NO_HEADER
    return oip_codec.parse(memoryview(text + binary), header, ports, OUTPUTS, {"rate": 16000})


def x(**changes: Any) -> dict[str, Any]:
    row = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]} | changes
    return {"inputs": [{k: v for k, v in row.items() if v is not None}]}


@pytest.mark.parametrize("name", NAMES)
def test_binary_tensors_of_every_type_are_read_in_place(name: str) -> None:
    given = np.array([[0, 1], [1, 0]]).astype(dtype_of(name))
    row = {"name": "x", "shape": [2, 2], "datatype": name, "parameters": {"binary_data_size": given.nbytes}}
    text = json.dumps({"inputs": [row]}).encode()
    body = bytearray(text + given.tobytes())
    port = Port("x", given.dtype, (2, None))
    found = oip_codec.parse(memoryview(body), len(text), (port,), OUTPUTS, {}).inputs["x"]
    assert found.dtype == given.dtype
    np.testing.assert_array_equal(found, given)
    assert np.shares_memory(found, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("FP16", "BF16")])
def test_json_tensors_are_flat_or_nested(name: str) -> None:
    port = Port("x", dtype_of(name), (2, 2))
    values = [[True, False], [False, True]] if name == "BOOL" else [[1, 2], [3, 4]]
    for data in (values, np.ravel(values).tolist()):
        found = parse(x(shape=[2, 2], datatype=name, data=data), ports=(port,)).inputs["x"]
        assert found.dtype == port.dtype
        np.testing.assert_array_equal(found, np.array(values))


REFUSALS = {
    "no JSON": (b"{", "expected a JSON object"),
    "no object": (b"[]", r"expected a JSON object, found \[\]"),
    "deep JSON": (b"[" * 100_000, "expected a JSON object"),
    "no inputs": ({}, "input 'x' is missing; the model takes 'x'"),
    "unknown input": ({"inputs": [{"name": "q", "shape": [1]}]}, "input 'q' is unknown; the model takes 'x'"),
    "twice": ({"inputs": x()["inputs"] * 2}, "input 'x' is there twice"),
    "no shape": (x(shape=None), "shape: expected a list of integers, found nothing"),
    "other rank": (x(shape=[2]), r"expected shape \[-1, 2\], found \[2\]"),
    "other dimension": (x(shape=[1, 3], data=[1, 2, 3]), r"expected shape \[-1, 2\], found \[1, 3\]"),
    "negative": (x(shape=[-1, 2]), "expected no negative number"),
    "other type": (x(datatype="INT64"), "expected FP32, found INT64"),
    "no type": (x(datatype="F32"), "datatype: expected one of BOOL, INT8, .* found 'F32'"),
    "strings": (x(datatype="BYTES", data=["a", "b"]), "BYTES is refused: models with strings are not served"),
    "too few": (x(data=[1]), r"expected 2 numbers for shape \[1, 2\], found 1"),
    "ragged": (x(data=[[1, 2], [3]]), "expected a list of numbers"),
    "words": (x(data=["a", "b"]), "expected numbers for FP32, found strings"),
    "too large": (x(data=[1e300, 0]), "FP32 does not hold 1e[+]300"),
    "infinite": (
        b'{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1e999, 1]}]}',
        "FP32 does not hold inf",
    ),
    "not a number": (b'{"inputs": [{"name": "x", "data": [NaN]}]}', "NaN, which JSON does not"),
    "no data": (x(data=None), "neither `data` nor"),
    "both": (x(parameters={"binary_data_size": 8}), "both `data` and"),
    "wrong size": (
        x(data=None, parameters={"binary_data_size": 7}),
        r"expected 8 byte for FP32\[1, 2\], found 7",
    ),
    "no bytes": (
        x(data=None, parameters={"binary_data_size": 8}),
        "expected 8 byte of binary data, found 0 byte",
    ),
    "bound": (
        {"inputs": [{"name": "rate", "shape": [1], "datatype": "INT64", "data": [8000]}, *x()["inputs"]]},
        "input 'rate' was bound to 16000",
    ),
    "id": (x() | {"id": 7}, "id: expected a string, found 7"),
    "unknown output": (x() | {"outputs": [{"name": "q"}]}, "output 'q' is unknown; the model has 'y', 'z'"),
    "sequences": (x() | {"parameters": {"sequence_id": 1}}, "sequences are not served"),
    "shared memory": (x(parameters={"shared_memory_region": "r"}), "shared memory of clients is not read"),
    "no time": (
        x() | {"parameters": {"timeout": -1}},
        "timeout: expected a number of microseconds, found -1",
    ),
    "a flag": (x() | {"parameters": {"binary_data_output": 1}}, "expected true or false, found 1"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_request_that_does_not_fit_is_refused_by_name(name: str) -> None:
    request, message = REFUSALS[name]
    with pytest.raises(InferenceError, match=message) as failure:
        parse(request)
    assert failure.value.status == 400
    assert len(failure.value.body()) <= oip_codec.ERROR_NBYTES


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(1_500_000, 1.5), (0, None), (10**400, 2**53 / 1e6), (1, 1e-6)]
)
def test_the_timeout_of_a_request_is_in_microseconds(timeout: int, seconds: float | None) -> None:
    assert parse(x() | {"parameters": {"timeout": timeout}}).seconds == pytest.approx(seconds)


def test_numbers_of_integers_must_fit() -> None:
    port = Port("x", np.dtype(np.int8), (1,))
    for data, message in (([128], "INT8 holds -128 to 127"), ([1.5], "expected integers for INT8")):
        with pytest.raises(InferenceError, match=message):
            parse(x(shape=[1], datatype="INT8", data=data), ports=(port,))


def test_a_bound_input_may_be_given_as_it_is() -> None:
    rate = {"name": "rate", "shape": [1], "datatype": "INT64", "data": [16000]}
    assert set(parse({"inputs": [rate, *x()["inputs"]]}).inputs) == {"x"}


def test_sizes_of_header_and_tensors_are_checked() -> None:
    text = json.dumps(x()).encode()
    for header in (0, len(text) + 1):
        with pytest.raises(InferenceError, match="Inference-Header-Content-Length"):
            oip_codec.parse(memoryview(text), header, (X,), OUTPUTS, {})
    with pytest.raises(InferenceError, match="4 byte follow the tensors"):
        parse(x(), b"1234")


def answered(inference: Inference, outputs: dict[str, Any]) -> tuple[dict[str, Any], bytes, int]:
    answer = oip_answers.answer("m", "1", inference, outputs)
    place = bytearray(answer.nbytes)
    answer.write(memoryview(place))
    header = answer.header_nbytes if answer.header_nbytes != NO_HEADER else len(place)
    return json.loads(bytes(place[:header])), bytes(place[header:]), answer.header_nbytes


def test_an_answer_has_json_and_then_the_bytes() -> None:
    y, z = np.array([[1, 2]], np.float32), np.array(3, np.float16)
    wanted = (Wanted("z", True), Wanted("y", False))
    header, rest, _ = answered(Inference("7", {}, wanted), {"y": y, "z": z})
    assert header == {
        "id": "7",
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "z", "datatype": "FP16", "shape": [], "parameters": {"binary_data_size": 2}},
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0]},
        ],
    }
    assert rest == z.tobytes()


def test_an_answer_of_the_outputs_themselves_tells_what_they_hold_when_it_is_written() -> None:
    y, z = np.array([[1, 2]], np.float32), np.array([3], np.int64)
    both = Inference(None, {}, (Wanted("z", True), Wanted("y", True)))
    answer = oip_answers.answer("m", "1", both, {"y": y, "z": z})
    assert answer.is_of(both, {"y": y, "z": z})
    assert not answer.is_of(both, {"y": y.copy(), "z": z})
    y[:], place = 7, bytearray(answer.nbytes)
    answer.write(memoryview(place))
    assert place[len(answer.header) :] == z.tobytes() + y.tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_an_answer_of_copies_or_of_json_is_for_one_request(binary: bool) -> None:
    inference = Inference(None, {}, (Wanted("y", binary),))
    outputs = {"y": np.arange(6, dtype=np.float32).reshape(2, 3).T}
    assert not oip_answers.answer("m", "1", inference, outputs).is_of(inference, outputs)


def test_numbers_that_json_has_not_are_told_to_come_as_bytes() -> None:
    nan = np.array([np.nan], np.float32)
    for name, array in (("y", nan), ("z", nan.astype(np.float16))):
        with pytest.raises(InferenceError, match="ask for `binary_data`"):
            oip_answers.answer("m", "1", Inference(None, {}, (Wanted(name, False),)), {name: array})


def test_outputs_that_are_not_named_all_come() -> None:
    assert parse(x()).outputs == (Wanted("y", False), Wanted("z", False))
    binary = parse(x() | {"parameters": {"binary_data_output": True}})
    assert binary.outputs == (Wanted("y", True), Wanted("z", True))
    one = parse(x() | {"outputs": [{"name": "z", "parameters": {"binary_data": True}}]})
    assert one.outputs == (Wanted("z", True),)


def test_a_header_that_was_read_before_is_taken_for_the_numbers_that_follow_it() -> None:
    flag = Port("flag", np.dtype(np.bool_), (1,))
    forms = Forms((X,), OUTPUTS, {"rate": 16000})
    size = {"binary_data_size": 8}
    text = json.dumps(x(data=None, parameters=size) | {"id": "7"}).encode()
    for values in ([1, 2], [3, 4], [-5, np.nan]):
        body = text + np.array([values], np.float32).tobytes()
        found, expected = (
            forms.parse(memoryview(body), len(text)),
            oip_codec.parse(memoryview(body), len(text), (X,), OUTPUTS, {"rate": 16000}),
        )
        np.testing.assert_array_equal(found.inputs["x"], np.array([values], np.float32))
        assert (found.id, found.outputs, found.shapes) == (expected.id, expected.outputs, expected.shapes)
    with pytest.raises(InferenceError, match="expected 8 byte of binary data, found 4"):
        forms.parse(memoryview(text + bytes(4)), len(text))
    with pytest.raises(InferenceError, match="follow the tensors"):
        forms.parse(memoryview(text + bytes(12)), len(text))
    rate = {"name": "rate", "shape": [1], "datatype": "INT32", "parameters": {"binary_data_size": 4}}
    both = json.dumps({"inputs": [*x(data=None, parameters=size)["inputs"], rate]}).encode()
    forms.parse(memoryview(both + bytes(8) + np.int32(16000).tobytes()), len(both))
    with pytest.raises(InferenceError, match="'rate' was bound to 16000"):
        forms.parse(memoryview(both + bytes(8) + np.int32(8000).tobytes()), len(both))
    flags = Forms((flag,), OUTPUTS, {})
    row = {"name": "flag", "shape": [1], "datatype": "BOOL", "parameters": {"binary_data_size": 1}}
    told = json.dumps({"inputs": [row]}).encode()
    assert flags.parse(memoryview(told + b"\1"), len(told)).inputs["flag"] == [True]
    with pytest.raises(InferenceError, match="expected bytes 0 and 1"):
        flags.parse(memoryview(told + b"\2"), len(told))


def test_a_dimension_may_be_zero_as_in_a_job() -> None:
    found = parse(x(shape=[0, 2], data=[])).inputs["x"]
    assert (found.shape, found.dtype) == ((0, 2), np.float32)
