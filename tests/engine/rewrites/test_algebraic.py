"""Each simplification on its smallest graph: what remains, and that onnxruntime computes the same from it."""

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.core import graph
from app.engine.model.load import load
from app.engine.rewrites.convolutions.affine import per_channel, scale_output_channels
from app.engine.runtime.oracle import evaluate
from app.engine.types.target import PRESETS
from tests.engine.canonical import Array, assert_same_outputs, canonical, exported, operators, runtime, saved

HEAD = '<ir_version: 10, opset_import: ["": 21]>'
RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return RANDOM.uniform(0.5, 2.0, shape).astype(np.float32)


def statistics(channels: int) -> dict[str, Array]:
    """Scale, bias, mean and variance of a normalization."""
    return {"s": normal(channels), "t": normal(channels), "m": normal(channels), "v": positive(channels)}


def simplified(signature: str, body: str, folder: Path, weights: dict[str, Array] | None = None) -> list[str]:
    """The operators that remain of a graph, which computes the same as before."""
    path = saved(f"{HEAD} g {signature} {{ {body} }}", folder, weights)
    compilation = canonical(path)
    assert_same_outputs(path, compilation)
    return operators(compilation.graph)


X = "(float[2,3,4,4] x) => (float[2,3,4,4] y)"


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(x, one)",
        "y = Mul(ones, x)",
        "y = Div(x, one)",
        "y = Pow(x, one)",
        "y = Add(zero, x)",
        "y = Sub(x, zero)",
        "y = Identity(x)",
        "y = Dropout(x)",
        "y = Dropout(x, half, no)",
        "y = Cast<to = 1>(x)",
        "y = CastLike(x, one)",
        "y = Transpose<perm = [0, 1, 2, 3]>(x)",
        "y = Reshape(x, shape)",
        "y = Expand(x, shape)",
        "y = Tile(x, four_ones)",
        "y = Concat<axis = 1>(x)",
        "y = Concat<axis = 1>(empty, x)",
        "y = Sum(x)",
        "y = Pad(x, eight_zeros)",
        "y = Slice(x, first, last)",
        "y = Split<num_outputs = 1>(x)",
        "y = Resize(x, , four_ones_float)",
        'y = Resize<mode = "linear">(x, , , extents)',
        'y = Resize<mode = "cubic", coordinate_transformation_mode = "align_corners">(x, , , extents)',
    ],
)
def test_what_does_nothing_goes(body: str, tmp_path: Path) -> None:
    weights = {
        "one": np.float32(1).reshape(1),
        "ones": np.ones((3, 1, 1), np.float32),
        "zero": np.zeros((), np.float32),
        "half": np.array(0.5, np.float32),
        "no": np.array(False),
        "shape": np.array([2, 3, 4, 4]),
        "four_ones": np.ones(4, np.int64),
        "four_ones_float": np.ones(4, np.float32),
        "extents": np.array([2, 3, 4, 4]),
        "eight_zeros": np.zeros(8, np.int64),
        "empty": np.zeros((2, 0, 4, 4), np.float32),
        "first": np.array([0]),
        "last": np.array([2**31]),
    }
    # Behind a Relu, so that the output is not the input itself.
    behind = re.sub(r"\bx\b", "r", body)
    assert simplified(X, f"r = Relu(x) {behind}", tmp_path, weights) == ["Relu"]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("y = Mul(x, wide)", "Mul"),  # makes the shape larger
        ("y = Add(x, small)", "Add"),
        ("y = Sub(zero, x)", "Sub"),
        ("y = Pow(one, x)", "Pow"),
        ("y = Slice(x, last, first, axis, back)", "Slice"),
    ],
)
def test_what_looks_neutral_and_is_not_stays(body: str, left: str, tmp_path: Path) -> None:
    weights = {
        "one": np.float32(1).reshape(1),
        "zero": np.zeros(1, np.float32),
        "wide": np.ones((4, 3), np.float32),
        "small": np.full(1, 1e-30, np.float32),
        "first": np.array([-10]),
        "last": np.array([10]),
        "axis": np.array([1]),
        "back": np.array([-1]),
    }
    shape = "float[4,3]" if "wide" in body else "float[1,3]"
    assert simplified(f"(float[1,3] x) => ({shape} y)", body, tmp_path, weights) == [left]


