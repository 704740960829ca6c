"""Small networks for planning: residual blocks, depthwise convolutions, a transformer block, an 8-bit network."""

from pathlib import Path

import numpy as np
import onnx

HEADER = '<ir_version: 10, opset_import: ["": 21]>\n'
HALF = "kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]"
SAME = "kernel_shape = [3, 3], pads = [1, 1, 1, 1]"

RESIDUAL = f"""residual (float[1,3,32,32] x) => (float[1,10] y) {{
    a = Conv<{HALF}>(x, w0, b0)
    b = Relu(a)
    c = MaxPool<{HALF}>(b)
    d = Conv<{SAME}>(c, w1, b1)
    e = Relu(d)
    f = Conv<{SAME}>(e, w2, b2)
    g = Add(f, c)
    h = Relu(g)
    i = Conv<{HALF}>(h, w3, b3)
    j = Relu(i)
    k = Conv<kernel_shape = [1, 1], strides = [2, 2]>(h, w4, b4)
    l = Add(j, k)
    m = GlobalAveragePool(l)
    n = Flatten(m)
    y = Gemm<transB = 1>(n, w5, b5)
}}"""
RESIDUAL_WEIGHTS = {
    "w0": (20, 3, 3, 3), "b0": (20,), "w1": (20, 20, 3, 3), "b1": (20,), "w2": (20, 20, 3, 3), "b2": (20,),
    "w3": (40, 20, 3, 3), "b3": (40,), "w4": (40, 20, 1, 1), "b4": (40,), "w5": (10, 40), "b5": (10,),
}  # fmt: skip

DEPTHWISE = f"""depthwise (float[1,3,32,32] x) => (float[1,24,8,8] y) {{
    a = Conv<{HALF}>(x, w0, b0)
    b = Clip(a, low, high)
    c = Conv<{SAME}, group = 16>(b, w1, b1)
    d = Clip(c, low, high)
    e = Conv<kernel_shape = [1, 1]>(d, w2, b2)
    f = Conv<kernel_shape = [1, 1]>(e, w3, b3)
    g = Clip(f, low, high)
    h = Conv<{HALF}, group = 48>(g, w4, b4)
    i = Clip(h, low, high)
    y = Conv<kernel_shape = [1, 1]>(i, w5, b5)
}}"""
DEPTHWISE_WEIGHTS = {
    "w0": (16, 3, 3, 3), "b0": (16,), "w1": (16, 1, 3, 3), "b1": (16,), "w2": (12, 16, 1, 1), "b2": (12,),
    "w3": (48, 12, 1, 1), "b3": (48,), "w4": (48, 1, 3, 3), "b4": (48,), "w5": (24, 48, 1, 1), "b5": (24,),
    "low": (), "high": (),
}  # fmt: skip

TRANSFORMER = """transformer (float[1,16,64] x) => (float[1,16,64] y) {
    n = LayerNormalization<axis = -1>(x, s, t)
    q = MatMul(n, wq)
    k = MatMul(n, wk)
    v = MatMul(n, wv)
    kt = Transpose<perm = [0, 2, 1]>(k)
    a = MatMul(q, kt)
    b = Mul(a, scale)
    p = Softmax<axis = -1>(b)
    c = MatMul(p, v)
    o = MatMul(c, wo)
    r = Add(o, x)
    m = LayerNormalization<axis = -1>(r, s, t)
    u = MatMul(m, w1)
    g = Relu(u)
    d = MatMul(g, w2)
    y = Add(d, r)
}"""
TRANSFORMER_WEIGHTS = {
    "s": (64,), "t": (64,), "wq": (64, 64), "wk": (64, 64), "wv": (64, 64), "wo": (64, 64), "w1": (64, 200),
    "w2": (200, 64), "scale": (),
}  # fmt: skip

VIEWS = f"""views (float[1,32,8,8] x) => (float[1,48,8,8] y, float[2,64] z) {{
    h, t = Split<axis = 1>(x, halves)
    c = Conv<{SAME}>(h, w0, b0)
    d = Relu(t)
    e = Concat<axis = 1>(c, d)
    f = Conv<{SAME}>(e, w1, b1)
    g = Relu(f)
    y = Concat<axis = 1>(g, t)
    p = GlobalAveragePool(e)
    q = Flatten(p)
    r = MatMul(q, w2)
    s = Reshape(r, heads)
    u = Transpose<perm = [1, 0, 2]>(s)
    v = Slice(u, one, three, zero)
    k = Squeeze(v, first)
    z = Relu(k)
}}"""
VIEWS_WEIGHTS = {
    "w0": (16, 16, 3, 3), "b0": (16,), "w1": (32, 32, 3, 3), "b1": (32,), "w2": (32, 256),
    "halves": np.array([16, 16]), "heads": np.array([1, 4, 64]), "one": np.array([1]), "three": np.array([3]),
    "zero": np.array([0]), "first": np.array([1]),
}  # fmt: skip

NETWORKS = {
    "residual": (RESIDUAL, RESIDUAL_WEIGHTS),
    "depthwise": (DEPTHWISE, DEPTHWISE_WEIGHTS),
    "transformer": (TRANSFORMER, TRANSFORMER_WEIGHTS),
    "views": (VIEWS, VIEWS_WEIGHTS),
}


def network(name: str, folder: Path) -> Path:
    """The file of a network, its weights drawn."""
    text, shapes = NETWORKS[name]
    random = np.random.default_rng(0)
    proto = onnx.parser.parse_model(HEADER + text)
    for weight, shape in shapes.items():
        array = shape
        if isinstance(shape, tuple):
            array = np.asarray(random.standard_normal(shape) / 4, np.float32)
            array = {"low": np.float32(0), "high": np.float32(6)}.get(weight, array)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), weight))
    path = folder / f"{name}.onnx"
    onnx.save(proto, path)
    return path


def quantized(folder: Path, zero: int = 0) -> Path:
    """Two convolutions, a residual sum and a pool with 8-bit operands, as quantizers write them."""
    random = np.random.default_rng(1)
    body, weights = [], {"s": np.float32(0.05), "z": np.int8(zero), "t": np.float32(0.01)}

    def conv(x: str, y: str, out: int, into: int) -> None:
        weights[f"{y}_w"] = random.integers(-127, 128, (out, into, 3, 3)).astype(np.int8)
        weights[f"{y}_b"] = random.standard_normal(out).astype(np.float32)
        body.append(f"{y}_f = DequantizeLinear({x}, s, z) {y}_wf = DequantizeLinear({y}_w, t)")
        body.append(f"{y}_c = Conv<{SAME}>({y}_f, {y}_wf, {y}_b) {y}_r = Relu({y}_c)")
        body.append(f"{y} = QuantizeLinear({y}_r, s, z)")

    body.append("x8 = QuantizeLinear(x, s, z)")
    conv("x8", "a", 20, 3)
    conv("a", "b", 20, 20)
    body.append("p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b)")
    conv("p", "c", 40, 20)
    body.append("y = DequantizeLinear(c, s, z)")
    text = "quantized (float[1,3,16,16] x) => (float[1,40,8,8] y) {\n" + "\n".join(body) + "\n}"
    proto = onnx.parser.parse_model(HEADER + text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items())
    path = folder / "quantized.onnx"
    onnx.save(proto, path)
    return path
