"""Every rule, over shapes and attributes, against differences."""

from typing import Any

import numpy as np
import pytest

from app.engine.gradient.tables import RULES
from tests.engine.gradient.derivatives import check, model

Array = np.ndarray[Any, Any]
I = np.array  # noqa: E741

# Operator, attributes, operands: shapes of normal numbers, ranges (low, high, *shape) of uniform ones, or
# integers and arrays that are constant. The operands that are shapes or ranges are differentiated.
U = "uniform"
_ANY, _UNIT, _POSITIVE, _LARGE = (3, 4), (U, -0.9, 0.9, 3, 4), (U, 0.2, 3.0, 3, 4), (U, 1.1, 3.0, 3, 4)
UNARY = [
    (op, "", [_ANY]) for op in (
        "Abs", "Exp", "Sin", "Cos", "Tan", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Sigmoid", "Relu", "LeakyRelu",
        "Elu", "Selu", "Celu", "HardSigmoid", "HardSwish", "Softplus", "Softsign", "ThresholdedRelu", "Mish", "Gelu",
        "Erf", "Shrink", "Neg", "Identity", "Dropout",
    )
] + [
    ("Log", "", [_POSITIVE]), ("Sqrt", "", [_POSITIVE]), ("Reciprocal", "", [_POSITIVE]), ("Asin", "", [_UNIT]),
    ("Acos", "", [_UNIT]), ("Atanh", "", [_UNIT]), ("Acosh", "", [_LARGE]), ("LeakyRelu", "alpha=0.2", [_ANY]),
    ("Elu", "alpha=1.5", [_ANY]), ("Celu", "alpha=0.7", [_ANY]), ("Selu", "alpha=1.5, gamma=1.2", [_ANY]),
    ("HardSigmoid", "alpha=0.4, beta=0.3", [_ANY]), ("Gelu", 'approximate="tanh"', [_ANY]),
    ("ThresholdedRelu", "alpha=0.3", [_ANY]), ("Shrink", "lambd=0.4, bias=0.1", [_ANY]),
]  # fmt: skip
BINARY = [
    (op, "", [a, b])
    for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum")
    for a, b in (((3, 4), (3, 4)), ((2, 3, 4), (3, 1)), ((1,), (2, 3)), ((), (2, 2)), ((2, 1, 4), (3, 1)))
] + [
    ("Pow", "", [(U, 0.5, 2.0, 3, 4), (U, -2.0, 2.0, 4)]), ("Pow", "", [(3, 4), I(2.0)]), ("Pow", "", [(3, 4), I(3.0)]),
    ("Pow", "", [(3, 4), I(2)]), ("Pow", "", [(3, 4), I(0.0)]), ("Pow", "", [(U, 0.5, 2.0, 3), I([0.5, 1.0, -1.0])]),
    ("Mod", "fmod=1", [(U, 2.2, 2.8, 3), (U, 0.91, 0.95, 2, 3)]), ("PRelu", "", [(2, 3, 4), (3, 1)]),
    ("Where", "", [I([[True, False, True]]), (2, 3), (3,)]), ("Where", "", [I([[True], [False]]), (2, 3), ()]),
    ("Max", "", [(2, 3), (3,), (2, 1)]), ("Min", "", [(2, 3)]), ("Sum", "", [(2, 3), (3,), ()]), ("Mean", "", [(2, 3), (1, 3), ()]), ("Mean", "", [(2, 3, 4), (3, 1)]), ("Mean", "", [(2, 3)]),
    ("Clip", "", [(3, 4), (U, -0.6, -0.5), (U, 0.5, 0.6)]), ("Clip", "", [(3, 4), I(-0.5)]), ("Clip", "", [(3, 4), None, I(0.5)]),
    ("Clip", "", [(3, 4)]), ("CastLike", "", [(3, 4), I(1.0)]),
]  # fmt: skip
MOVEMENT = [
    ("Reshape", "", [(2, 6), I([3, -1])]), ("Reshape", "", [(2, 6), I([0, 2, 3])]), ("Flatten", "axis=2", [(2, 3, 4)]),
    ("Flatten", "axis=0", [(2, 3)]), ("Squeeze", "", [(1, 3, 1), I([0])]), ("Unsqueeze", "", [(3, 2), I([0, -1])]),
    ("Transpose", "perm=[2,0,1]", [(2, 3, 4)]), ("Transpose", "", [(2, 3, 4)]), ("Expand", "", [(3, 1), I([2, 1, 4])]),
    ("Expand", "", [(3, 1), I([1])]), ("Tile", "", [(2, 3), I([2, 3])]), ("Concat", "axis=-1", [(2, 3), (2, 1), (2, 2)]),
    ("Concat", "axis=0", [(2, 3), (1, 3)]), ("Slice", "", [(5, 6), I([1, -3]), I([4, 100])]),
    ("Slice", "", [(5, 6), I([-1]), I([-100]), I([1]), I([-2])]), ("Slice", "", [(5, 6), I([0]), I([6]), I([-1]), I([2])]),
    ("Slice", "", [(5, 6), I([4, 0]), I([0, 6]), I([0, 1]), I([-1, 4])]), ("Slice", "", [(5, 6), I([1]), I([-1])]),
    ("Pad", "", [(3, 4), I([1, 0, 2, 1])]), ("Pad", "", [(3, 4), I([1, -1, -1, 2]), ()]), ("Pad", "", [(3, 4), I([2, 1]), I(0.5), I([1])]),
    *(("Pad", f'mode="{m}"', [(3, 4), I([2, 1, 1, 3])]) for m in ("reflect", "edge", "wrap")),
    ("DepthToSpace", "blocksize=2", [(1, 8, 2, 3)]), ("DepthToSpace", 'blocksize=2, mode="CRD"', [(2, 8, 2, 3)]),
    ("SpaceToDepth", "blocksize=2", [(1, 2, 4, 6)]), ("Trilu", "", [(3, 4)]), ("Trilu", "upper=0", [(2, 4, 3), I(-1)]),
    ("ReverseSequence", "", [(4, 3), I([2, 4, 1])]), ("ReverseSequence", "batch_axis=0, time_axis=1", [(3, 4), I([2, 4, 1])]),
    *(("CumSum", f"exclusive={e}, reverse={r}", [(3, 4), I(1)]) for e in (0, 1) for r in (0, 1)),
]  # fmt: skip
INDEXING = [
    ("Gather", "", [(5, 3), I([[0, 2], [2, 4]])]), ("Gather", "axis=1", [(3, 5, 2), I([[0, 2, 2], [-1, 4, 0]])]),
    ("Gather", "axis=-1", [(3, 5), I(2)]), ("Gather", "axis=1", [(3, 5), I([1, 1], np.int32)]),
    ("GatherElements", "axis=1", [(3, 5), I([[0, 0, 1], [4, -1, 2]])]),
    ("GatherND", "", [(3, 4, 2), I([[0, 1], [2, 3], [0, 1]])]), ("GatherND", "batch_dims=1", [(2, 4, 3), I([[[1], [1]], [[0], [3]]])]),
    ("GatherND", "batch_dims=2", [(2, 2, 3), I([[[1], [0]], [[2], [2]]])]), ("GatherND", "", [(3, 4), I([[-1, 1]])]),
    ("ScatterElements", "axis=1", [(3, 5), I([[0, 4], [1, 2]]), (2, 2)]),
    ("ScatterElements", 'reduction="add"', [(3, 2), I([[0, 0], [0, 2]]), (2, 2)]),
    ("ScatterND", "", [(4, 3), I([[1], [3]]), (2, 3)]), ("ScatterND", 'reduction="add"', [(4, 3), I([[1], [1]]), (2, 3)]),
    ("TopK", "", [(3, 5), I([2])]), ("TopK", "axis=0, largest=0", [(5, 2), I([3])]),
]  # fmt: skip
_REDUCTIONS = [
    f"Reduce{n}" for n in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
]
REDUCTIONS = [
    *((op, "", [(2, 3, 4), I([1])]) for op in _REDUCTIONS), *((op, "keepdims=0", [(2, 3, 4), I([0, -1])]) for op in _REDUCTIONS),
    *((op, "keepdims=0", [(2, 3)]) for op in _REDUCTIONS), ("ReduceLogSum", "", [(U, 0.5, 2.0, 2, 3), I([1])]),
    ("ReduceSum", "noop_with_empty_axes=1", [(2, 3)]), ("ReduceMax", "noop_with_empty_axes=1", [(2, 3)]),
    ("GlobalAveragePool", "", [(2, 3, 4, 2)]), ("GlobalMaxPool", "", [(2, 3, 4)]),
]  # fmt: skip
PRODUCTS = [
    *(("MatMul", "", [a, b]) for a, b in (
        ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
        ((5, 2, 3), (5, 3, 4)), ((2, 1, 2, 3), (4, 3, 2)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((5, 2, 3), (1, 3, 4)),
    )),
    *(("Gemm", f"alpha=0.5, beta=2.0, transA={t}, transB={r}", [(2, 3)[:: 1 - 2 * t], (3, 4)[:: 1 - 2 * r], (4,)]) for t in (0, 1) for r in (0, 1)),
    ("Gemm", "", [(2, 3), (3, 4), (2, 1)]), ("Gemm", "", [(2, 3), (3, 4), ()]), ("Gemm", "", [(2, 3), (3, 4)]),
    ("Einsum", 'equation="bij,bjk->bik"', [(2, 3, 4), (2, 4, 2)]), ("Einsum", 'equation="ij->i"', [(2, 3)]),
    ("Einsum", 'equation="ij,jk"', [(2, 3), (3, 2)]), ("Einsum", 'equation="i,j->ij"', [(2,), (3,)]),
    ("Einsum", 'equation="ij,ik,i->jk"', [(2, 3), (2, 2), (2,)]),
]  # fmt: skip
CONVOLUTION = [
    *(("Conv", a, [(2, 4, 7), (6, 4 // g, 3), (6,)]) for a, g in (
        ("", 1), ("strides=[2], pads=[1,2]", 1), ("dilations=[2], pads=[2,1]", 1), ("group=2, strides=[3]", 2), ('auto_pad="SAME_LOWER", strides=[2]', 1),
    )),
    *(("Conv", a, [(2, 4, 6, 7), (4, 4 // g, 3, 2), (4,)]) for a, g in (
        ("", 1), ("strides=[2,3], pads=[1,0,2,1]", 1), ("group=4, pads=[1,1,1,1], strides=[2,2]", 4), ("group=2, dilations=[2,3]", 2),
        ('auto_pad="SAME_UPPER", strides=[2,2]', 1), ('auto_pad="SAME_LOWER", group=2, strides=[2,3]', 2), ('auto_pad="VALID", strides=[2,4]', 1),
        ("strides=[4,5]", 1), ("strides=[3,3], dilations=[2,2], pads=[3,3,2,2]", 1), ("kernel_shape=[3,2], strides=[2,2], dilations=[1,3]", 1),
    )),
    ("Conv", "group=4", [(1, 4, 5, 5), (8, 1, 3, 3)]), ("Conv", "strides=[2,2]", [(2, 3, 5, 5), (4, 3, 1, 1)]),
    ("Conv", "strides=[1,2,2], pads=[1,0,1,0,1,1]", [(1, 2, 3, 4, 5), (3, 2, 2, 3, 2), (3,)]), ("Conv", "group=2", [(1, 2, 3, 3, 4), (2, 1, 2, 2, 2)]),
    *(("ConvTranspose", a, [(2, 4, 3, 4), (4, 6 // g, 3, 2), (6,)]) for a, g in (
        ("", 1), ("strides=[2,3], pads=[1,0,1,1]", 1), ("strides=[2,2], output_padding=[1,1]", 1), ("group=2, strides=[2,1]", 2), ("dilations=[2,2]", 1),
        ("strides=[2,2], output_shape=[6,8]", 1), ('strides=[2,2], auto_pad="SAME_UPPER"', 1), ('strides=[2,2], auto_pad="SAME_LOWER"', 1),
        ("group=2, strides=[3,3], dilations=[2,1], output_padding=[2,2]", 2),
    )),
    ("ConvTranspose", "strides=[2]", [(2, 2, 4), (2, 3, 3)]), ("ConvTranspose", "strides=[2,1,2]", [(1, 2, 2, 2, 3), (2, 1, 2, 2, 2)]),
]  # fmt: skip
POOLING = [
    *(("MaxPool", f"kernel_shape=[3,2], {a}", [(2, 3, 6, 7)]) for a in (
        "strides=[2,2]", "pads=[1,0,1,1]", "dilations=[2,2], strides=[1,2]", 'auto_pad="SAME_UPPER", strides=[2,2]', "ceil_mode=1, strides=[2,3]", "strides=[4,4]",
    )),
    ("MaxPool", "kernel_shape=[3], strides=[2]", [(2, 3, 8)]), ("MaxPool", "kernel_shape=[2,2,2], strides=[2,1,1]", [(1, 2, 4, 3, 3)]),
    *(("AveragePool", f"kernel_shape=[3,2], {a}", [(2, 3, 6, 7)]) for a in (
        "strides=[2,2]", "pads=[1,0,1,1]", "pads=[1,1,1,1], count_include_pad=1", "dilations=[2,2], strides=[1,2], pads=[1,1,0,0]", 'auto_pad="SAME_UPPER", strides=[2,2]',
        'auto_pad="SAME_LOWER", strides=[2,2]', "ceil_mode=1, strides=[2,3]", "ceil_mode=1, strides=[2,3], pads=[1,0,1,0], count_include_pad=1", "strides=[4,4]",
    )),
    ("AveragePool", "kernel_shape=[3], strides=[2]", [(2, 3, 8)]), ("AveragePool", "kernel_shape=[2,2,2], pads=[1,0,0,0,1,0]", [(1, 2, 3, 3, 3)]),
]  # fmt: skip
_CHANNELS = [(2, 4, 3, 3), (4,), (4,)]
NORMALIZATION = [
    ("BatchNormalization", "", [*_CHANNELS, (4,), (U, 0.5, 2.0, 4)]), ("BatchNormalization", "epsilon=0.1", [(3, 2), (2,), (2,), (2,), (U, 0.5, 2.0, 2)]),
    ("LayerNormalization", "", [(2, 3, 4), (4,), (4,)]), ("LayerNormalization", "axis=1, epsilon=0.01", [(2, 3, 4), (3, 4), (3, 4)]),
    ("LayerNormalization", "axis=-2", [(2, 3, 4), (3, 4)]), ("InstanceNormalization", "", _CHANNELS), ("InstanceNormalization", "epsilon=0.1", [(2, 3, 5), (3,), (3,)]),
    ("GroupNormalization", "num_groups=2", _CHANNELS), ("GroupNormalization", "num_groups=1, epsilon=0.1", [(2, 4, 5), (4,), (4,)]),
    ("LpNormalization", "", [(3, 4)]), ("LpNormalization", "axis=0", [(3, 4)]), ("LRN", "size=3, alpha=0.5, beta=0.6, bias=1.5", [(2, 5, 2, 3)]),
    ("LRN", "size=4, alpha=0.5", [(2, 6, 2)]), ("Softmax", "", [(3, 4)]), ("Softmax", "axis=1", [(2, 3, 4)]), ("LogSoftmax", "axis=0", [(3, 4)]),
]  # fmt: skip
_CLASSES = I([0, 2, 1, 2])
_PIXELS = I([[0, 2], [1, 1]])
LOSSES = [
    (op, f'reduction="{r}"{more}', operands)
    for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") for r in ("mean", "sum", "none") for more in ("", ", ignore_index=2")
    for operands in ([(4, 3), _CLASSES], [(4, 3), _CLASSES, I([0.5, 2.0, 1.5])], [(2, 3, 2), _PIXELS], [(2, 3, 2), _PIXELS, I([0.5, 2.0, 1.5])])
]  # fmt: skip
_SCALES = I([1.0, 1.0, 2.0, 3.0], np.float32)
_ODD = I([1.0, 1.0, 0.7, 1.6], np.float32)
_EVEN = I([1.0, 1.0, 0.5, 4 / 3], np.float32)  # the reference has other corners where a size is cut
RESAMPLING = [
    *(("Resize", f'mode="{m}", coordinate_transformation_mode="{c}"', [(1, 2, 4, 3), None, s if c != "align_corners" else _EVEN])
      for m in ("nearest", "linear", "cubic") for c in ("half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric") for s in (_SCALES, _ODD)),
    ("Resize", 'mode="linear", antialias=1', [(1, 1, 6, 5), None, None, I([1, 1, 3, 2])]), ("Resize", 'mode="nearest", nearest_mode="floor"', [(1, 2, 3), None, None, I([1, 2, 7])]),
]  # fmt: skip
ROWS = [
    *UNARY, *BINARY, *MOVEMENT, *INDEXING, *REDUCTIONS, *PRODUCTS, *CONVOLUTION, *POOLING, *NORMALIZATION, *LOSSES, *RESAMPLING,
]  # fmt: skip


# The reference computes these in single precision, whatever the type of the operands.
SINGLE = ("Erf", "Gelu", "GroupNormalization")


def _operand(rng: Any, given: Any) -> Array | None:
    if given is None:
        return None
    if isinstance(given, np.ndarray):
        return given
    if given[:1] == (U,):
        return np.asarray(rng.uniform(given[1], given[2], given[3:]))
    return np.asarray(rng.standard_normal(given))


@pytest.mark.parametrize(("op", "attributes", "operands"), ROWS)
def test_the_gradient_of_every_operand_is_that_of_differences(
    op: str, attributes: str, operands: list[Any]
) -> None:
    rng = np.random.default_rng(0)
    arrays = [_operand(rng, given) for given in operands]
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    inputs = {
        n: a for n, a, g in zip(names, arrays, operands) if a is not None and not isinstance(g, np.ndarray)
    }
    fixed = {n: a for n, a in zip(names, arrays) if a is not None and n not in inputs}
    node = op + (f"<{attributes}>" if attributes else "") + f"({', '.join(names)})"
    # The elements of the result weigh differently, so that none can be taken for another.
    body = f"y = {node} s = Sin(y) k = Mul(y, half) loss = Add(s, k)"
    built = model(body, inputs, {**fixed, "half": I(0.5)})
    coarse = op in SINGLE
    check(
        built, inputs, tuple(inputs), step=1e-3 if coarse else 1e-6, tolerance=1e-4 if coarse else 1e-6,
        full_check=op != "Celu",
    )  # fmt: skip


# Graphs of rules that the table above has no room for: several outputs, several types, other opsets.
GRAPHS = {
    "split": ("a, b, c = Split<axis=1, num_outputs=3>(x) p = Mul(a, c) loss = Sin(p)", {"x": (2, 7)}, 21),
    "split by sizes": ("a, b = Split<axis=-1>(x, sizes) p = Exp(b) loss = Sin(p)", {"x": (2, 7)}, 21),
    "cast": ("y = Cast<to=11>(x) loss = Sin(y)", {"x": (2, 3)}, 21),
    "rms": ("y = RMSNormalization<axis=-1>(x, w) loss = Sin(y)", {"x": (2, 3, 4), "w": (4,)}, 23),
    "swish": ("y = Swish<alpha=1.3>(x) loss = Sin(y)", {"x": (2, 3)}, 24),
    "training batch norm": (
        "y, m, v = BatchNormalization<training_mode=1>(x, w, b, mean, var) loss = Sin(y)",
        {"x": (4, 2, 3), "w": (2,), "b": (2,)}, 21,
    ),
    "log probabilities": (
        "l, p = SoftmaxCrossEntropyLoss(x, classes) q = Exp(p) r = Sin(q) loss = Add(l, r)", {"x": (4, 3)}, 21,
    ),
    "only log probabilities": ("l, p = SoftmaxCrossEntropyLoss(x, classes) loss = Sin(p)", {"x": (4, 3)}, 21),
    "both outputs of a maximum": ("v, i = TopK(x, two) j = GatherElements<axis=1>(x, i) loss = Mul(v, j)", {"x": (3, 4)}, 21),
    "several uses": ("a = Mul(x, x) b = Add(a, x) c = Mul(b, a) loss = Sin(c)", {"x": (2, 3)}, 21),
    "indices do not differentiate": ("i = ArgMax<axis=1>(x) f = Cast<to=11>(i) loss = Mul(x, f)", {"x": (3, 3)}, 21),
    "a name that is taken": ("x_grad = Sin(x) loss = Mul(x_grad, x)", {"x": (3,)}, 21),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_gradients_of_small_graphs(name: str) -> None:
    body, shapes, opset = GRAPHS[name]
    rng = np.random.default_rng(0)
    inputs = {n: rng.standard_normal(shape) for n, shape in shapes.items()}
    fixed = {"sizes": I([3, 4]), "two": I([2]), "classes": _CLASSES, "mean": np.zeros(2), "var": np.ones(2)}
    used = {n: a for n, a in fixed.items() if n in body}
    check(model(body, inputs, used, opset), inputs, tuple(inputs), step=1e-5, tolerance=1e-5)


def test_every_rule_has_a_test() -> None:
    missing = set(RULES) - {row[0] for row in ROWS} - {"Cast", "Split", "RMSNormalization", "Swish"}
    assert not missing