@pytest.mark.parametrize(
    ("exponent", "left"), [(2.0, "Mul"), (0.5, "Sqrt"), (-1.0, "Reciprocal"), (3.0, "Pow"), (0.0, "Pow")]
)
def test_common_powers_are_other_operators(exponent: float, left: str, tmp_path: Path) -> None:
    weights = {"e": np.array(exponent, np.float32)}
    body = "a = Abs(x) y = Pow(a, e)"
    assert simplified("(float[2,3] x) => (float[2,3] y)", body, tmp_path, weights) == ["Abs", left]


def test_a_power_of_integers_is_a_product_of_integers(tmp_path: Path) -> None:
    path = saved(f"{HEAD} g (int64[3] x) => (int64[3] y) {{ y = Pow(x, e) }}", tmp_path, {"e": np.array(2.0)})
    compilation = canonical(path)
    assert operators(compilation.graph) == ["Mul"]
    found = runtime(exported(compilation.model, tmp_path), {"x": np.array([-3, 0, 5])})
    np.testing.assert_array_equal(found["y"], [9, 0, 25])


@pytest.mark.parametrize("divisor", [6.0, 0.25, -3e5, [1.0, 2.0, 3.0]])
def test_a_division_by_a_constant_is_a_product(divisor: float | list[float], tmp_path: Path) -> None:
    weights = {"c": np.array(divisor, np.float32)}
    assert simplified("(float[2,3] x) => (float[2,3] y)", "y = Div(x, c)", tmp_path, weights) == ["Mul"]


