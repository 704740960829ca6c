"""Operators of onnxruntime in those of ONNX: what remains, and that onnxruntime computes the same of both."""

import math
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
    folder: Path, body: str, given: dict[str, Any], outputs: str = "float y", tolerance: float = 2e-6,
    head: str = HEAD, off_by_one: float = 0.02,
) -> list[str]:  # fmt: skip
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
    text = f"{head} g ({', '.join(map(declared, inputs))}) => ({results}) {{ {body} }}"
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
            assert (difference > 0).mean() <= off_by_one
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
    ("y = com.microsoft.Trilu<upper = 0>(x)", {"x": X}, "float y"),
    ("y = com.microsoft.Trilu(x, K)", {"x": X, "K": np.array(-2)}, "float y"),
    ("y = com.microsoft.GatherND(x, i)", {"x": ("f", 3, 5, 24), "i": ("l", 4, 2)}, "float y"),
    ("y, i, c = com.microsoft.Unique(x)", {"x": np.float32([2, 1, 2, 5, 1])}, "float y, int64 i, int64 c"),
    *(
        (
            f'y = com.microsoft.GridSample<mode = "{mode}", padding_mode = "{padding}">(x, g)',
            {"x": ("f", 1, 2, 6, 7), "g": ("f", 1, 3, 4, 2)},
            "float y",
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border")
    ),
    ("y = com.microsoft.GridSample(x, g)", {"x": ("f", 1, 2, 6, 7), "g": ("f", 1, 3, 4, 2)}, "float y"),
    ("y = com.microsoft.ExpandDims(x, A)", {"x": X, "A": np.array(-1, np.int32)}, "float y"),
    ("y = com.microsoft.ExpandDims(x, A)", {"x": X, "A": np.array(1, np.int32)}, "float y"),
    (
        "y = com.microsoft.Range(a, b, c)",
        {"a": np.float32([1]), "b": np.float32([9]), "c": np.float32([1.5])},
        "float y",
    ),
    ("y = com.microsoft.Range(a, b)", {"a": np.array([2]), "b": np.array([7])}, "int64 y"),
    (
        "y = com.microsoft.Pad(x, p, v)",
        {"x": ("f", 3, 4), "p": np.array([[1, 0, 2, 1]]), "v": np.float32([3])},
        "float y",
    ),
    (
        'y = com.microsoft.Pad<mode = "reflect">(x, p)',
        {"x": ("f", 3, 4), "p": np.array([1, 0, 2, 1])},
        "float y",
    ),
    (
        "y = com.microsoft.MatMulInteger16(x, w)",
        {"x": np.arange(-20, 4, dtype=np.int16).reshape(4, 6) * 999, "w": np.int16(np.arange(6)[:, None])},
        "int32 y",
    ),
    (
        "y = com.microsoft.ConvTransposeWithDynamicPads<strides = [2, 2]>(x, W, P)",
        {"x": ("f", 1, 3, 4, 5), "W": ("f", 3, 2, 3, 3), "P": np.array([1, 0, 1, 1])},
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
    ("QLinearAveragePool<kernel_shape = [2, 2], channels_last = 1>", ["x", "XS", "XZ", "YS", "YZ"]),
    ("QLinearWhere", ["c", "x", "XS", "XZ", "w", "WS", "WZ", "YS", "YZ"]),
    ("QLinearConcat<axis = 1>", ["YS", "YZ", "x", "XS", "XZ", "w", "WS", "WZ"]),
]


@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize(("op", "names"), QUANTIZED, ids=[op for op, _ in QUANTIZED])
def test_a_quantized_operator_dequantizes_and_quantizes(
    op: str, names: list[str], kind: str, tmp_path: Path
) -> None:
    middle = 120 if kind == "u" else -8
    all_ = {
        "c": np.random.default_rng(5).uniform(size=(2, 1, 4, 6)) < 0.5,
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


@pytest.mark.parametrize(("opset", "axis"), [(13, 1), (13, -1), (12, 1), (12, 2)])
@pytest.mark.parametrize("kind", ["u", "s"])
def test_a_quantized_softmax_is_rounded_once(kind: str, opset: int, axis: int, tmp_path: Path) -> None:
    """Onnxruntime looks exponentials up in a table and is off by one here and there."""
    x, low = array(kind, (2, 3, 4), 0), 0 if kind == "u" else -128
    given = {"x": x, "S": scale(0.03), "Z": zero(kind, 3), "T": scale(1 / 256), "V": zero(kind, low)}
    body = f"y = com.microsoft.QLinearSoftmax<axis = {axis}, opset = {opset}>(x, S, Z, T, V)"
    result = {"u": "uint8 y", "s": "int8 y"}[kind]
    check(tmp_path, body, given, result, off_by_one=1)
    path = saved(f"{HEAD} g ({result[:-2]}[2,3,4] x) => ({result[:-2]}[2,3,4] y) {{ {body} }}", tmp_path,
                 {n: a for n, a in given.items() if n.isupper()})  # fmt: skip
    found = runtime(exported(canonical(path).model, tmp_path), {"x": x})["y"]
    powers = np.exp(0.03 * (x.astype(np.float64) - 3))
    axes = (axis,) if opset > 12 else tuple(range(axis, 3))
    exact = 256 * powers / powers.sum(axes, keepdims=True) + low
    assert np.abs(found - np.clip(exact, low, low + 255)).max() <= 0.5001


@pytest.mark.parametrize(("attributes", "images", "weights"), [
    ("channels_last = 1, pads = [1, 0, 1, 2], strides = [2, 1]", (2, 7, 6, 4), (8, 4, 3, 2)),
    ("channels_last = 1, group = 4", (1, 7, 6, 8), (8, 2, 3, 3)), ("pads = [1, 1, 1, 1]", (1, 4, 7, 6), (8, 4, 3, 3)),
    ("channels_last = 1, pads = [1, 1]", (2, 9, 4), (8, 4, 3)),
])  # fmt: skip
def test_a_quantized_convolution_of_the_optimizer_is_that_of_onnx(
    attributes: str, images: tuple[int, ...], weights: tuple[int, ...], tmp_path: Path
) -> None:
    given: dict[str, Any] = {
        "x": ("u", *images), "XS": scale(0.02), "XZ": np.array(117, np.uint8), "W": ("s", *weights),
        "WS": np.linspace(0.01, 0.02, 8, dtype=np.float32), "WZ": np.zeros(8, np.int8), "YS": scale(0.21),
        "YZ": np.array(120, np.uint8), "B": ("i", 8),
    }  # fmt: skip
    body = f"y = com.microsoft.QLinearConv<{attributes}>({', '.join(given)})"
    operators = check(tmp_path, body, given, "uint8 y", off_by_one=0.0)
    assert ("Transpose" in operators) == ("channels_last" in attributes)
    assert "QLinearConv" in operators or "DequantizeLinear" in operators


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


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("attributes", "columns"), [("", 0), ("<transB = 1>", 5), ("<alpha = 0.5>", 5)])
def test_a_quantized_gemm(attributes: str, columns: int, bias: bool, rounded: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "x": ("u", 3, 16), "XS": scale(0.0213), "XZ": zero("u", 100),
        "W": ("s", 5, 16) if "transB" in attributes else ("s", 16, 5),
        "WS": np.linspace(0.01, 0.05, columns).astype(np.float32) if columns else scale(0.03),
        "WZ": np.zeros(columns, np.int8) if columns else zero("s", 3),
    }  # fmt: skip
    if bias:
        given["B"] = np.arange(-2000, 3000, 1000).astype(np.int32)
    names = [*given, *([] if bias else [""]), *(["YS", "YZ"] if rounded else [])]
    operands = ", ".join(names).rstrip(", ")
    if not rounded:
        check(tmp_path, f"y = com.microsoft.QGemm{attributes}({operands})", given)
        return
    given |= {"YS": scale(0.2), "YZ": zero("u", 120)}
    # Nothing but inference tells the type of q.
    body = f"q = com.microsoft.QGemm{attributes}({operands})\n y = DequantizeLinear(q, YS, YZ)"
    check(tmp_path, body, given, tolerance=1e-2)


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


def test_quantization_of_onnxruntime_is_that_of_onnx(tmp_path: Path) -> None:
    body = "y = com.microsoft.QuantizeLinear<axis = 1>(x, S, Z)"
    given = {"x": X, "S": np.linspace(0.01, 0.05, 5).astype(np.float32), "Z": np.arange(5, dtype=np.uint8)}
    assert check(tmp_path, body, given, "uint8 y") == ["QuantizeLinear"]
    given["x"] = ("u", 2, 5, 24)
    body = "y = com.microsoft.DequantizeLinear<axis = 1>(x, S, Z)"
    assert check(tmp_path, body, given) == ["DequantizeLinear"]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_rows_of_blocks_are_gathered_before_they_are_dequantized(
    bits: int, zeros: bool, tmp_path: Path
) -> None:
    bytes_ = bits * 48 // 8
    given: dict[str, Any] = {"D": ("u", 10, bytes_), "i": ("l", 2, 3), "S": ("f", 10, 3)}
    if zeros:
        given["Z"] = ("u", 10, 2 if bits == 4 else 3)
    attributes = f"bits = {bits}, block_size = 16, gather_axis = 0, quantize_axis = 1"
    body = f"y = com.microsoft.GatherBlockQuantized<{attributes}>({', '.join(('D', 'i', *list(given)[2:]))})"
    check(tmp_path, body, given)


def evaluated(folder: Path, body: str, given: dict[str, Array], outputs: str) -> dict[str, Array]:
    """Results of the core operators of a node that onnxruntime does not compute on a CPU."""
    declared = ", ".join(f"float[{','.join(map(str, a.shape))}] {n}" for n, a in given.items())
    path = saved(f"{HEAD} g ({declared}) => ({outputs}) {{ {body} }}", folder, {})
    compilation = canonical(path)
    assert all(not n.domain for n in compilation.graph)
    return runtime(exported(compilation.model, folder), given)


def normalized(x: Array, groups: int, gamma: Array, beta: Array, epsilon: float) -> Array:
    """Groups of the last axis of x, in float64, times Swish of them."""
    n, h, w, c = x.shape
    parts = x.astype(np.float64).reshape(n, h * w, groups, c // groups)
    parts = (parts - parts.mean((1, 3), keepdims=True)) / np.sqrt(parts.var((1, 3), keepdims=True) + epsilon)
    y = parts.reshape(x.shape) * gamma + beta
    return np.asarray(y / (1 + np.exp(-y)))


def test_groups_of_channels_that_are_last_are_normalized(tmp_path: Path) -> None:
    x, skip, g, b, bias = (array("f", s, i) for i, s in enumerate(((2, 3, 4, 8), (2, 8), (8,), (8,), (8,))))
    attributes = "groups = 4, activation = 1, epsilon = 0.001, channels_last = 1"
    body = f"y = com.microsoft.GroupNorm<{attributes}>(x, g, b)"
    found = evaluated(tmp_path, body, {"x": x, "g": g, "b": b}, "float[a, b, c, d] y")
    np.testing.assert_allclose(found["y"], normalized(x, 4, g, b, 1e-3), rtol=1e-5, atol=1e-5)
    body = f"y, s = com.microsoft.SkipGroupNorm<{attributes}>(x, g, b, skip, bias)"
    given = {"x": x, "g": g, "b": b, "skip": skip, "bias": bias}
    found = evaluated(tmp_path, body, given, "float[a, b, c, d] y, float[a, b, c, d] s")
    total = x + skip[:, None, None] + bias
    np.testing.assert_allclose(found["s"], total, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found["y"], normalized(total, 4, g, b, 1e-3), rtol=1e-5, atol=1e-5)


def test_half_of_a_sum_is_multiplied_by_gelu_of_the_other(tmp_path: Path) -> None:
    x, b = array("f", (2, 5, 12), 0), array("f", (12,), 1)
    found = evaluated(tmp_path, "y = com.microsoft.BiasSplitGelu(x, b)", {"x": x, "b": b}, "float[a, b, c] y")
    left, right = np.split((x + b).astype(np.float64), 2, -1)
    gelu = right * 0.5 * (1 + np.vectorize(math.erf)(right / math.sqrt(2)))
    np.testing.assert_allclose(found["y"], left * gelu, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("pads", "strides", "group"), [((0, 0, 0, 0), (1, 1), 1), ((1, 0, 1, 2), (2, 1), 2)])
def test_convolution_of_channels_that_are_last(
    pads: tuple[int, ...], strides: tuple[int, ...], group: int, tmp_path: Path
) -> None:
    x, w, b = array("f", (2, 6, 7, 4), 0), array("f", (6, 3, 2, 4 // group), 1), array("f", (6,), 2)
    attributes = f"pads = {list(pads)}, strides = {list(strides)}, group = {group}, kernel_shape = [3, 2]"
    body = f"y = com.microsoft.NhwcConv<{attributes}>(x, w, b)"
    found = evaluated(tmp_path, body, {"x": x, "w": w, "b": b}, "float[a, b, c, d] y")
    wide = np.pad(x, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0))).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 2), (1, 2))[:, :: strides[0], :: strides[1]]
    parts = np.split(windows, group, 3), np.split(w.astype(np.float64), group, 0)
    expected = [np.einsum("nijckl,mklc->nijm", a, k) for a, k in zip(*parts)]
    np.testing.assert_allclose(found["y"], np.concatenate(expected, -1) + b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["u", "s"])
