"""The operator Attention on a GPU, simulated: what the reference evaluator has."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.engine.runtime.cuda.programs import fallbacks, planned, simulated

pytestmark = pytest.mark.simulated

RNG = np.random.default_rng(4)
Q, KV = "float[2,2,3,8] q", "float[2,1,5,8] k, float[2,1,5,8] v"
PAST = "float[2,1,6,8] pk, float[2,1,6,8] pv"
CASES = {
    "heads that share keys": (
        "y = Attention(q, k, v)", "float[1,4,3,8] q, float[1,2,5,8] k, float[1,2,5,8] v", "float[1,4,3,8] y",
    ),
    "heads in rows, causal, capped": (
        "y = Attention<q_num_heads=4, kv_num_heads=2, is_causal=1, softcap=0.7, scale=0.3>(q, k, v)",
        "float[1,5,32] q, float[1,5,16] k, float[1,5,16] v", "float[1,5,32] y",
    ),
    "a cache": (
        "y, nk, nv = Attention<is_causal=1>(q, k, v, , pk, pv)", f"{Q}, {KV}, {PAST}",
        "float[2,2,3,8] y, float[2,1,11,8] nk, float[2,1,11,8] nv",
    ),
    "a cache that is not kept, and a mask": (
        "y, nk, nv = Attention<q_num_heads=2, kv_num_heads=1>(q, k, v, m, pk, pv)",
        f"float[2,1,16] q, float[2,1,8] k, float[2,1,8] v, bool[1,7] m, {PAST}", "float[2,1,16] y",
    ),
    "lengths": ("y = Attention(q, k, v, , , , n)", f"{Q}, {KV}, int64[2] n", "float[2,2,3,8] y"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_operator(name: str, tmp_path: Path) -> None:
    text, inputs, outputs = CASES[name]
    proto = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24]> g ({inputs}) => ({outputs}) {{ {text} }}'
    )
    onnx.save(proto, tmp_path / "model.onnx")
    program = planned(tmp_path / "model.onnx")
    assert fallbacks(program) == []
    given = {}
    for value in program.compilation.graph.inputs:
        shape = tuple(int(d) for d in value.shape)
        given[value.name] = {
            "n": lambda s: np.array([5, 2], np.int64),
            "m": lambda s: np.array([[True, False, True, True, False, True, True]]),
        }.get(value.name, lambda s: RNG.standard_normal(s).astype(np.float32))(shape)
    found = simulated(program, given)
    for output, expected in zip(proto.graph.output, ReferenceEvaluator(proto).run(None, given), strict=True):
        np.testing.assert_allclose(found[output.name], expected, atol=2e-5, err_msg=output.name)
