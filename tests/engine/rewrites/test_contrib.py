"""Operators of onnxruntime in those of ONNX: what remains, and that onnxruntime computes the same of both."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.canonical import Array, canonical, exported, runtime, saved

HEAD = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>'
KINDS = {"f": "float", "i": "int32", "l": "int64", "u": "uint8", "s": "int8"}


def array(kind: str, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if kind == "f":
        return rng.standard_normal(shape).astype(np.float32)
    low, high = {"u": (0, 256), "s": (-128, 128), "i": (0, 3), "l": (0, 3)}[kind]
    return rng.integers(low, high, shape).astype(
        {"u": np.uint8, "s": np.int8, "i": np.int32, "l": np.int64}[kind]
    )


def check(
    folder: Path, body: str, given: dict[str, Any], outputs: str = "float y", tolerance: float = 2e-6
) -> list[str]:
    """Operators that a node becomes; `given` are arrays, or kind and shape; names in upper case are constants."""
    arrays = {
        name: v if isinstance(v, np.ndarray) else array(v[0], v[1:], i)
        for i, (name, v) in enumerate(given.items())
    }
    kinds = {np.dtype(np.float32): "float", np.dtype(np.bool_): "bool"}

    def declared(name: str) -> str:
        a = arrays[name]
        return f"{kinds.get(a.dtype, a.dtype.name)}[{','.join(map(str, a.shape))}] {name}"

    inputs = {n: a for n, a in arrays.items() if not n.isupper()}
    results = ", ".join(o.replace(" ", "[] ", 1) if "[" not in o else o for o in outputs.split(", "))
    text = f"{HEAD} g ({', '.join(map(declared, inputs))}) => ({results}) {{ {body} }}"
    path = saved(text, folder, {n: a for n, a in arrays.items() if n.isupper()})
    compilation = canonical(path)
    expected = runtime(path, inputs)
    names = {v.name for v in compilation.graph.inputs}
    found = runtime(exported(compilation.model, folder), {n: a for n, a in inputs.items() if n in names})
    assert list(found) == list(expected)
    for name, a in expected.items():
        assert found[name].dtype == a.dtype
        assert found[name].shape == a.shape
        if a.dtype.kind in "ui" and a.dtype.itemsize == 1:
            difference = np.abs(found[name].astype(int) - a.astype(int))
            assert difference.max() <= 1
            assert (difference > 0).mean() < 0.02
            continue
        scale = float(np.max(np.abs(a), initial=0)) or 1.0
        np.testing.assert_allclose(found[name], a, rtol=0, atol=tolerance * scale, err_msg=name)
    operator = body.split("= ")[1].split("(")[0].split("<")[0]
    assert all(not n.domain for n in compilation.graph), [n.op_type for n in compilation.graph]
    assert operator not in [n.op_type for n in compilation.graph]
    return [n.op_type for n in compilation.graph]


X, W = ("f", 2, 5, 24), ("f", 24)
SIMPLE: list[tuple[str, dict[str, Any], str]] = [
    (
        "y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, s, G, B)",
        {"x": X, "s": X, "G": W, "B": W},
        "float y",
    ),
    (
        'y, "", "", z = com.microsoft.SkipLayerNormalization(x, s, G, B, C)',
        {"x": X, "s": ("f", 1, 5, 24), "G": W, "B": W, "C": W},
        "float y, float z",
    ),
    ("y = com.microsoft.SkipLayerNormalization(x, s, G)", {"x": X, "s": ("f", 5, 24), "G": W}, "float y"),
    (
        'y, "", "", z = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.01>(x, s, G, C)',
        {"x": X, "s": X, "G": W, "C": W},
        "float y, float z",
    ),
    ("y = SimplifiedLayerNormalization<axis = -1, epsilon = 0.001>(x, G)", {"x": X, "G": W}, "float y"),
    ("y = com.microsoft.Gelu(x)", {"x": X}, "float y"),
    ("y = com.microsoft.BiasGelu(x, B)", {"x": X, "B": W}, "float y"),
    ("y = com.microsoft.FastGelu(x)", {"x": X}, "float y"),
    ("y = com.microsoft.FastGelu(x, B)", {"x": X, "B": W}, "float y"),
    ("y = com.microsoft.QuickGelu<alpha = 1.5>(x)", {"x": X}, "float y"),
    ("y = com.microsoft.QuickGelu(x)", {"x": X}, "float y"),
    ("y = com.microsoft.FusedMatMul<alpha = 0.5>(x, w)", {"x": X, "w": ("f", 24, 7)}, "float y"),
    ("y = com.microsoft.FusedMatMul<transB = 1>(x, w)", {"x": X, "w": ("f", 2, 7, 24)}, "float y"),
    (
        "y = com.microsoft.FusedMatMul<transA = 1, transB = 1, alpha = 2.0>(x, w)",
        {"x": ("f", 2, 24, 5), "w": ("f", 2, 7, 24)},
        "float y",
    ),
    (
        "y = com.microsoft.TransposeMatMul<transA = 1>(x, w)",
        {"x": ("f", 24, 5), "w": ("f", 24, 3)},
        "float y",
    ),
    (
        'y = com.microsoft.FusedConv<activation = "Relu", pads = [1, 1, 1, 1]>(x, W, B)',
        {"x": ("f", 1, 3, 6, 7), "W": ("f", 4, 3, 3, 3), "B": ("f", 4)},
        "float y",
    ),
    (
        'y = com.microsoft.FusedConv<activation = "LeakyRelu", activation_params = [0.2], strides = [2, 2]>(x, W)',
        {"x": ("f", 1, 3, 6, 7), "W": ("f", 4, 3, 3, 3)},
        "float y",
    ),
    (
        'y = com.microsoft.FusedConv<activation = "Relu">(x, W, B, z)',
        {"x": ("f", 1, 3, 6, 7), "W": ("f", 4, 3, 1, 1), "B": ("f", 4), "z": ("f", 1, 4, 6, 7)},
        "float y",
    ),
    (
        'y = com.microsoft.FusedConv<activation = "Clip", activation_params = [-0.5, 0.5], group = 3>(x, W)',
        {"x": ("f", 1, 3, 6, 7), "W": ("f", 6, 1, 3, 3)},
        "float y",
    ),
    (
        'y = com.microsoft.FusedGemm<activation = "LeakyRelu", activation_alpha = 0.3, alpha = 0.5, transB = 1>(x, W, B)',
        {"x": ("f", 3, 8), "W": ("f", 5, 8), "B": ("f", 5)},
        "float y",
    ),
]


@pytest.mark.parametrize(("body", "given", "outputs"), SIMPLE, ids=[b for b, _, _ in SIMPLE])
def test_a_fused_operator_becomes_core_operators(
    body: str, given: dict[str, Any], outputs: str, tmp_path: Path
) -> None:
    check(tmp_path, body, given, outputs)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_embeddings_are_gathered_and_normalized(
    masked: bool, segments: bool, positions: bool, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"ids": ("i", 2, 6), "P": ("f", 10, 24), "Q": ("f", 10, 24), "G": W, "B": W}
    names = ["ids", '""', "P", "Q", '""', "G", "B"]
    if segments:
        given |= {"kinds": ("i", 2, 6), "R": ("f", 3, 24)}
        names[1], names[4] = "kinds", "R"
    if masked or positions:
        names.append("mask" if masked else '""')
    if masked:
        given["mask"] = (np.arange(6)[None] < np.array([[4], [6]])).astype(np.int32)
    if positions:
        given["places"] = array("i", (2, 6), 9)
        names.append("places")
    outputs = "float y, int32 lengths, float total" if masked else "float y"
    left = "y, lengths, total" if masked else "y, lengths"
    check(
        tmp_path,
        f"{left} = com.microsoft.EmbedLayerNormalization<epsilon = 0.001>({', '.join(names)})",
        given,
        outputs,
    )


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "ids", "half", "attributes"),
    [
        ((2, 5, 24), (2, 5), 4, ""),
        ((1, 5, 24), (1,), 4, ""),
        ((2, 3, 5, 8), (2, 5), 4, ""),
        ((2, 5, 24), (2, 5), 2, "num_heads = 3, rotary_embedding_dim = 4, "),
        ((1, 1, 24), (1,), 4, ""),
    ],
)
def test_rotary_embeddings_are_products_and_sums(
    shape: tuple[int, ...], ids: tuple[int, ...], half: int, attributes: str, interleaved: int, tmp_path: Path
) -> None:
    given = {"x": ("f", *shape), "ids": ("l", *ids), "C": ("f", 9, half), "D": ("f", 9, half)}
    body = f"y = com.microsoft.RotaryEmbedding<{attributes}interleaved = {interleaved}>(x, ids, C, D)"
    check(tmp_path, body, given)


B, S, N, H = 2, 5, 3, 8
MASKS: dict[str, Array] = {
    "none": np.zeros(0, np.int32),
    "lengths": np.array([3, 5], np.int32),
    "keys": np.array([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0]], np.int32),
    "rows": (np.arange(S)[None, :, None] >= np.arange(S)[None, None]).astype(np.int32).repeat(B, 0),
    "both ends": np.array([4, 5, 1, 0], np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_of_a_projection(mask: str, causal: int, bias: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"x": ("f", B, S, 16), "W": ("f", 16, 3 * N * H), "B": ("f", 3 * N * H)}
    names = ["x", "W", "B", '""', '""', '""']
    if mask != "none":
        given["mask"], names[3] = MASKS[mask], "mask"
    if bias:
        given["added"], names[5] = ("f", 1, N, S, S), "added"
    body = f"y = com.microsoft.Attention<num_heads = {N}, unidirectional = {causal}>({', '.join(names)})"
    assert "Attention" in check(tmp_path, body, given)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_a_projection_with_a_cache(causal: int, tmp_path: Path) -> None:
    given = {
        "x": ("f", B, S, 16),
        "W": ("f", 16, 3 * N * H),
        "B": ("f", 3 * N * H),
        "past": ("f", 2, B, N, 4, H),
    }
    body = f'y, z = com.microsoft.Attention<num_heads = {N}, unidirectional = {causal}>(x, W, B, "", past)'
    check(tmp_path, body, given, "float y, float z")


def test_attention_with_values_of_another_width(tmp_path: Path) -> None:
    sizes = [N * H, N * H, N * 4]
    given = {"x": ("f", B, S, 16), "W": ("f", 16, sum(sizes)), "B": ("f", sum(sizes))}
    check(
        tmp_path,
        f"y = com.microsoft.Attention<num_heads = {N}, qkv_hidden_sizes = {sizes}, scale = 0.3>(x, W, B)",
        given,
    )


Q = ("f", B, S, N * H)
MULTI: list[tuple[dict[str, Any], list[str], str]] = [
    ({"q": Q, "k": Q, "v": Q}, ["q", "k", "v"], "y"),
    ({"q": Q, "k": ("f", B, 7, N * H), "v": ("f", B, 7, N * 4)}, ["q", "k", "v"], "y"),
    ({"q": Q, "k": Q, "v": Q, "B": ("f", 3 * N * H)}, ["q", "k", "v", "B"], "y"),
    ({"q": Q, "k": ("f", B, N, 7, H), "v": ("f", B, N, 7, H)}, ["q", "k", "v"], "y"),
    ({"q": Q, "k": Q, "v": Q, "m": MASKS["keys"]}, ["q", "k", "v", '""', "m"], "y"),
    ({"q": Q, "k": Q, "v": Q, "a": ("f", 1, 1, S, S)}, ["q", "k", "v", '""', '""', "a"], "y"),
    (
        {"q": Q, "k": Q, "v": Q, "B": ("f", 3 * N * H), "p": ("f", B, N, 4, H), "r": ("f", B, N, 4, H)},
        ["q", "k", "v", "B", '""', '""', "p", "r"],
        "y, c, d",
    ),
    ({"q": Q, "k": Q, "v": Q}, ["q", "k", "v"], "y, c, d"),
]


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("number", range(len(MULTI)))
def test_multi_head_attention(number: int, causal: int, tmp_path: Path) -> None:
    given, names, left = MULTI[number]
    if causal and given.get("k", Q) != Q:
        pytest.skip("positions of queries among other keys are not defined")
    body = f"{left} = com.microsoft.MultiHeadAttention<num_heads = {N}, unidirectional = {causal}>({', '.join(names)})"
    check(tmp_path, body, given, ", ".join(f"float {o}" for o in left.split(", ")))


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def zero(kind: str, value: int) -> Array:
    return np.array(value, np.uint8 if kind == "u" else np.int8)


QUANTIZED: list[tuple[str, list[str]]] = [
    ("QLinearAdd", ["x", "XS", "XZ", "w", "WS", "WZ", "YS", "YZ"]),
    ("QLinearMul", ["x", "XS", "XZ", "w", "WS", "WZ", "YS", "YZ"]),
    ("QLinearSigmoid", ["x", "XS", "XZ", "US", "UZ"]),
    ("QLinearLeakyRelu<alpha = 0.2>", ["x", "XS", "XZ", "YS", "YZ"]),
    ("QLinearGlobalAveragePool", ["x", "XS", "XZ", "YS", "YZ"]),
    ("QLinearGlobalAveragePool<channels_last = 1>", ["x", "XS", "XZ", "YS", "YZ"]),
    ("QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2]>", ["x", "XS", "XZ", "YS", "YZ"]),
    ("QLinearConcat<axis = 1>", ["YS", "YZ", "x", "XS", "XZ", "w", "WS", "WZ"]),
]


@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize(("op", "names"), QUANTIZED, ids=[op for op, _ in QUANTIZED])
def test_a_quantized_operator_dequantizes_and_quantizes(
    op: str, names: list[str], kind: str, tmp_path: Path
) -> None:
    middle = 120 if kind == "u" else -8
    all_ = {
        "x": (kind, 2, 3, 4, 6),
        "w": (kind, 2, 3, 4, 6),
        "XS": scale(0.0213),
        "XZ": zero(kind, middle),
        "WS": scale(0.0307),
        "WZ": zero(kind, middle + 3),
        "YS": scale(0.0411),
        "YZ": zero(kind, middle - 5),
        "US": scale(0.0039),
        "UZ": zero(kind, 0 if kind == "u" else -128),
    }
    output = "uint8 y" if kind == "u" else "int8 y"
    check(
        tmp_path,
        f"y = com.microsoft.{op}({', '.join(names)})",
        {n: all_[n] for n in all_ if n in names},
        output,
    )


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_integers_with_a_scale(bias: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "x": ("u", 3, 16), "W": ("s", 16, 5), "XS": scale(0.0213),
        "WS": np.linspace(0.01, 0.05, 5).astype(np.float32), "XZ": zero("u", 100), "WZ": zero("s", 0), "B": ("f", 5),
    }  # fmt: skip
    last = ", B" if bias else ""
    if not bias:
        del given["B"]
    check(tmp_path, f"y = com.microsoft.MatMulIntegerToFloat(x, W, XS, WS, XZ, WZ{last})", given)
    rest = {k: v for k, v in given.items() if k not in ("x", "XS", "XZ")}
    body = f"y = com.microsoft.DynamicQuantizeMatMul(x, W, WS, WZ{last})"
    check(tmp_path, body, {"x": ("f", 3, 16), **rest})


@pytest.mark.parametrize("mask", ["none", "lengths", "keys"])
def test_quantized_attention(mask: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "x": ("u", B, S, 16), "W": np.random.default_rng(0).integers(-60, 60, (16, 3 * N * H)).astype(np.int8),
        "B": ("f", 3 * N * H), "XS": scale(0.0213), "WS": scale(0.0307), "XZ": zero("u", 128), "WZ": zero("s", 0),
    }  # fmt: skip
    names = ["x", "W", "B", "XS", "WS", '""', "XZ", "WZ"]
    if mask != "none":
        given["mask"], names[5] = MASKS[mask], "mask"
    check(tmp_path, f"y = com.microsoft.QAttention<num_heads = {N}>({', '.join(names)})", given)