@pytest.mark.parametrize("divisor", [0.0, 1e-39, 3e38, np.inf])
def test_a_division_stays_where_the_reciprocal_is_not_a_normal_number(divisor: float, tmp_path: Path) -> None:
    path = saved(
        f"{HEAD} g (float[2] x) => (float[2] y) {{ y = Div(x, c) }}",
        tmp_path,
        {"c": np.array(divisor, np.float32)},
    )
    assert operators(canonical(path).graph) == ["Div"]


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("d = Div(x, c) y = Floor(d)", ["Div", "Floor"]),
        ("d = Div(x, c) e = Add(d, x) y = Cast<to = 7>(e)", ["Div", "Add", "Cast"]),
        ("d = Div(x, c) e = Sigmoid(d) y = Floor(e)", ["Mul", "Sigmoid", "Floor"]),
        ("d = Div(x, p) y = Floor(d)", ["Mul", "Floor"]),  # a power of two has an exact reciprocal
    ],
)
def test_a_division_before_a_step_stays_unless_it_is_exact(
    body: str, left: list[str], tmp_path: Path
) -> None:
    """49 / 49 is 1, but 49 * (1 / 49) is less: its floor would be another integer."""
    weights = {"c": np.array(49, np.float32), "p": np.array(8, np.float32)}
    kind = "int64" if "Cast" in body else "float"
    path = saved(f"{HEAD} g (float[50] x) => ({kind}[50] y) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    assert operators(compilation.graph) == left
    x = np.arange(50, dtype=np.float32) * 49
    np.testing.assert_array_equal(
        runtime(exported(compilation.model, tmp_path), {"x": x})["y"], runtime(path, {"x": x})["y"]
    )


def test_an_integer_division_stays(tmp_path: Path) -> None:
    path = saved(f"{HEAD} g (int64[3] x) => (int64[3] y) {{ y = Div(x, c) }}", tmp_path, {"c": np.array(2)})
    assert operators(canonical(path).graph) == ["Div"]


def test_a_sum_is_a_chain_of_additions_that_broadcast(tmp_path: Path) -> None:
    signature = "(float[3] a, float[2,1] b, float[2,3] c) => (float[2,3] y)"
    assert simplified(signature, "y = Sum(a, b, c)", tmp_path) == ["Add", "Add"]


CONV = [
    # attributes of Conv, weight, input, output
    ("", (4, 3, 3, 3), "2,3,6,7", "2,4,4,5"),
    ("group = 3", (6, 1, 3, 3), "2,3,6,7", "2,6,4,5"),
    ("strides = [2, 1], pads = [1, 0, 1, 2]", (4, 3, 3, 3), "2,3,6,7", "2,4,3,7"),
]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize(("attributes", "weight", "shape", "result"), CONV)
def test_a_normalization_folds_into_the_convolution_before_it(
    attributes: str, weight: tuple[int, ...], shape: str, result: str, bias: bool, tmp_path: Path
) -> None:
    weights = {"w": normal(*weight), **statistics(weight[0])} | ({"b": normal(weight[0])} if bias else {})
    conv = f"Conv<{attributes}>(x, w{', b' if bias else ''})".replace("<>", "")
    body = f"c = {conv} y = BatchNormalization<epsilon = 0.01>(c, s, t, m, v)"
    signature = f"(float[{shape}] x) => (float[{result}] y)"
    assert simplified(signature, body, tmp_path, weights) == ["Conv"]


@pytest.mark.parametrize("groups", [1, 2])
def test_a_normalization_folds_through_a_bias_into_a_transposed_convolution(
    groups: int, tmp_path: Path
) -> None:
    weights = {"w": normal(4, 6 // groups, 2, 2), "b": normal(1, 6, 1, 1), **statistics(6)}
    body = (
        f"c = ConvTranspose<strides = [2, 2], group = {groups}>(x, w) "
        "a = Add(c, b) y = BatchNormalization(a, s, t, m, v)"
    )
    signature = "(float[1,4,3,3] x) => (float[1,6,6,6] y)"
    assert simplified(signature, body, tmp_path, weights) == ["ConvTranspose"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Mul(c, k)",
        "y = Add(k, c)",
        "y = Sub(c, k)",
        "a = Mul(c, k) y = Add(a, k)",
        "y = Div(c, k)",
        "y = Mul(c, two)",
    ],
)
def test_a_scale_or_shift_per_channel_folds_into_the_convolution(body: str, tmp_path: Path) -> None:
    weights = {"w": normal(4, 3, 1, 1), "b": normal(4), "k": positive(4, 1, 1), "two": np.float32(2)}
    signature = "(float[1,3,5,5] x) => (float[1,4,5,5] y)"
    left = simplified(
        signature, f"c = Conv(x, w, b) {body}", tmp_path, {k: np.asarray(v) for k, v in weights.items()}
    )
    assert left == ["Conv"]


@pytest.mark.parametrize(
    ("outputs", "body", "why"),
    [
        ("float[1,4,5,5] y, float[1,4,5,5] c", "y = Mul(c, k)", "an output of the graph needs the value"),
        ("float[1,4,5,5] y", "a = Mul(c, k) y = Add(a, c)", "another node reads the value"),
        ("float[1,4,5,5] y", "y = Mul(c, row)", "the factor varies along another axis"),
        ("float[2,4,5,5] y", "y = Mul(c, wide)", "the product is larger"),
        ("float[1,4,5,5] y", "y = Sub(k, c)", "the sign changes"),
    ],
)
def test_a_scale_stays_where(outputs: str, body: str, why: str, tmp_path: Path) -> None:
    weights = {
        "w": normal(4, 3, 1, 1),
        "k": positive(4, 1, 1),
        "row": positive(5),
        "wide": positive(2, 4, 1, 1),
    }
    signature = f"(float[1,3,5,5] x) => ({outputs})"
    left = simplified(signature, f"c = Conv(x, w) {body}", tmp_path, weights)
    assert left[0] == "Conv", why
    assert len(left) > 1, why


def test_a_value_read_by_a_branch_counts_as_read(tmp_path: Path) -> None:
    body = """c = Conv(x, w)
        a = Mul(c, k)
        b = If (p) <then_branch = t () => (float[1,4,5,5] d) { d = Relu(c) },
                    else_branch = e () => (float[1,4,5,5] e) { e = Neg(a) }>
        y = Add(a, b)"""
    weights = {"w": normal(4, 3, 1, 1), "k": positive(4, 1, 1)}
    path = saved(f"{HEAD} g (float[1,3,5,5] x, bool p) => (float[1,4,5,5] y) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    assert operators(compilation.graph) == ["Conv", "Mul", "If", "Add"]
    for p in (True, False):
        assert_same_outputs(path, compilation, p=np.array(p))


def test_a_weight_that_two_convolutions_share_is_scaled_for_one_only(tmp_path: Path) -> None:
    body = "c = Conv(x, w) y = Mul(c, k) z = Conv(x, w)"
    weights = {"w": normal(4, 3, 1, 1), "k": positive(4, 1, 1)}
    signature = "(float[1,3,5,5] x) => (float[1,4,5,5] y, float[1,4,5,5] z)"
    # The equal convolutions are one before the scale is looked at, and then it has two readers.
    assert simplified(signature, body, tmp_path, weights) in (["Conv", "Mul"], ["Conv", "Conv"])


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 5), (2, 3, 4, 4)])
def test_a_normalization_without_a_convolution_is_a_product_and_a_sum(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    dims = ",".join(map(str, shape))
    signature = f"(float[{dims}] x) => (float[{dims}] y)"
    body = "r = Relu(x) y = BatchNormalization(r, s, t, m, v)"
    assert simplified(signature, body, tmp_path, statistics(3)) == ["Relu", "Mul", "Add"]


def test_a_normalization_in_training_stays(tmp_path: Path) -> None:
    """It normalizes by the statistics of the batch, not by those that it is given."""
    body = "c = Conv(x, w) y, a, b = BatchNormalization<training_mode = 1>(c, s, t, m, v)"
    path = saved(
        f"{HEAD} g (float[2,3,4,4] x) => (float[2,3,4,4] y) {{ {body} }}",
        tmp_path,
        {"w": normal(3, 3, 1, 1), **statistics(3)},
    )
    assert operators(canonical(path).graph) == ["Conv", "BatchNormalization"]


def test_an_old_normalization_that_trains_is_told_by_its_outputs(tmp_path: Path) -> None:
    """Opset 9 has no training_mode; the converter refuses such a node, and it must not fold either."""
    text = (
        '<ir_version: 4, opset_import: ["": 9]> g (float[2,3,4,4] x) => (float[2,3,4,4] y) '
        "{ c = Conv(x, w) y, a, b, d, e = BatchNormalization(c, s, t, m, v) }"
    )
    compilation = canonical(saved(text, tmp_path, {"w": normal(3, 3, 1, 1), **statistics(3)}))
    assert operators(compilation.graph) == ["Conv", "BatchNormalization"]


def test_a_normalization_with_computed_statistics_stays(tmp_path: Path) -> None:
    body = "m = GlobalAveragePool(x) flat = Reshape(m, three) y = BatchNormalization(x, s, t, flat, v)"
    weights = {**statistics(3), "three": np.array([3])}
    del weights["m"]
    left = simplified("(float[1,3,4,4] x) => (float[1,3,4,4] y)", body, tmp_path, weights)
    assert left[-1] == "BatchNormalization"


def test_half_precision_is_not_regrouped(tmp_path: Path) -> None:
    weights = {"w": normal(4, 3, 1, 1).astype(np.float16), "k": positive(4, 1, 1).astype(np.float16)}
    signature = "(float16[1,3,5,5] x) => (float16[1,4,5,5] y)"
    path = saved(f"{HEAD} g {signature} {{ c = Conv(x, w) y = Mul(c, k) }}", tmp_path, weights)
    target = next(t for t in PRESETS if "numba-cpu" not in t.backends)
    assert operators(canonical(path, target=target).graph) == ["Conv", "Mul"]
    assert operators(canonical(path).graph) == ["Cast", "Conv", "Cast"]  # the product is one of float32


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    op=st.sampled_from(["Conv", "MaxPool", "AveragePool", "ConvTranspose", "LpPool"]),
    mode=st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
    extent=st.integers(min_value=5, max_value=12),
    kernel=st.integers(min_value=1, max_value=4),
    stride=st.integers(min_value=1, max_value=3),
    dilation=st.integers(min_value=1, max_value=2),
)
def test_automatic_pads_become_the_pads_that_onnxruntime_uses(
    op: str, mode: str, extent: int, kernel: int, stride: int, dilation: int, tmp_path: Path
) -> None:
    convolution = op.startswith("Conv")
    if mode != "VALID" or op == "ConvTranspose":
        # onnxruntime refuses dilated SAME convolutions and pads dilated pools as if they were not.
        dilation, stride = 1, min(stride, kernel)  # it also refuses gaps between windows
    extent = max(extent, (kernel - 1) * dilation + 1)
    attributes = (
        f'auto_pad = "{mode}", strides = [{stride}], kernel_shape = [{kernel}], dilations = [{dilation}]'
    )
    body = f"y = {op}<{attributes}>(x{', w' if convolution else ''})"
    weights = (
        {"w": np.ones((1, 1, kernel), np.float32) + np.arange(kernel, dtype=np.float32)}
        if convolution
        else {}
    )
    path = saved(f"{HEAD} g (float[1,1,{extent}] x) => (float[1,1,e] y) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    (node,) = compilation.graph
    assert "auto_pad" not in node.attributes
    assert_same_outputs(path, compilation)


def test_scaled_weights_are_those_of_each_output_channel() -> None:
    """ConvTranspose weights are [input channels, output channels / groups], groups along the first axis."""
    w = np.ones((4, 3, 1), np.float32)
    s = np.arange(6, dtype=np.float64)
    node = ir.Node("", "ConvTranspose", [None, None], [ir.AttrInt64("group", 2)])
    found = scale_output_channels(w, s, node)[..., 0]
    np.testing.assert_array_equal(found, [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]])
    plain = scale_output_channels(np.ones((6, 2, 1), np.float32), s, ir.Node("", "Conv", [None, None]))
    np.testing.assert_array_equal(plain[:, 0, 0], s)


