"""Attention to a cache of keys and values, in groups of queries, against onnxruntime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from app.engine.core.group import Group
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close
from tests.kernels.single_node import node_text, rejection_of, run_node, text_group

NAME = "group_query_attention.rows"
HEADS, GROUPS, WIDTH, LONGEST = 6, 2, 32, 64


def case(
    batch: int, rows: int, old: int, keys: int, *, packed: bool = False, half: int = 0, seed: int = 0
) -> dict[str, Array | None]:
    """Inputs; a cache of `old` rows, of which the last ones are not used yet where it has `keys` already."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    columns = (HEADS + 2 * GROUPS) * WIDTH if packed else HEADS * WIDTH
    inputs: dict[str, Array | None] = {"q": floats(batch, rows, columns)}
    inputs |= {n: None if packed else floats(batch, rows, GROUPS * WIDTH) for n in "kv"}
    inputs |= {n: floats(batch, GROUPS, old, WIDTH) if old else None for n in ("pk", "pv")}
    full = keys if keys > old else keys - 7
    last = np.full(batch, full - 1, np.int32)
    inputs |= {"last": last, "total": np.array(keys if keys > old else full, np.int32)}
    if half:
        angles = rng.uniform(0, 6, (LONGEST, half)).astype(np.float32)
        inputs |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    return inputs


def body(inputs: dict[str, Array | None], attributes: str = "") -> str:
    names = ", ".join(n if a is not None else '""' for n, a in inputs.items())
    rotary = "do_rotary = 1, " if "cos" in inputs else ""
    sizes = f"num_heads = {HEADS}, kv_num_heads = {GROUPS}"
    return f"com.microsoft.GroupQueryAttention<{rotary}{attributes}{sizes}>({names})"


def by_onnxruntime(text: str, inputs: dict[str, Array | None]) -> list[Array]:
    given = {n: a for n, a in inputs.items() if a is not None}
    like = dict.fromkeys(("y", "ck", "cv"), np.float32)
    model = onnx.parser.parse_model(node_text(text, given, like, domain="com.microsoft"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(a) for a in session.run(None, given)]


def group_of(text: str, inputs: dict[str, Array | None], outputs: list[Array]) -> Group:
    given = {n: a for n, a in inputs.items() if a is not None}
    return text_group(text, given, outputs=dict(zip(("y", "ck", "cv"), outputs)), domain="com.microsoft")


CASES: list[tuple[dict[str, Any], str]] = [
    ({"batch": 1, "rows": 1, "old": 8, "keys": 9}, ""),
    ({"batch": 1, "rows": 1, "old": 40, "keys": 41, "half": 16}, ""),
    ({"batch": 2, "rows": 1, "old": 33, "keys": 34, "half": 16}, "rotary_interleaved = 1, "),
    ({"batch": 2, "rows": 1, "old": 33, "keys": 34, "half": 8, "packed": True}, "scale = 0.3, "),
    ({"batch": 1, "rows": 1, "old": 33, "keys": 34}, "softcap = 2.0, "),
    ({"batch": 1, "rows": 1, "old": 33, "keys": 34, "half": 8}, "local_window_size = 9, "),
    ({"batch": 1, "rows": 5, "old": 0, "keys": 5, "half": 8}, ""),
    ({"batch": 2, "rows": 11, "old": 0, "keys": 11, "half": 8, "packed": True}, "local_window_size = 4, "),
    ({"batch": 1, "rows": 5, "old": 13, "keys": 18, "half": 8}, ""),
    ({"batch": 1, "rows": 1, "old": 40, "keys": 40, "half": 8}, ""),
]


@pytest.mark.parametrize(("sizes", "attributes"), CASES, ids=str)
def test_attention_to_a_cache_is_that_of_onnxruntime(
    compiler: Compiler, sizes: dict[str, Any], attributes: str
) -> None:
    inputs = case(**sizes)
    text = body(inputs, attributes)
    expected = by_onnxruntime(text, inputs)
    last = inputs["last"]
    assert last is not None
    for threads in (1, 2):
        found = run_node(compiler, NAME, group_of(text, inputs, expected), inputs, threads=threads)
        assert_close(found[0], expected[0], 2e-6)
        for a, b in zip(found[1:], expected[1:]):  # what lies behind the last key is not defined
            assert_close(a[:, :, : last[0] + 1], b[:, :, : last[0] + 1], 2e-6)


@pytest.mark.parametrize("half", [0, 8])
def test_a_cache_of_the_final_length_is_written_where_it_is(compiler: Compiler, half: int) -> None:
    inputs = case(batch=2, rows=1, old=40, keys=40, half=half)
    text = body(inputs)
    expected = by_onnxruntime(text, inputs)
    group = group_of(text, inputs, expected)
    found = run_node(compiler, NAME, group, inputs, inplace=True)
    assert_close(found[0], expected[0], 2e-6)
    past, last = inputs["pk"], inputs["last"]
    assert past is not None
    assert last is not None
    np.testing.assert_array_equal(found[1][:, :, : last[0]], past[:, :, : last[0]])
    np.testing.assert_array_equal(found[1][:, :, last[0] + 1 :], past[:, :, last[0] + 1 :])
    assert_close(found[1][:, :, last[0]], expected[1][:, :, last[0]], 2e-6)


def test_positions_of_their_own_are_rejected() -> None:
    inputs = case(batch=1, rows=1, old=8, keys=9, half=8)
    inputs["places"] = np.array([[3]], np.int64)
    outputs = [
        np.zeros((1, 1, HEADS * WIDTH), np.float32),
        *[np.zeros((1, GROUPS, 9, WIDTH), np.float32)] * 2,
    ]
    reason = rejection_of(NAME, group_of(body(inputs), inputs, outputs))
    assert reason is not None
    assert "'places'" in reason
