"""Attention against its definition in float64, and against the reference evaluator."""

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from app.engine.backends.cpu import attention
from app.kernels.cpu.runtime.compiler import Compiler
from tests.harness import Array, assert_close, context, implementation, run_group
from tests.kernels.single_node import REGISTRY, reference, run_text, text_group


def operands(
    *, heads: int = 4, groups: int = 4, rows: int = 5, keys: int = 9, past: int = 0, depth: int = 6
) -> dict[str, Array]:
    rng = np.random.default_rng(rows + keys)
    shapes = {"q": (2, heads, rows, depth), "k": (2, groups, keys, depth), "v": (2, groups, keys, 7)}
    if past:
        shapes |= {"pk": (2, groups, past, 6), "pv": (2, groups, past, 7)}
    return {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def body_of(inputs: dict[str, Array], attributes: str = "") -> str:
    names = [n if n in inputs else "" for n in ("q", "k", "v", "mask", "pk", "pv", "lengths")]
    return f"Attention {attributes} ({', '.join(names).rstrip(', ')})"


def definition(a: dict[str, Array], bias: Array | float = 0.0) -> Array:
    q, k, v = (a[n].astype(np.float64) for n in "qkv")
    k, v = (np.repeat(m, q.shape[1] // m.shape[1], axis=1) for m in (k, v))
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]) + bias
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_heads_may_share_keys(compiler: Compiler, groups: int, threads: int, row: str) -> None:
    a = operands(groups=groups)
    (y,) = run_text(compiler, row, body_of(a), a, threads=threads, opset=24)
    assert_close(y, definition(a))


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
def test_heads_may_lie_within_rows(compiler: Compiler, row: str) -> None:
    a = operands(groups=2)
    flat = {n: m.transpose(0, 2, 1, 3).reshape(2, m.shape[2], -1) for n, m in a.items()}
    body = body_of(flat, "<q_num_heads = 4, kv_num_heads = 2>")
    (y,) = run_text(compiler, row, body, flat, opset=24)
    assert_close(y, definition(a).transpose(0, 2, 1, 3).reshape(2, 5, -1))


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
def test_a_causal_mask_hides_later_keys(compiler: Compiler, row: str) -> None:
    a = operands()
    (y,) = run_text(compiler, row, body_of(a, "<is_causal = 1>"), a, opset=24)
    hidden = np.where(np.tri(5, 9, dtype=bool), 0, -np.inf)
    assert_close(y, definition(a, hidden))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(70, 70), (150, 1100), (1100, 1100)])
def test_blocks_of_queries_read_the_keys_that_they_see(
    compiler: Compiler, rows: int, keys: int, masked: bool, threads: int
) -> None:
    a = operands(heads=1, groups=1, rows=rows, keys=keys)
    bias = np.where(np.tri(rows, keys, dtype=bool), 0, -np.inf)
    if masked:
        mask = np.random.default_rng(1).standard_normal((rows, keys)).astype(np.float32)
        a["mask"], bias = mask, bias + mask
    (y,) = run_text(compiler, "attention.blocks", body_of(a, "<is_causal = 1>"), a, threads=threads, opset=24)
    assert_close(y, definition(a, bias))


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
@pytest.mark.parametrize("shape", [(9,), (5, 9), (4, 1, 9), (2, 1, 5, 9), (5, 6)])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_broadcast(compiler: Compiler, shape: tuple[int, ...], boolean: bool, row: str) -> None:
    a = operands()
    mask = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    mask[..., 0] = 1  # every row sees a key
    a["mask"] = mask > 0 if boolean else mask
    bias = np.where(mask > 0, 0, -np.inf) if boolean else mask
    if shape[-1] < 9:  # keys beyond the mask are hidden
        bias = np.pad(bias, [(0, 0)] * (len(shape) - 1) + [(0, 9 - shape[-1])], constant_values=-np.inf)
    (y,) = run_text(compiler, row, body_of(a), a, threads=2, opset=24)
    assert_close(y, definition(a, bias))


