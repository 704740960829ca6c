"""Every row of the CUDA backend computes in the simulator what onnxruntime computes, in every precision it takes.

A case is a small model and the rows that run it; of their operators no other row is offered. Shapes are
ragged, memory that no live value owns is NaN. Rows of attention are in `test_attention.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.core import graph
from app.engine.core.program import Program
from app.engine.types.options import Options
from tests.engine.runtime.cuda.programs import REGISTRY, check, offering, saved

pytestmark = pytest.mark.simulated

Array = np.ndarray[Any, Any]
ROWS = {r.name: r for rows in REGISTRY.implementations.values() for r in rows if r.backend == "cuda"}
FLOAT32, HALVES = ("f32",), {"bf16": "bfloat16", "fp16": "float16"}
ALL = ("f32", *HALVES)
# Of one rounding to each type that is stored, relative: half a unit in the last place.
UNIT = {"tf32": 2.0**-11, "bf16": 2.0**-8, "fp16": 2.0**-11}
# What float32 sums of a few hundred products and float32 functions differ by from other float32 ones.
SUMS = 1e-5


@dataclass(frozen=True)
class Case:
    """A model as ONNX text, and the rows that compute it.

    Attributes:
        rows: names without `cuda.`.
        weights: constants; a shape stands for random numbers.
        policies: precisions it is run in.
        roundings: to 16 bits, one after another, each at most as large as what the outputs are compared with.
        opset: of the model.
        besides: rows that are offered too, and need not be taken.
    """

    rows: str
    text: str
    inputs: str
    outputs: str
    weights: Mapping[str, Any] = field(default_factory=dict)
    policies: tuple[str, ...] = ALL
    roundings: int = 2
    opset: int = 21
    besides: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"cuda.{row}" for row in self.rows.split())

    @property
    def offered(self) -> tuple[str, ...]:
        return (*self.names, *(f"cuda.{row}" for row in self.besides.split()))


def i64(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


PRECISIONS = ("f32", "3xtf32", "tf32", "bf16", "fp16")


def policy_of(precision: str) -> tuple[str, ...]:
    """The policy under which products are computed so."""
    return ("f32" if precision == "3xtf32" else precision,)


IMAGE = "float[2,5,4,7] x"
REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum SumSquare"
POOLS = "AveragePool MaxPool"


def reductions(kind: str, ops: str, axes: str, weights: Mapping[str, Any], last: str, shape: str) -> Case:
    """One input reduced by every operator: positive for the logarithm, halved and doubled for the product."""
    lines = ["p = Abs(x) s = Sign(x) q = Pow(two, s)"]
    reduced = {"LogSum": "p", "Prod": "q"}
    lines += [f"y{op} = {kind}{op}({reduced.get(op, 'x')}{axes})" for op in ops.split()]
    weights = {**weights, "two": np.float32(2)}
    outputs = ", ".join(f"float[{shape}] y{op}" for op in ops.split())
    rows = " ".join(f"{kind}{op}".lower() + last for op in ops.split())
    return Case(rows, " ".join(lines), IMAGE, outputs, weights)


CASES: dict[str, Case] = {
    # Chains of functions.
    "chain": Case(
        "elementwise",
        "a = Mul(x, s) b = Add(a, z) c = Less(b, x) d = Where(c, b, z) y = Max(d, t)",
        "float[3,1,45] x, float[3,5,45] z", "float[3,5,45] y", {"s": (45,), "t": (5, 1)}, roundings=4,
    ),
    "casts of floats": Case(
        "elementwise",
        "a = Cast<to=6>(x) b = Cast<to=7>(x) c = Cast<to=9>(x) d = Cast<to=3>(x) e = Cast<to=10>(x) f = Cast<to=1>(e)",
        "float[7,41] x",
        "int32[7,41] a, int64[7,41] b, bool[7,41] c, int8[7,41] d, float[7,41] f",
    ),
    "casts of integers": Case(
        "elementwise", "a = Cast<to=6>(i) b = Cast<to=1>(i) c = Cast<to=9>(i) d = Cast<to=2>(c) e = Cast<to=7>(a)",
        "int64[5,33] i", "int32[5,33] a, float[5,33] b, bool[5,33] c, uint8[5,33] d, int64[5,33] e", policies=FLOAT32,
    ),
    "integers": Case(
        "elementwise", "a = Div(i, j) b = Mod(i, j) c = Mul(a, b) d = Equal(c, i) e = Not(d) y = Where(e, i, c)",
        "int64[5,33] i, int64[33] j", "int64[5,33] y", policies=FLOAT32,
    ),
    "chain of images": Case(
        "elementwise_last to_last to_plain", "n = Softmax(x) a = Mul(n, s) b = Add(a, z) c = Sigmoid(b) y = Softmax(c)",
        f"{IMAGE}, float[2,5,4,7] z", "float[2,5,4,7] y", {"s": (5, 1, 1)}, roundings=6,
    ),
    "images of one channel": Case(
        "elementwise_last to_last_view to_plain_view", "n = Softmax(x) a = Mul(n, s) b = Tanh(a) y = Softmax(b)",
        "float[2,1,5,7] x", "float[2,1,5,7] y", {"s": (5, 1)}, roundings=6,
    ),
    # Rows.
    "softmax": Case(
        "softmax logsoftmax", "a = Softmax(x) b = Softmax<axis=1>(x) c = LogSoftmax(x) d = LogSoftmax<axis=1>(x)",
        "float[3,9,37] x", ", ".join(f"float[3,9,37] {y}" for y in "abcd"),
    ),
    "layer norms": Case(
        "layer_norm", "a = LayerNormalization(x, s, b) y = LayerNormalization<axis=-2, epsilon=0.01>(x, u)",
        "float[3,9,37] x", "float[3,9,37] a, float[3,9,37] y", {"s": (37,), "b": (37,), "u": (9, 37)}, roundings=3,
    ),
    "rms norm": Case(
        "rms_norm", "y = RMSNormalization(x, s)", "float[5,9,37] x", "float[5,9,37] y", {"s": (37,)}, opset=23,
    ),
    "norms of groups": Case(
        "groupnormalization instancenormalization",
        "y = GroupNormalization<num_groups=3>(x, s, b) z = InstanceNormalization<epsilon=0.01>(x, s, b)",
        "float[2,6,5,7] x", "float[2,6,5,7] y, float[2,6,5,7] z", {"s": (6,), "b": (6,)}, roundings=3,
    ),
    # Reductions.
    "reductions": reductions("Reduce", REDUCTIONS, ", axes", {"axes": i64(1, 3)}, "", "2,1,4,1"),
    "reductions of rows": reductions("Reduce", REDUCTIONS, ", axes", {"axes": i64(-1)}, "", "2,5,4,1"),
    "pools of all": reductions("Global", POOLS, "", {}, "", "2,5,1,1"),
    "reductions of images": reductions("Reduce", REDUCTIONS, ", axes", {"axes": i64(2, 3)}, "_last", "2,5,1,1"),
    "pools of all of images": reductions("Global", POOLS, "", {}, "_last", "2,5,1,1"),
    "reductions of integers": Case(
        "reducesum reducemean reducemax reducemin reduceprod",
        "a = ReduceSum(i, r) b = ReduceMean(i, r) c = ReduceMax<keepdims=0>(i, r) d = ReduceMin(i, r) e = ReduceProd(j, r)",
        "int64[3,5,7] i, int32[3,5,7] j",
        "int64[1,5,1] a, int64[1,5,1] b, int64[5] c, int64[1,5,1] d, int32[1,5,1] e", {"r": i64(0, 2)}, FLOAT32,
    ),
    # By place.
    "extrema": Case(
        "argmax argmin",
        "a = ArgMax<axis=1, keepdims=0>(x) b = ArgMax<select_last_index=1>(x) c = ArgMin<axis=-1>(x) d = ArgMin<axis=1>(i)",
        "float[3,5,37] x, int32[3,5,37] i",
        "int64[3,37] a, int64[1,5,37] b, int64[3,5,1] c, int64[3,1,37] d",
    ),
    "running sums": Case(
        "cumsum", "a = CumSum<exclusive=1>(x, k) b = CumSum<reverse=1>(x, m) c = CumSum<exclusive=1, reverse=1>(i, k)",
        "float[3,5,37] x, int64[3,5,37] i", "float[3,5,37] a, float[3,5,37] b, int64[3,5,37] c",
        {"k": np.array(1), "m": np.array(-1)},
    ),
    "largest": Case(
        "topk", "a, m = TopK<axis=1>(x, k) b, n = TopK<largest=0>(x, k)", "float[2,5,7] x",
        "float[2,3,7] a, int64[2,3,7] m, float[2,5,3] b, int64[2,5,3] n", {"k": i64(3)},
    ),
    # Indices.
    "gathers": Case(
        "gather",
        "a = Gather<axis=1>(x, i) b = Gather<axis=2>(x, c) y = Gather(w, i)", "float[3,5,37] x, int64[2,3] i",
        "float[3,2,3,37] a, float[3,5,4] b, float[2,3,7] y", {"c": i64(36, -1, 0, 5), "w": (5, 7)},
    ),
    "gathers of elements": Case(
        "gather_elements", "a = GatherElements<axis=1>(x, i) b = GatherElements<axis=-1>(x, j)",
        "float[3,5,37] x, int64[3,2,37] i, int64[3,5,4] j", "float[3,2,37] a, float[3,5,4] b",
    ),
    "gathers of places": Case(
        "gather_nd", "a = GatherND(x, i) b = GatherND<batch_dims=1>(x, j)",
        "float[4,5,37] x, int64[2,3,2] i, int64[4,2,1] j", "float[2,3,37] a, float[4,2,37] b",
    ),
    "scatters of elements": Case(
        "scatterelements",
        'a = ScatterElements<axis=1>(x, c, u) b = ScatterElements<axis=2, reduction="add">(x, d, u)',
        "float[3,5,37] x, float[2,3,4] u", "float[3,5,37] a, float[3,5,37] b",
        {"c": np.tile(i64(4, 0, -2)[:, None], (2, 1, 4)), "d": np.tile(i64(36, 3, 3, -1), (2, 3, 1))},
    ),
    "scatters of places": Case(
        "scatternd", 'a = ScatterND<reduction="add">(x, c, u) b = ScatterND<reduction="max">(x, c, u)',
        "float[3,5,37] x, float[3,37] u", "float[3,5,37] a, float[3,5,37] b",
        {"c": np.array([[0, 1], [2, -1], [0, 1]])}, roundings=3,
    ),
    # Images.
    **{
        f"pooling{last}": Case(
            f"maxpool{last} averagepool{last}",
            "a = MaxPool<kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]>(x) "
            "b = MaxPool<kernel_shape=[2,2], dilations=[2,3], ceil_mode=1, strides=[1,2]>(x) "
            "c = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x) "
            "d = AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,0,1,2]>(x)",
            "float[2,5,6,7] x", "float[2,5,3,7] a, float[2,5,4,3] b, float[2,5,6,7] c, float[2,5,3,4] d",
        )
        for last in ("", "_last")
    },
    "pooling of lines and volumes": Case(
        "maxpool averagepool",
        "a = MaxPool<kernel_shape=[3], strides=[2]>(x) b = AveragePool<kernel_shape=[2,2,3], pads=[0,1,1,0,0,1]>(v)",
        "float[2,5,9] x, float[1,3,3,4,5] v", "float[2,5,4] a, float[1,3,2,4,5] b",
    ),
    **{
        f"nearest{last}": Case(
            f"resize_nearest{last}",
            'a = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , twice) '
            'b = Resize<mode="nearest", nearest_mode="round_prefer_ceil">(x, , , sizes) '
            'c = Resize<mode="nearest", coordinate_transformation_mode="align_corners", nearest_mode="ceil">(x, , , sizes)',
            "float[2,5,3,4] x", "float[2,5,6,8] a, float[2,5,7,3] b, float[2,5,7,3] c",
            {"twice": np.float32([1, 1, 2, 2]), "sizes": i64(2, 5, 7, 3)},
        )
        for last in ("", "_last")
    },
    **{
        f"blended{last}": Case(
            f"resize_linear{last}",
            'a = Resize<mode="linear", coordinate_transformation_mode="half_pixel">(x, , , sizes) '
            'b = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, , , sizes) '
            'c = Resize<mode="cubic", cubic_coeff_a=-0.5>(x, , twice) '
            'd = Resize<mode="cubic", exclude_outside=1, coordinate_transformation_mode="asymmetric">(x, , , sizes)',
            "float[2,3,5,4] x", "float[2,3,7,6] a, float[2,3,7,6] b, float[2,3,10,8] c, float[2,3,7,6] d",
            {"twice": np.float32([1, 1, 2, 2]), "sizes": i64(2, 3, 7, 6)},
        )
        for last in ("", "_last")
    },
    **{
        f"padding{last}": Case(
            f"pad{last}",
            'a = Pad(x, p, v) b = Pad<mode="reflect">(x, q) c = Pad<mode="edge">(x, p) d = Pad<mode="wrap">(x, q) '
            "e = Pad(x, crop)",
            "float[2,3,5,4] x",
            "float[2,4,7,7] a, float[2,3,8,6] b, float[2,4,7,7] c, float[2,3,8,6] d, float[2,3,4,5] e",
            {
                "p": i64(0, 1, 2, 0, 0, 0, 0, 3), "q": i64(0, 0, 1, 1, 0, 0, 2, 1), "v": np.float32(1.5),
                "crop": i64(0, 0, -1, 1, 0, 0, 0, 0),
            },
        )
        for last in ("", "_last")
    },
    # Movement.
    "copies": Case(
        "reshape flatten squeeze unsqueeze identity",
        "a = Reshape(x, to) b = Flatten<axis=2>(x) c = Squeeze(x, one) d = Unsqueeze(x, one) e = Identity(x)",
        "float[3,1,37] x", "float[37,3] a, float[3,37] b, float[3,37] c, float[3,1,1,37] d, float[3,1,37] e",
        {"to": i64(37, 3), "one": i64(1)},
    ),
    "other names": Case(
        "reshape_as_is flatten_as_is squeeze_as_is unsqueeze_as_is transpose_as_is",
        "r = Relu(x) a = Reshape(r, to) b = Flatten<axis=2>(r) c = Squeeze(r, one) d = Unsqueeze(r, one) "
        "e = Transpose<perm=[1,0,2]>(r) "
        "k = Softmax(a) l = Softmax(b) m = Softmax(c) n = Softmax(d) o = Softmax(e)",
        "float[3,1,37] x",
        "float[37,3] k, float[3,37] l, float[3,37] m, float[3,1,1,37] n, float[1,3,37] o",
        {"to": i64(37, 3), "one": i64(1)}, roundings=3,
    ),
    "the same name": Case("identity_as_is", "y = Identity(x)", "float[3,37] x", "float[3,37] y", policies=tuple(HALVES)),
    "transposes": Case(
        "transpose", "a = Transpose<perm=[2,0,1]>(x) b = Transpose<perm=[1,0,2]>(x) c = Transpose(i)",
        "float[3,5,37] x, int64[9,35] i", "float[37,3,5] a, float[5,3,37] b, int64[35,9] c",
    ),
    "slices": Case(
        "slice", "a = Slice(x, s, e, axes, steps) b = Slice(i, s, e, axes, steps)",
        "float[3,5,37] x, int64[3,5,37] i", "float[3,3,9] a, int64[3,3,9] b",
        {"s": i64(-1, 33), "e": i64(-10, 0), "axes": i64(1, 2), "steps": i64(-2, -4)[[0, 1]]},
    ),
    "joined and split": Case(
        "concat split",
        "a = Concat<axis=1>(x, z) b, c = Split<axis=2>(x, parts) d = Concat<axis=-1>(c, c, b)",
        "float[3,5,37] x, float[3,2,37] z", "float[3,7,37] a, float[3,5,11] b, float[3,5,63] d",
        {"parts": i64(11, 26)},
    ),
    "repeated": Case(
        "expand tile", "a = Expand(x, to) b = Tile(x, times)", "float[3,1,37] x", "float[2,3,5,37] a, float[6,3,37] b",
        {"to": i64(2, 3, 5, 1), "times": i64(2, 3, 1)},
    ),
    **{
        f"depth{last}": Case(
            f"depthtospace{last} spacetodepth{last}",
            'a = DepthToSpace<blocksize=2>(x) b = DepthToSpace<blocksize=2, mode="CRD">(x) c = SpaceToDepth<blocksize=3>(z)',
            "float[2,12,3,5] x, float[2,3,6,9] z", "float[2,3,6,10] a, float[2,3,6,10] b, float[2,27,2,3] c",
        )
        for last in ("", "_last")
    },
    "parts of images": Case(
        "concat_last split_last slice_last",
        "a = Concat<axis=1>(x, z) b, c = Split<axis=1>(x, parts) d = Slice(x, s, e, axes, steps)",
        f"{IMAGE}, float[2,3,4,7] z", "float[2,8,4,7] a, float[2,2,4,7] b, float[2,3,4,7] c, float[2,3,4,3] d",
        {"parts": i64(2, 3), "s": i64(0, -1), "e": i64(5, 0), "axes": i64(1, 3), "steps": i64(2, -2)},
    ),
    # A part begins a line of the cache; what a plan without it would take is looked at too.
    "inputs in their concatenation": Case(
        "concat_view", "p = Softmax(x) q = Softmax(z) a = Concat<axis=0>(p, q) y = Softmax<axis=1>(a)",
        "float[2,4,8] x, float[3,4,8] z", "float[5,4,8] y", roundings=3, besides="concat",
    ),
    **{
        f"{op} in the whole": Case(
            f"{op}_view", f"w = Softmax(x) {text}", "float[6,4,8] x", outputs, constants, roundings=3, besides=op
        )
        for op, text, outputs, constants in (
            ("split", "b, c = Split<axis=0>(w, parts) y = Softmax<axis=0>(b) z = Softmax<axis=1>(c)",
             "float[4,4,8] y, float[2,4,8] z", {"parts": i64(4, 2)}),
            ("slice", "b = Slice(w, first, end) y = Softmax<axis=1>(b) z = Softmax<axis=0>(w)",
             "float[2,4,8] y, float[6,4,8] z", {"first": i64(2), "end": i64(4)}),
            ("gather", "b = Gather(w, rows) y = Softmax<axis=1>(b)", "float[3,4,8] y", {"rows": i64(3, 4, 5)}),
        )
    },
    # Products.
    **{
        f"product {p}": Case(
            f"matmul_{p} gemm_{p}",
            "a = MatMul(x, w) b = Add(a, c) y = Relu(b) k = Gemm<alpha=0.5, transB=1>(z, v, d) m = MatMul(x, r)",
            "float[2,5,37] x, float[34,37] z, float[2,37,9] r", "float[2,5,13] y, float[34,9] k, float[2,5,9] m",
            {"w": (37, 13), "c": (13,), "v": (9, 37), "d": (9,)}, policy_of(p),
        )
        for p in PRECISIONS
    },
    "products of few rows": Case(
        "matmul_of_few_rows gemm_of_few_rows", "a = MatMul(x, w) y = Gelu(a) k = Gemm<transA=0>(z, v, d)",
        "float[2,3,37] x, float[5,37] z", "float[2,3,13] y, float[5,9] k", {"w": (37, 13), "v": (37, 9), "d": (9,)},
    ),
    **{
        f"convolution {p}": Case(
            f"conv_{p} conv_transpose_{p}",
            "a = Conv<pads=[1,0,1,1], strides=[1,2]>(x, w, b) y = Clip(a, low, high) "
            "g = Conv<group=2, dilations=[1,2], pads=[1,1,1,1]>(x, v) "
            "t = ConvTranspose<strides=[2,1], pads=[1,1,0,1], output_padding=[1,0]>(x, u, d)",
            "float[1,8,5,7] x", "float[1,12,5,3] y, float[1,6,5,5] g, float[1,5,11,7] t",
            {
                "w": (12, 8, 3, 3), "b": (12,), "v": (6, 4, 3, 3), "u": (8, 5, 3, 3), "d": (5,),
                "low": np.float32(-3), "high": np.float32(20),
            }, policy_of(p),
        )
        for p in PRECISIONS
    },
    **{
        f"convolution {p} {way}": Case(
            f"conv_{p}_{way}", "a = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w, b) y = Relu(a)",
            "float[2,3,9,11] x", "float[2,9,5,6] y", {"w": (9, 3, 3, 3), "b": (9,)}, policy_of(p),
        )
        for p in PRECISIONS
        for way in ("widened", "of_plain")
    },
    "depthwise": Case(
        "conv_depthwise",
        "a = Conv<group=5, pads=[1,1,1,1]>(x, w, b) y = HardSwish(a) z = Conv<group=5, strides=[2,1], dilations=[1,2]>(x, v)",
        IMAGE, "float[2,5,4,7] y, float[2,10,1,3] z", {"w": (5, 1, 3, 3), "b": (5,), "v": (10, 1, 3, 3)}, roundings=3,
    ),
    "few pixels": Case(
        "conv_of_few_pixels", "a = Conv(x, w, b) y = HardSigmoid(a)", "float[2,40,1,1] x", "float[2,9,1,1] y",
        {"w": (9, 40, 1, 1), "b": (9,)},
    ),
    # Layers of sequences: states are rounded every step.
    "recurrent": Case(
        "lstm gru rnn",
        'a, ah, ac = LSTM<hidden_size=5, direction="bidirectional">(x, w, r, b) '
        'b2, bh = GRU<hidden_size=5, direction="reverse">(x, gw, gr, gb) c, ch = RNN<hidden_size=5>(x, nw, nr)',
        "float[4,2,3] x", "float[4,2,2,5] a, float[2,2,5] ac, float[4,1,2,5] b2, float[4,1,2,5] c",
        {
            "w": (2, 20, 3), "r": (2, 20, 5), "b": (2, 40), "gw": (1, 15, 3), "gr": (1, 15, 5), "gb": (1, 30),
            "nw": (1, 5, 3), "nr": (1, 5, 5),
        }, roundings=8,
    ),
    # Attention as nodes.
    "attention": Case(
        "attention",
        "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) c = Mul(s, h) m = Add(c, mask) p = Softmax<axis=-1>(m) "
        "y = MatMul(p, v)",
        "float[2,1,66,8] q, float[2,1,7,8] k, float[2,1,7,8] v", "float[2,1,66,8] y",
        {"h": np.float32(0.25), "mask": (66, 7)}, roundings=4,
    ),
    "attention of few queries": Case(
        "attention_decode",
        "t = Transpose<perm=[0,1,3,2]>(k) s = MatMul(q, t) c = Mul(s, h) p = Softmax<axis=-1>(c) y = MatMul(p, v)",
        "float[1,2,1,16] q, float[1,2,45,16] k, float[1,2,45,16] v", "float[1,2,1,16] y", {"h": np.float32(0.25)},
        roundings=4,
    ),
}  # fmt: skip
RUNS = [(name, policy) for name, case in CASES.items() for policy in case.policies]
# Rows that take no 16-bit floats: products of float32.
WITHOUT_HALVES = {name for name in ROWS if re.search(r"_(3xtf32|tf32|f32)(_|$)", name)}


def drawn(kind: str, shape: tuple[int, ...], policy: str, random: np.random.Generator) -> Array:
    """Inputs; for 16-bit policies numbers that both types hold, so that only what is computed is rounded."""
    if kind == "float":
        if policy in HALVES:
            return (random.integers(-24, 25, shape) / 16).astype(np.float32)
        return random.standard_normal(shape).astype(np.float32)
    numbers = random.integers(1, 4, shape)  # no zero: some divide
    return numbers.astype(kind)


def operands(text: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape by name, of a signature."""
    found = re.findall(r"(\w+)\[([\d,]*)\] (\w+)", text)
    return {name: (kind, tuple(int(n) for n in shape.split(","))) for kind, shape, name in found}