@pytest.mark.parametrize(
    ("shape", "found"),
    [((), True), ((1,), True), ((3, 1, 1), True), ((1, 3, 1, 1), True), ((4,), False), ((2, 1, 1, 1), False)],
)
def test_operands_per_channel_vary_along_axis_1_only(shape: tuple[int, ...], found: bool) -> None:
    like = ir.Value(name="x", shape=ir.Shape((2, 3, 5, 4)), type=ir.TensorType(ir.DataType.FLOAT))
    array = np.full(shape, 2.0, np.float32)
    operand = ir.Value(name="k", shape=ir.Shape(shape), type=like.type, const_value=ir.tensor(array))
    vector = per_channel(operand, like)
    assert (vector is not None) == found
    if vector is not None:
        np.testing.assert_array_equal(vector, [2, 2, 2])


def test_unused_optional_outputs_and_inputs_are_left_out(tmp_path: Path) -> None:
    body = 'a, i = MaxPool<kernel_shape = [2]>(x) b = Clip(a, "", "") y = Relu(b)'
    path = saved(f"{HEAD} g (float[1,1,6] x) => (float[1,1,5] y) {{ {body} }}", tmp_path)
    compilation = canonical(path)
    pool, clip, _ = compilation.graph
    assert len(pool.outputs) == 1
    assert len(clip.inputs) == 1
    assert all(graph.shape(v) is not None for v in graph.values(compilation.graph))