@pytest.mark.parametrize("attributes", [
    "strides = [2, 2], pads = [1, 1, 1, 1]", "", "strides = [2, 3], ceil_mode = 1", 'auto_pad = "SAME_UPPER"',
    "dilations = [2, 1], pads = [1, 0, 0, 1]", "strides = [2, 2], ceil_mode = 1, pads = [0, 1, 1, 1]",
])  # fmt: skip
def test_pools_of_channels_that_lie_last(attributes: str, kind: str, tmp_path: Path) -> None:
    body = f"y = com.microsoft.NhwcMaxPool<kernel_shape = [3, 2]{', ' * bool(attributes)}{attributes}>(x)"
    given = {"x": (kind, 2, 8, 7, 5)}
    operators = check(tmp_path, body, given, {"u": "uint8 y", "s": "int8 y"}[kind], off_by_one=0.0)
    assert operators == ["Transpose", "MaxPool", "Transpose"]


def test_sums_with_a_bias_and_a_skip(tmp_path: Path) -> None:
    x, b, skip = array("f", (2, 6, 320), 0), array("f", (320,), 1), array("f", (2, 6, 320), 2)
    body = "y = com.microsoft.BiasAdd(x, b, skip)"
    found = evaluated(tmp_path, body, {"x": x, "b": b, "skip": skip}, "float[a, b, c] y")
    np.testing.assert_allclose(found["y"], x + b + skip, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "table", "ids", "attributes"),
    [
        ((2, 3, 5, 8), (9, 4), (2, 5), ""),
        ((2, 3, 5, 8), (2, 5, 4), None, ""),
        ((2, 5, 24), (9, 4), (2, 5), "num_heads = 3, "),
        ((2, 3, 5, 8), (9, 2), (2, 5), "rotary_embedding_dim = 4, "),
    ],
)
def test_rotary_embeddings_of_onnx(
    shape: tuple[int, ...], table: tuple[int, ...], ids: tuple[int, ...] | None, attributes: str,
    interleaved: int, tmp_path: Path,
) -> None:  # fmt: skip
    given: dict[str, Any] = {"x": ("f", *shape), "c": ("f", *table), "s": ("f", *table)}
    if ids is not None:
        given["i"] = ("l", *ids)
    body = f"y = RotaryEmbedding<{attributes}interleaved = {interleaved}>({', '.join(given)})"
    check(tmp_path, body, given, head=HEAD.replace("21", "23"))