def run(case: Case, policy: str, folder: Path) -> Program:
    random = np.random.default_rng(6)
    weights = {
        name: drawn("float", told, policy, random) if isinstance(told, tuple) else told
        for name, told in case.weights.items()
    }
    path = saved(folder, case.text, case.inputs, case.outputs, weights, case.opset)
    inputs = {name: drawn(*told, policy, random) for name, told in operands(case.inputs).items()}
    tolerance = SUMS + case.roundings * UNIT.get(policy, 0.0)
    return check(path, inputs, Options(precision=policy), tolerance, registry=offering(case.offered))


@pytest.mark.parametrize(("name", "policy"), RUNS)
def test_a_row_computes_what_it_should(name: str, policy: str, tmp_path: Path) -> None:
    case = CASES[name]
    program = run(case, policy, tmp_path)
    steps = [s for s in program.steps if s.choice.implementation.name in case.names]
    assert {s.choice.implementation.name for s in steps} == set(case.names)
    if policy in HALVES:
        stored = {
            s.choice.implementation.name
            for s in steps
            for v in (*s.group.inputs, *s.group.outputs)
            if str(graph.dtype(v)) == HALVES[policy]
        }
        assert stored == set(case.names)


def test_every_row_is_run() -> None:
    assert set(ROWS) == {row for case in CASES.values() for row in case.names}


@pytest.mark.parametrize("policy", HALVES)
def test_every_row_is_run_on_what_it_stores_in_16_bits(policy: str) -> None:
    run = {row for case in CASES.values() if policy in case.policies for row in case.names}
    other = {f"_{p}" for p in HALVES if p != policy}
    lacking = {name for name in set(ROWS) - run if not any(re.search(f"{o}(_|$)", name) for o in other)}
    assert lacking == WITHOUT_HALVES