WINDOWS = """s = MatMul(q, k) b = Add(s, bias) i = Constant <value_ints = [2, 3, 2, 5, 5]> ()
    w = Reshape(b, i) m = Add(w, mask) o = Constant <value_ints = [6, 2, 5, 5]> () r = Reshape(m, o)
    p = Softmax <axis = -1> (r) y = MatMul(p, v)"""
HEADS_OF_WINDOWS = "(float[6,2,5,4] q, float[6,2,4,5] k, float[6,2,5,4] v) => (float[6,2,5,4] y)"


@pytest.mark.parametrize("images", [1, 2])
def test_masks_of_attention_within_windows_are_one(tmp_path: Path, images: int) -> None:
    weights = {"bias": normal(1, 2, 5, 5), "mask": normal(images, 3, 1, 5, 5)}
    assert simplified(HEADS_OF_WINDOWS, WINDOWS, tmp_path, weights) == ["MatMul", "Add", "Softmax", "MatMul"]


def test_masks_that_something_else_reads_stay_apart(tmp_path: Path) -> None:
    weights = {"bias": normal(1, 2, 5, 5), "mask": normal(1, 3, 1, 5, 5)}
    both = HEADS_OF_WINDOWS.replace("float[6,2,5,4] y)", "float[6,2,5,4] y, float[2,3,2,5,5] m)")
    assert simplified(both, WINDOWS, tmp_path, weights).count("Reshape") == 2


MASKED = "i = NonZero(mask) t = Transpose<perm = [1, 0]>(i)"


