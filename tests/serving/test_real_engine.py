"""A model that the engine optimized, deployed and called with tensors of every type."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from app.client import Client
from tests.jobs.service import Served
from tests.serving.deployed import client, undeploy

pytestmark = pytest.mark.last

# The protocol's type, ONNX's, NumPy's: BF16 travels as float32 in this client.
TYPES = (
    ("BOOL", "bool", np.bool_),
    ("INT8", "int8", np.int8),
    ("INT16", "int16", np.int16),
    ("INT32", "int32", np.int32),
    ("INT64", "int64", np.int64),
    ("UINT8", "uint8", np.uint8),
    ("UINT16", "uint16", np.uint16),
    ("UINT32", "uint32", np.uint32),
    ("UINT64", "uint64", np.uint64),
    ("FP16", "float16", np.float16),
    ("BF16", "bfloat16", np.float32),
    ("FP32", "float", np.float32),
    ("FP64", "double", np.float64),
)
INPUTS = ", ".join(f"{kind}[N, 2] x_{name}" for name, kind, _ in TYPES)
OUTPUTS = ", ".join(f"{kind}[M, 2] y_{name}" for name, kind, _ in TYPES)
NODES = "\n".join(f"y_{name} = Concat <axis=0> (x_{name}, x_{name})" for name, _, _ in TYPES)
TEXT = f"""<ir_version: 10, opset_import: ["" : 21]>
model ({INPUTS}) => ({OUTPUTS}) {{
{NODES}
}}"""


@pytest.fixture(scope="module")
def served(real_service: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("real")
    onnx.save(onnx.parser.parse_model(TEXT), folder / "model.onnx")
    with Client(str(real_service.http.base_url)) as here:
        job = here.submit(
            here.upload(folder / "model.onnx").id,
            input_shapes={f"x_{name}": [1, 2] for name, _, _ in TYPES},
            input_ranges={f"x_{name}": [0, 2] for name, _, _ in TYPES if "INT" in name},
            options={"autotune": False, "timings": "predicted"},
        )
        done = here.wait(job.id, timeout=120)
        assert done.state == "succeeded", done
        here.deploy(job.id, "types")
        found = here.wait_until_ready("types", timeout=120)
        assert found.state == "ready", found
        yield real_service
        undeploy(real_service)


def given(rows: int, *, binary: bool) -> tuple[list[Any], dict[str, Any]]:
    tensors, arrays = [], {}
    for name, _, kind in TYPES:
        array = arrays[name] = np.arange(rows * 2).reshape(rows, 2).astype(kind)
        tensors.append(triton.InferInput(f"x_{name}", [rows, 2], name))
        tensors[-1].set_data_from_numpy(array, binary_data=binary or name in ("FP16", "BF16"))
    return tensors, arrays


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("binary", [True, False])
def test_every_type_goes_through(served: Served, rows: int, binary: bool) -> None:
    tensors, arrays = given(rows, binary=binary)
    wanted = [
        triton.InferRequestedOutput(f"y_{name}", binary_data=binary or name in ("FP16", "BF16"))
        for name, _, _ in TYPES
    ]
    with client(served) as here:
        found = here.infer("types", tensors, outputs=wanted)
    for name, _, kind in TYPES:
        output = found.as_numpy(f"y_{name}")
        assert output.dtype == np.dtype(kind), name
        np.testing.assert_array_equal(output, np.concatenate([arrays[name]] * 2))


@pytest.mark.parametrize("binary", [True, False])
def test_a_batch_of_none_is_served_as_a_job_runs_it(served: Served, binary: bool) -> None:
    tensors, _ = given(0, binary=binary)
    with client(served) as here:
        answer = here.infer("types", tensors)
    assert [output["shape"] for output in answer.get_response()["outputs"]] == [[0, 2]] * len(TYPES)


def test_requests_of_one_form_have_answers_of_their_own(served: Served) -> None:
    y, z = (triton.InferRequestedOutput(f"y_{name}", binary_data=True) for name in ("FP32", "INT64"))
    with client(served) as here:
        for seed, outputs in enumerate(2 * ([y], [z, y], None, [y], [z, y], None, [z, y])):
            rows = 1 + 2 * (seed // 7)
            tensors, arrays = given(rows, binary=True)
            for tensor, (name, array) in zip(tensors, arrays.items()):
                if name in ("FP32", "INT64"):
                    array += 10 * seed
                    tensor.set_data_from_numpy(array, binary_data=True)
            answer = here.infer("types", tensors, outputs=outputs)
            for name in ("FP32", "INT64") if outputs != [y] else ("FP32",):
                found = answer.as_numpy(f"y_{name}")
                np.testing.assert_array_equal(found, np.concatenate([arrays[name]] * 2))


def test_shapes_that_contradict_each_other_are_refused(served: Served) -> None:
    tensors, _ = given(2, binary=True)
    tensors[0] = triton.InferInput("x_BOOL", [2, 3], "BOOL")
    tensors[0].set_data_from_numpy(np.zeros((2, 3), bool))
    with client(served) as here, pytest.raises(InferenceServerException, match=r"expected shape \[-1, 2\]"):
        here.infer("types", tensors)


def test_metadata_name_every_type(served: Served) -> None:
    with client(served) as here:
        found = here.get_model_metadata("types")
    assert found["inputs"] == [{"name": f"x_{n}", "datatype": n, "shape": [-1, 2]} for n, _, _ in TYPES]
