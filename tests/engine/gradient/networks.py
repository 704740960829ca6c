"""Small networks of the usual kinds as ONNX text, with weights drawn from a seed."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Network:
    """A graph body that computes `loss`; shapes of inputs and weights; integers that are given."""

    body: str
    inputs: dict[str, tuple[int, ...]]
    weights: dict[str, tuple[int, ...]]
    constants: dict[str, Array]

    def arrays(self, dtype: str) -> tuple[dict[str, Array], dict[str, Array]]:
        """Inputs and initializers; `variance` and `scale` in a name make its elements positive."""
        rng = np.random.default_rng(5)

        def draw(name: str, shape: tuple[int, ...]) -> Array:
            found = rng.standard_normal(shape) * 0.5
            return (np.abs(found) + 0.5 if "variance" in name or "scale" in name else found).astype(dtype)

        inputs = {n: draw(n, s) for n, s in self.inputs.items()}
        weights = {n: draw(n, s) for n, s in self.weights.items()}
        fixed = {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in self.constants.items()}
        return inputs, weights | fixed


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


NETWORKS = {
    "resnet": Network(
        """
        c1 = Conv<pads=[1,1,1,1]>(x, w1) n1 = BatchNormalization(c1, scale1, b1, mean1, variance1) r1 = Relu(n1)
        c2 = Conv<pads=[1,1,1,1], strides=[2,2]>(r1, w2, d2) n2 = BatchNormalization(c2, scale2, b2, mean2, variance2)
        s = Conv<strides=[2,2]>(r1, ws) a = Add(n2, s) r2 = Relu(a) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r2)
        g = GlobalAveragePool(p) f = Flatten(g) logits = Gemm<transB=1>(f, wf, bf)
        loss = SoftmaxCrossEntropyLoss(logits, classes)
        """,
        {"x": (2, 3, 8, 8)},
        {
            "w1": (4, 3, 3, 3), "scale1": (4,), "b1": (4,), "mean1": (4,), "variance1": (4,), "w2": (6, 4, 3, 3), "d2": (6,),
            "scale2": (6,), "b2": (6,), "mean2": (6,), "variance2": (6,), "ws": (6, 4, 1, 1), "wf": (5, 6), "bf": (5,),
        },
        {"classes": ints(3, 1)},
    ),
    "mobilenet": Network(
        """
        e = Conv(x, we) ne, nm, nv = BatchNormalization<training_mode=1>(e, scale1, b1, mean, variance)
        ce = Clip(ne, low, high) d = Conv<group=8, pads=[1,1,1,1], strides=[2,2]>(ce, wd)
        nd = InstanceNormalization(d, scale2, b2) hd = HardSwish(nd) sq = ReduceMean<keepdims=1>(hd, axes)
        s1 = Conv(sq, ws) s2 = HardSigmoid(s1) se = Mul(hd, s2) p = Conv(se, wp) loss = Mul(p, p)
        """,
        {"x": (2, 4, 6, 6)},
        {
            "we": (8, 4, 1, 1), "scale1": (8,), "b1": (8,), "wd": (8, 1, 3, 3), "scale2": (8,), "b2": (8,),
            "ws": (8, 8, 1, 1), "wp": (4, 8, 1, 1),
        },
        {"axes": ints(2, 3), "low": np.array(-1.0), "high": np.array(1.0), "mean": np.zeros(8), "variance": np.ones(8)},
    ),
    "transformer": Network(
        """
        n1 = LayerNormalization(x, scale1, b1) qkv = MatMul(n1, wqkv) q0, k0, v0 = Split<axis=-1, num_outputs=3>(qkv)
        q1 = Reshape(q0, heads) k1 = Reshape(k0, heads) v1 = Reshape(v0, heads)
        q = Transpose<perm=[0,2,1,3]>(q1) k = Transpose<perm=[0,2,3,1]>(k1) v = Transpose<perm=[0,2,1,3]>(v1)
        s0 = MatMul(q, k) s1 = Div(s0, root) s2 = Where(mask, s1, low) a = Softmax<axis=-1>(s2) o0 = MatMul(a, v)
        o1 = Transpose<perm=[0,2,1,3]>(o0) o2 = Reshape(o1, flat) o3 = MatMul(o2, wo) h = Add(x, o3)
        n2 = LayerNormalization(h, scale2, b2) f0 = MatMul(n2, w1) f1 = Add(f0, c1) f2 = Tanh(f1) f3 = MatMul(f2, w2)
        y = Add(h, f3) last = Gather<axis=1>(y, end) logits = LogSoftmax(last) loss = NegativeLogLikelihoodLoss(logits, classes)
        """,
        {"x": (2, 5, 8)},
        {
            "scale1": (8,), "b1": (8,), "wqkv": (8, 24), "wo": (8, 8), "scale2": (8,), "b2": (8,), "w1": (8, 16), "c1": (16,),
            "w2": (16, 8),
        },
        {
            "heads": ints(0, 0, 2, 4), "flat": ints(0, 0, 8), "root": np.array(2.0), "low": np.array(-1e4),
            "mask": np.tril(np.ones((5, 5), bool)), "end": np.array(-1, np.int64), "classes": ints(3, 7),
        },
    ),
    "dlrm": Network(
        """
        b0 = Gemm<transB=1>(x, wb, bb) b = Relu(b0) e0 = Gather(table, rows) e1 = ReduceSum<keepdims=0>(e0, bag)
        e2 = Gather(table2, rows2) be = Unsqueeze(b, one) e1e = Unsqueeze(e1, one) e2e = Unsqueeze(e2, one)
        t = Concat<axis=1>(be, e1e, e2e) tt = Transpose<perm=[0,2,1]>(t) z = MatMul(t, tt) zf = Flatten(z)
        pairs = Gather<axis=1>(zf, lower) r = Concat<axis=1>(b, pairs) u0 = Gemm<transB=1>(r, wt, bt) u = Sigmoid(u0)
        loss = ReduceMean<keepdims=0>(u)
        """,
        {"x": (3, 5)},
        {"wb": (4, 5), "bb": (4,), "table": (7, 4), "table2": (6, 4), "wt": (1, 7), "bt": (1,)},
        {
            "rows": np.array([[1, 2], [2, 2], [0, 6]], np.int64), "rows2": ints(5, 0, 5), "bag": ints(1), "one": ints(1),
            "lower": ints(3, 6, 7),
        },
    ),
    "unet": Network(
        """
        a0 = Conv<pads=[1,1,1,1]>(x, w1, c1) a = LeakyRelu<alpha=0.1>(a0) p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(a)
        d0 = Conv<pads=[1,1,1,1], dilations=[1,1]>(p, w2) dn = GroupNormalization<num_groups=2>(d0, scale1, b1) d = Elu(dn)
        u0 = ConvTranspose<strides=[2,2]>(d, wu, cu) r = Resize<mode="linear">(d, , scales) j = Concat<axis=1>(u0, a, r)
        q = Pad<mode="reflect">(j, pads) s = Slice(q, starts, ends, axes) y = Conv(s, w3) m = Sigmoid(y) loss = Mul(m, y)
        """,
        {"x": (1, 2, 8, 6)},
        {
            "w1": (4, 2, 3, 3), "c1": (4,), "w2": (4, 4, 3, 3), "scale1": (4,), "b1": (4,), "wu": (4, 3, 2, 2), "cu": (3,),
            "w3": (1, 11, 1, 1),
        },
        {
            "scales": np.array([1, 1, 2, 2], np.float32), "pads": ints(0, 0, 1, 1, 0, 0, 1, 1), "starts": ints(1, 0),
            "ends": ints(-1, 7), "axes": ints(2, 3),
        },
    ),
}  # fmt: skip