@pytest.mark.parametrize(
    ("mask", "x", "operators_left"),
    [
        ("bool[6]", "float[6,3]", ["Compress"]),
        ("bool[2,3]", "float[2,3]", ["Compress", "Reshape", "Reshape"]),
        ("bool[2,3]", "int64[2,3,4]", ["Compress", "Reshape", "Reshape"]),
        ("float[2,3]", "float[2,3,4]", ["Cast", "Compress", "Reshape", "Reshape"]),
        ("bool[2,3]", "float[2,4]", ["GatherND", "NonZero", "Transpose"]),
    ],
)
def test_elements_under_a_mask_are_compressed(
    mask: str, x: str, operators_left: list[str], tmp_path: Path
) -> None:
    kind = x.split("[")[0]
    path = saved(f"{HEAD} g ({mask} mask, {x} x) => ({kind} y) {{ {MASKED} y = GatherND(x, t) }}", tmp_path)
    compilation = canonical(path)
    assert_same_outputs(path, compilation)
    assert sorted(operators(compilation.graph)) == operators_left


@pytest.mark.parametrize(("image", "points"), [(1, 11), (11, 1)], ids=["wide grid", "wide image"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_an_image_and_its_grid_get_one_type(image: int, points: int, mode: str, tmp_path: Path) -> None:
    kinds = {1: "float", 11: "double"}
    text = f"""{HEAD} g ({kinds[image]}[1,2,5,6] x, {kinds[points]}[1,3,4,2] grid) => ({kinds[image]}[1,2,3,4] y) {{
        y = GridSample<mode = "{mode}">(x, grid)
    }}"""
    path = saved(text, tmp_path)
    compilation = canonical(path)
    (sampled,) = (n for n in compilation.graph if n.op_type == "GridSample")
    assert graph.operand(sampled, 0).dtype == graph.operand(sampled, 1).dtype
    x = RANDOM.standard_normal((1, 2, 5, 6)).astype(kinds[image].replace("float", "float32"))
    grid = RANDOM.uniform(-1, 1, (1, 3, 4, 2)).astype(kinds[points].replace("float", "float32"))
    expected = evaluate(load(path).model, {"x": x, "grid": grid})["y"]
    written = load(exported(compilation.model, tmp_path)).model
    found = evaluate(written, {"x": x, "grid": grid})["y"]
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-5)


EXCITED = "p = GlobalAveragePool(c) g = Sigmoid(p) y = Mul(c, g)"


@pytest.mark.parametrize("batch", ["2", "N"])
@pytest.mark.parametrize(
    ("channels", "body"),
    [
        ((6, 4), f"c = Conv<kernel_shape = [1, 1]>(x, w, b) {EXCITED}"),
        ((6, 2), f"c = Conv<group = 2>(x, w, b) {EXCITED}"),
        ((2, 4), "c = Conv(x, w) y = GlobalAveragePool(c)"),
    ],
)
def test_the_mean_of_a_pointwise_convolution_is_taken_before_it(
    channels: tuple[int, int], body: str, batch: str, tmp_path: Path
) -> None:
    weights = {"w": normal(*channels, 1, 1), "b": normal(channels[0])}
    path = saved(f"{HEAD} g (float[{batch},4,5,3] x) => (y) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path, shapes={"x": (2, 4, 5, 3)})
    assert_same_outputs(path, compilation)
    (pool,) = (n for n in compilation.graph if n.op_type == "GlobalAveragePool")
    assert pool.inputs[0] is compilation.graph.inputs[0]


@pytest.mark.parametrize(
    "body",
    [
        f"c = Conv(x, wide) {EXCITED}",
        f"c = Conv<strides = [2, 2]>(x, w) {EXCITED}",
        f"c = Conv<pads = [0, 1, 0, 0]>(x, w) {EXCITED}",
        f"c = Conv(x, few) {EXCITED}",
        "c = Conv(x, w) p = GlobalAveragePool(c) g = Round(p) y = Mul(c, g)",
        f"d = Conv(x, w) c = Relu(d) {EXCITED}",
    ],
)
def test_other_means_are_taken_where_they_are(body: str, tmp_path: Path) -> None:
    weights = {"w": normal(6, 4, 1, 1), "wide": normal(6, 4, 1, 3), "few": normal(3, 4, 1, 1)}
    path = saved(f"{HEAD} g (float[2,4,5,3] x) => (y) {{ {body} }}", tmp_path, weights)
    compilation = canonical(path)
    assert_same_outputs(path, compilation)
    (pool,) = (n for n in compilation.graph if n.op_type == "GlobalAveragePool")
    assert pool.inputs[0] is not compilation.graph.inputs[0]