HEADS, GROUPS, WIDTH = 4, 2, 16
EXTRAS: list[tuple[int, int, tuple[str, ...], str]] = [
    (1, 9, ("places",), "do_rotary = 1, "),
    (3, 0, ("places",), "do_rotary = 1, rotary_interleaved = 1, "),
    (1, 9, ("added",), "softcap = 2.0, "),
    (3, 0, ("added",), "local_window_size = 2, "),
    (1, 9, ("sink",), ""),
    (3, 0, ("sink", "added"), "do_rotary = 1, "),
    (1, 9, (), "smooth_softmax = 1, "),
    (3, 0, (), "causal = 0, "),
]


@pytest.mark.parametrize(("rows", "old", "extras", "attributes"), EXTRAS, ids=str)
def test_attention_to_a_cache_with_more_operands(
    rows: int, old: int, extras: tuple[str, ...], attributes: str, tmp_path: Path
) -> None:
    total = old + rows
    new = ("f", B, rows, GROUPS * WIDTH)
    given: dict[str, Any] = {"q": ("f", B, rows, HEADS * WIDTH), "k": new, "v": new}
    if old:
        given |= dict.fromkeys(("p", "r"), ("f", B, GROUPS, old, WIDTH))
    given |= {"l": np.full(B, total - 1, np.int32), "T": np.array(total, np.int32)}
    if "do_rotary" in attributes:
        given |= {"C": ("f", 20, WIDTH // 2), "D": ("f", 20, WIDTH // 2)}
    more: dict[str, dict[str, Any]] = {
        "places": {"i": np.array([[2], [5]]) + np.arange(rows)},
        "added": {"a": ("f", 1, HEADS, rows, total)},
        "sink": {"s": ("f", HEADS)},
    }
    for name in extras:
        given |= more[name]
    order = ["q", "k", "v", "p", "r", "l", "T", "C", "D", "i", "a", "s"]
    names = ", ".join(n if n in given else '""' for n in order)
    sizes = f"num_heads = {HEADS}, kv_num_heads = {GROUPS}"
    body = f"y, c, d = com.microsoft.GroupQueryAttention<{attributes}{sizes}>({names})"
    check(tmp_path, body, given, "float y, float c, float d", 5e-6)
