"""The benchmark on a tiny model: every figure is there, nothing is dropped. No time is asserted."""

import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from app.engine.types.options import Options
from app.engine.types.precision import BF16_TOLERANCE
from app.engine.types.target import host
from benchmarks import latency, models, paired, queue, row, tables
from benchmarks.peers import ONNXRUNTIME, OPENVINO, OPENVINO_F32
from tests.engine.planning.test_mixed_precision import cancelling
from tests.harness import offering

TEXT = """
    <ir_version: 10, opset_import: ["": 21]>
    tiny (float[n, 8] x, int64 times, float[8, 8] w) => (float[n, 8] y) {
        scale = Cast<to = 1>(times)
        product = MatMul(x, w)
        y = Mul(product, scale)
    }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model(TEXT)
    weight = random.standard_normal((8, 8)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))  # an input with a default
    onnx.save(proto, tmp_path / "tiny.onnx")
    x = random.standard_normal((3, 8)).astype(np.float32)
    np.savez(tmp_path / "tiny.io.npz", in__x=x, in__times=np.int64(2), out__y=2 * x @ weight)
    return tmp_path / "tiny.onnx"


def test_a_row_has_a_time_or_a_refusal_of_every_runtime(tiny: Path, tmp_path: Path) -> None:
    found = row.measure(row.Request(tiny, 1, 0.01, tmp_path / "kernels", Options(), operators=True))
    for name in (ONNXRUNTIME, OPENVINO_F32, OPENVINO):
        assert (name in found["milliseconds"]) != (name in found["refused"])
    assert found["inputs"] == "recorded"
    assert found["max_rel"] < 1e-5
    assert found["ratio"] == found["milliseconds"][found["better"]] / found["milliseconds"][row.OURS]
    assert found["peak_gflops"] > 0
    assert {s["op"] for s in found["operators"]} >= {"MatMul"}
    assert found["reference"] == []


def test_a_model_is_looked_up_in_the_folders_then_in_the_samples(tiny: Path, tmp_path: Path) -> None:
    assert models.find("tiny", [tmp_path], tmp_path).path == tiny
    assert models.find(str(tiny), [], tmp_path).name == "tiny"
    absent = models.find("minilm_l6", [tmp_path], tmp_path)
    assert absent.path is None
    assert "make_models.py" in absent.reason
    assert "--only minilm_l6" in absent.reason


def test_peers_get_the_shapes_and_the_bound_values(tiny: Path, tmp_path: Path) -> None:
    (inputs, _outputs), *_ = models.recorded(tiny.parent, "tiny")
    models.specialize(tiny, inputs, ["times"], tmp_path / "bound.onnx")
    graph = onnx.load(tmp_path / "bound.onnx").graph
    assert [i.name for i in graph.input] == ["x"]
    assert [d.dim_value for d in graph.input[0].type.tensor_type.shape.dim] == [3, 8]
    assert {t.name for t in graph.initializer} == {"w", "times"}


def row_of(model: str, threads: int, ours: float, peer: float, **changes: object) -> dict[str, object]:
    return {
        "model": model,
        "threads": threads,
        "milliseconds": {row.OURS: ours, ONNXRUNTIME: peer},
        "precision": {ONNXRUNTIME: "f32"},
        "refused": {OPENVINO: "too old"},
        "better": ONNXRUNTIME,
        "ratio": peer / ours,
        "max_rel": 1e-6,
        "inputs": "seeded",
        "as_it_is": [],
        "reference": [],
        "peak_gflops": 100.0,
        "operators": [],
        **changes,
    }


def test_the_summary_has_means_scaling_and_all_that_is_not_in_the_table() -> None:
    rows = [
        row_of("a", 1, 1.0, 4.0),
        row_of("a", 2, 0.5, 2.0),
        row_of("b", 1, 1.0, 1.0, reference=["If 'c'"]),
    ]
    lines = "\n".join(tables.summary(rows))
    assert "1 thread, geometric mean of peer / ours: better f32 peer 2.000x" in lines
    assert "ahead in 2 of 2" in lines
    assert "from 1 to 2 threads, geometric mean: stowplan 2.00x" in lines
    assert "a: openvino default cannot run it: too old" in lines
    assert "b: 1 steps run in Python: If 'c'" in lines
    assert tables.latency_table(rows, "").row_count == 3


def test_what_was_not_measured_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latency.main(
        ["nowhere", "--threads", "1", "4096", "--models", str(tmp_path), "--json", str(tmp_path / "j")]
    )
    missing = json.loads((tmp_path / "j").read_text())["missing"]
    assert [m.split(":")[0] for m in missing] == ["4096 threads", "nowhere"]
    assert "not measured: nowhere" in capsys.readouterr().out


def test_the_overhead_of_a_turn_is_what_the_engine_did_not_take() -> None:
    rows = [("a", 10.0 * n, 8.0) for n in range(queue.WARM_UP + 2)]
    rows += [("b", 10.0 * n + 1, 9.5) for n in range(queue.WARM_UP + 1)]
    assert queue.overheads(rows) == [2.0, 2.0, 0.5]


@pytest.mark.parametrize("is_held", [True, False])
def test_outputs_in_bf16_are_held_on_recorded_inputs_if_asked(
    is_held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = cancelling(tmp_path)
    x = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    np.savez(path.with_suffix(".io.npz"), in__x=x)
    monkeypatch.setattr(row, "host", lambda: offering(host()))
    options = Options(precision="bf16", autotune=False)
    found = row.measure(row.Request(path, 1, 0.01, tmp_path / "kernels", options, hold=is_held))
    assert (len(found["exact"]) == 1) == is_held
    assert (found["max_rel"] <= BF16_TOLERANCE) == is_held


def test_what_is_held_is_told_by_the_folder() -> None:
    development, made = (folder / "a.onnx" for folder in models.FOLDERS)
    assert {name: (holds(development), holds(made)) for name, holds in latency.HOLD.items()} == {
        "development": (True, False),
        "all": (True, True),
        "none": (False, False),
    }


def test_rounds_have_more_orders_than_forwards_and_backwards() -> None:
    order: list[int] = []

    def work(number: int) -> None:
        order.append(number)
        time.sleep(2 * paired.SAMPLE)  # so that a turn is one run

    samples = paired.in_turn([partial(work, number) for number in range(3)], 0)
    turns = order[2 * 3 :]
    rounds = [tuple(turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert {tuple(sorted(taken)) for taken in rounds} == {(0, 1, 2)}
    assert samples.shape == (len(rounds), 3)
    assert len(set(rounds)) > 2