@pytest.mark.parametrize("shape", [None, (6, 1, 19), (2, 1, 1, 19), (2, 6, 1, 19)])
@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize(("groups", "depth"), [(6, 32), (2, 64), (1, 96), (2, 40)])
def test_heads_of_a_decode_step_are_computed_together(
    compiler: Compiler,
    shape: tuple[int, ...] | None,
    boolean: bool,
    groups: int,
    depth: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, bias = operands(heads=6, groups=groups, rows=1, keys=19, depth=depth), 0.0
    if shape is not None:
        mask = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        mask[..., 3] = 1  # every row sees a key
        a["mask"] = mask > 0 if boolean else mask
        bias = np.where(mask > 0, 0, -np.inf) if boolean else mask
    found = []
    for heads in (1, 4, attention.HEADS):
        monkeypatch.setattr(attention, "HEADS", heads)
        found += [
            run_text(compiler, "attention.rows", body_of(a), a, threads=threads, opset=24)[0]
            for threads in (1, 2)
        ]
    assert_close(found[0], definition(a, bias))
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("boolean", [True, False])
def test_heads_of_a_decode_step_that_see_no_key(compiler: Compiler, boolean: bool) -> None:
    a = operands(heads=6, groups=2, rows=1, keys=5, depth=32)
    seen = np.array([True, False]).reshape(2, 1, 1, 1) & np.ones((2, 1, 1, 5), bool)
    a["mask"] = seen if boolean else np.where(seen, 0, -np.inf).astype(np.float32)
    (y,) = run_text(compiler, "attention.rows", body_of(a), a, opset=24)
    (expected,) = reference(body_of(a), a, opset=24)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    assert_close(y[:1], definition(a)[:1])


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
def test_new_keys_are_put_behind_the_cache(compiler: Compiler, row: str) -> None:
    a = operands(rows=3, keys=3, past=4)
    outputs = ("y", "present_k", "present_v")
    body = body_of(a, "<is_causal = 1>")
    found = run_text(compiler, row, body, a, None, outputs, opset=24)
    joined = {n: np.concatenate([a[f"p{n}"], a[n]], 2) for n in "kv"}
    np.testing.assert_array_equal(found[1], joined["k"])
    np.testing.assert_array_equal(found[2], joined["v"])
    hidden = np.where(np.tri(3, 7, 4, dtype=bool), 0, -np.inf)
    assert_close(found[0], definition(a | joined, hidden))
    (alone,) = run_text(compiler, row, body, a, opset=24)
    np.testing.assert_array_equal(alone, found[0])


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_are_shown_at_every_stage(compiler: Compiler, mode: int, row: str) -> None:
    a = operands()
    a["mask"] = np.random.default_rng(2).standard_normal((5, 9)).astype(np.float32)
    a["mask"][2] = -np.inf  # a row that sees nothing
    outputs = ("y", "", "", "scores")
    body = body_of(a, f"<softcap = 2.0, is_causal = 1, qk_matmul_output_mode = {mode}>")
    found = run_text(compiler, row, body, a, None, outputs, threads=2, opset=24)
    expected = reference(body, a, outputs, opset=24)
    assert_close(found[0], expected[0])
    # The standard's mode 0 is the product itself; the reference evaluator shows it capped.
    product = a["q"] @ a["k"].swapaxes(2, 3) / np.sqrt(np.float32(6))
    assert_close(found[1], expected[-1] if mode else product)
    np.testing.assert_array_equal(found[0][:, :, 2], 0)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_scores_of_several_blocks_of_keys_are_shown(compiler: Compiler, mode: int) -> None:
    a = operands(heads=2, groups=1, rows=70, keys=1100)
    a["mask"] = np.random.default_rng(2).uniform(size=(70, 1100)) < 0.8
    outputs, body = ("y", "", "", "scores"), body_of(a, f"<softcap = 2.0, qk_matmul_output_mode = {mode}>")
    found = run_text(compiler, "attention.blocks", body, a, None, outputs, threads=2, opset=24)
    product = a["q"].astype(np.float64) @ a["k"].astype(np.float64).swapaxes(2, 3) / np.sqrt(6)
    capped = 2 * np.tanh(product / 2)
    masked = np.where(a["mask"], capped, -np.inf)
    weights = np.exp(masked - masked.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert_close(found[0], weights @ a["v"])
    assert_close(found[1], (product, capped, masked, weights)[mode])


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
@pytest.mark.parametrize("lengths", [[9, 4], [3, 0]])
def test_lengths_hide_padded_keys(compiler: Compiler, lengths: list[int], row: str) -> None:
    a = operands(rows=2) | {"lengths": np.array(lengths)}
    a["k"][1, :, max(lengths[1], 1) :] = a["v"][1, :, max(lengths[1], 1) :] = np.nan
    (y,) = run_text(compiler, row, body_of(a, "<is_causal = 1>"), a, opset=24)
    for b, n in enumerate(a["lengths"]):
        if not n:
            np.testing.assert_array_equal(y[b], 0)
            continue
        one = {m: a[m][b : b + 1, :, : n if m != "q" else None] for m in "qkv"}
        hidden = np.where(np.tri(2, n, n - 2, dtype=bool), 0, -np.inf)
        assert_close(y[b : b + 1], definition(one, hidden))


@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize(("left", "right"), [(3, 2), (700, -1), (5, 0), (-1, 600)])
@pytest.mark.parametrize("lengths", [None, [1300, 900]])
def test_queries_see_windows_of_keys(
    compiler: Compiler, lengths: list[int] | None, left: int, right: int, cap: float, row: str
) -> None:
    rows, keys = 150, 1300
    a = operands(heads=1, groups=1, rows=rows, keys=keys)
    if lengths is not None:
        a["lengths"] = np.array(lengths)
    causal = right == 0
    attributes = f"is_causal = {int(causal)}, softcap = {cap}"
    attributes += f", left_window_size = {left}, right_window_size = {-1 if causal else right}"
    (y,) = run_text(compiler, row, body_of(a, f"<{attributes}>"), a, threads=2, opset=27)
    q, k, v = (a[n].astype(np.float64) for n in "qkv")
    scores = q @ k.swapaxes(2, 3) / np.sqrt(6)
    scores = cap * np.tanh(scores / cap) if cap else scores
    for b in range(2):
        length = keys if lengths is None else lengths[b]
        place = np.arange(rows)[:, None] + (0 if lengths is None else length - rows)
        key = np.arange(keys)[None]
        seen = key < length
        seen = seen & (key >= place - left) if left >= 0 else seen
        seen = seen & (key <= place + right) if right >= 0 else seen
        weights = np.where(seen, np.exp(scores[b]), 0)
        assert_close(y[b], weights / weights.sum(-1, keepdims=True) @ v[b])


def test_queries_of_half_precision_are_refused() -> None:
    a = {n: m.astype(np.float16) for n, m in operands().items()}
    group = text_group(body_of(a), a, opset=24)
    assert "float16" in (implementation("attention.rows", REGISTRY).rejection(group, context()) or "")


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [6, 40])
@pytest.mark.parametrize("row", ["attention.rows", "attention.blocks"])
def test_keys_and_values_may_have_16_bits(
    compiler: Compiler, row: str, width: int, threads: int, kind: str
) -> None:
    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else np.float16)
    a = operands(groups=2, rows=3, keys=3, past=40)
    rng = np.random.default_rng(3)
    a |= {n: rng.standard_normal((*m.shape[:3], width)).astype(np.float32) for n, m in a.items()}
    wide = {n: m if n == "q" else m.astype(dtype).astype(np.float32) for n, m in a.items()}
    outputs = ("y", "present_k", "present_v")
    body = body_of(a, "<is_causal = 1>")
    group = text_group(body, wide, None, outputs, opset=24)
    for value in (*group.inputs, *group.outputs):
        if value.name not in ("q", "y"):
            value.type = ir.TensorType(ir.DataType[kind.upper()])
    given = {n: m if n == "q" else m.astype(dtype) for n, m in wide.items()}
    found = run_group(implementation(row, REGISTRY), group, given, compiler, threads=threads)
    joined = {n: np.concatenate([given[f"p{n}"], given[n]], 2) for n in "kv"}
    np.testing.assert_array_equal(found[1], joined["k"])
    np.testing.assert_array_equal(found[2], joined["v"])
    assert found[1].dtype == dtype
    hidden = np.where(np.tri(3, 43, 40, dtype=bool), 0, -np.inf)
    assert_close(found[0], definition(wide | {n: m.astype(np.float32) for n, m in joined.items()}, hidden))
