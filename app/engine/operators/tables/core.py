"""The core operators, level by level, internal ones last.

In formulas x, y, z are results, a, b, c operands in order; `sum[i]` runs over the index i.
"""

from collections.abc import Mapping

from app.engine.types.core_operator import INTERNAL, CoreOperator, ShapeRule

# Meaning of attributes that several operators have.
_SHARED = {
    "axis": "axis that the operator works along",
    "keepdims": "1: reduced axes stay, with extent 1",
    "noop_with_empty_axes": "1: no axes means that nothing is reduced; 0: that all are",
    "pads": "elements added before each axis, then after each",
    "strides": "step of the window along each axis",
    "dilations": "distance of two elements of the window along each axis",
    "kernel_shape": "extents of the window; those of the weights where absent",
    "auto_pad": "pads so that the result has the size of operand over stride (SAME), or none (VALID)",
    "ceil_mode": "1: a last window may reach beyond the padding",
    "group": "groups of channels, each with weights of its own",
    "epsilon": "number added to the variance",
    "stash_type": "element type of what is computed in between",
    "saturate": "1: what 8-bit floats do not hold becomes their limit",
    "output_dtype": "element type of the result; 0: as the other operands say",
    "block_size": "elements along the axis that share a scale; 0: all, or one each",
    "reduction": "what becomes of several updates of one place: none, add, mul, max, min",
    "mode": "how elements in between or beyond are made",
    "coordinate_transformation_mode": "where in the operand an element of the result lies",
    "activations": "functions of the gates",
    "activation_alpha": "first parameters of the activations",
    "activation_beta": "second parameters of the activations",
    "clip": "bound of what enters an activation",
    "direction": "order of the steps: forward, reverse, bidirectional",
    "hidden_size": "elements of the state",
    "layout": "1: the batch is the first axis; 0: the sequence is",
    "body": "graph of one iteration",
}


def _core(
    level: int,
    name: str,
    ops: str,
    formula: str,
    shape: ShapeRule,
    shared: str = "",
    own: Mapping[str, str] | None = None,
) -> CoreOperator:
    """A row; `shared` names attributes of _SHARED, `own` has the meaning of others."""
    meanings = {name: _SHARED[name] for name in shared.split()}
    return CoreOperator(name, level, tuple(ops.split()), formula, shape, meanings | dict(own or {}))


_POOL = "kernel_shape strides pads dilations ceil_mode auto_pad"
_CELL = "activations activation_alpha activation_beta clip direction hidden_size layout"
_REDUCED = "keepdims noop_with_empty_axes"

_VALUES = (
    _core(0, "constant", "Constant", "y = value", "told", own={
        **dict.fromkeys(("value", "sparse_value"), "tensor"),
        **dict.fromkeys(("value_float", "value_int", "value_string"), "a scalar"),
        **dict.fromkeys(("value_floats", "value_ints", "value_strings"), "a vector"),
    }),
    _core(0, "full", "ConstantOfShape", "y[i] = value, of shape a", "told", own={"value": "the element"}),
    _core(0, "arange", "Range", "y[i] = a + i c, while it has not reached b", "data", "stash_type"),
    _core(0, "shape_of", "Shape", "y = extents of a", "told", own={
        "start": "first axis", "end": "the axis after the last",
    }),
    _core(0, "cast", "Cast", "y = a in another element type", "same", "saturate", own={
        "to": "element type of the result", "round_mode": "rounding to float8e8m0",
    }),
    _core(0, "copy", "Identity", "y = a", "same"),
)  # fmt: skip

_ELEMENTWISE = (
    _core(1, "add", "Add", "y = a + b", "broadcast"),
    _core(1, "sub", "Sub", "y = a - b", "broadcast"),
    _core(1, "mul", "Mul", "y = a b", "broadcast"),
    _core(1, "div", "Div", "y = a / b, of integers cut towards zero", "broadcast"),
    _core(1, "mod", "Mod", "y = a - b floor(a / b)", "broadcast", own={
        "fmod": "1: the sign of a, as C's fmod; 0: that of b, for integers",
    }),
    _core(1, "pow", "Pow", "y = a^b", "broadcast"),
    _core(1, "minimum", "Min", "y = min(a, b, ...)", "broadcast"),
    _core(1, "maximum", "Max", "y = max(a, b, ...)", "broadcast"),
    _core(1, "neg", "Neg", "y = -a", "same"),
    _core(1, "abs", "Abs", "y = |a|", "same"),
    _core(1, "sign", "Sign", "y = -1, 0 or 1 as a is below, at or above 0", "same"),
    _core(1, "exp", "Exp", "y = e^a", "same"),
    _core(1, "log", "Log", "y = ln a", "same"),
    _core(1, "sqrt", "Sqrt", "y = a^(1/2)", "same"),
    _core(1, "floor", "Floor", "y = the largest integer that is not above a", "same"),
    _core(1, "ceil", "Ceil", "y = the smallest integer that is not below a", "same"),
    _core(1, "round", "Round", "y = the nearest integer, of two the even one", "same"),
    _core(1, "sin", "Sin", "y = sin a", "same"),
    _core(1, "cos", "Cos", "y = cos a", "same"),
    _core(1, "tanh", "Tanh", "y = tanh a", "same"),
    _core(1, "erf", "Erf", "y = 2 / sqrt(pi) integral of e^(-t^2) for t from 0 to a", "same"),
    _core(1, "trig", "Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh", "y = f(a), f by its name", "same"),
    _core(1, "relu", "Relu", "y = max(a, 0)", "same"),
    _core(1, "leaky_relu", "LeakyRelu", "y = a where a >= 0, else alpha a", "same", own={
        "alpha": "slope below 0",
    }),
    _core(1, "sigmoid", "Sigmoid", "y = 1 / (1 + e^(-a))", "same"),
    _core(1, "clip", "Clip", "y = min(max(a, b), c)", "same"),
    _core(1, "where", "Where", "y = b where a is true, else c", "broadcast"),
    _core(1, "equal", "Equal", "y = (a = b)", "broadcast"),
    _core(1, "less", "Less", "y = (a < b)", "broadcast"),
    _core(1, "logical", "And Or Xor Not", "y = a f b of truth values, f by its name", "broadcast"),
    _core(1, "bitwise", "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift",
          "y = a f b bit by bit, f by its name", "broadcast",
          own={"direction": "of a shift: LEFT or RIGHT"}),
    _core(1, "isnan", "IsNaN IsInf", "y = a is no number, or is infinite", "same", own={
        "detect_positive": "1: positive infinity counts", "detect_negative": "1: negative infinity counts",
    }),
)  # fmt: skip

_CONTRACTIONS = (
    _core(2, "matmul", "MatMul", "y[.., i, j] = sum[k] a[.., i, k] b[.., k, j]", "product"),
    _core(2, "conv", "Conv",
          "y[n, m, p] = c[m] + sum[k, i] a[n, k, p strides + i dilations - pads] b[m, k, i]",
          "window", "strides pads dilations group kernel_shape auto_pad"),
    _core(2, "conv_transpose", "ConvTranspose",
          "y[n, m, p strides + i dilations - pads] = c[m] + sum[k, i] a[n, k, p] b[k, m, i]",
          "window", "strides pads dilations group kernel_shape auto_pad", own={
              "output_padding": "elements added after each axis of the result",
              "output_shape": "extents of the result, in the place of pads",
          }),
)  # fmt: skip

_WINDOWS = (
    _core(3, "max_pool", "MaxPool", "y[n, k, p] = max[i] a[n, k, p strides + i dilations - pads]", "window",
          _POOL, own={"storage_order": "of the second result, places of the maxima: 1 counts columns first"}),
    _core(3, "avg_pool", "AveragePool",
          "y[n, k, p] = sum[i] a[n, k, p strides + i dilations - pads] / elements counted", "window",
          _POOL, own={"count_include_pad": "1: padding counts as elements"}),
    _core(3, "resize", "Resize", "y[p] = a interpolated at the place of p", "told",
          "mode coordinate_transformation_mode", own={
              "nearest_mode": "rounding of a place to an element",
              "cubic_coeff_a": "parameter of the cubic kernel",
              "exclude_outside": "1: weights of elements beyond the border count 0",
              "extrapolation_value": "value of places outside, in mode tf_crop_and_resize",
              "antialias": "1: the kernel is stretched where the result is smaller",
              "axes": "axes that are resized; all where absent",
              "keep_aspect_ratio_policy": "how sizes that change the ratio of extents are taken",
          }),
    _core(3, "pad", "Pad", "y[p] = a[p - b], beyond its border as mode says", "told", "mode"),
    _core(3, "batch_norm", "BatchNormalization",
          "y = (a - mean) / sqrt(variance + epsilon) b + c, a channel each",
          "same", "epsilon", own={
              "momentum": "share of the old mean and variance in the new ones, in training",
              "training_mode": "1: mean and variance are the batch's",
          }),
    _core(3, "layer_norm", "LayerNormalization",
          "y = (a - mean) / sqrt(variance + epsilon) b + c, over the axes from axis on", "same",
          "axis epsilon stash_type"),
    _core(3, "group_norm", "GroupNormalization",
          "y = (a - mean) / sqrt(variance + epsilon) b + c, over a group of channels and all places", "same",
          "epsilon stash_type", own={"num_groups": "groups of channels"}),
    _core(3, "softmax", "Softmax", "y = e^(a - max a) / sum e^(a - max a), along axis", "same", "axis"),
    _core(3, "lrn", "LRN", "y = a / (bias + alpha / size sum[j] a[j]^2)^beta, j over size channels around",
          "same", own={"size": "channels that count", "alpha": "factor of the mean square",
                       "beta": "exponent", "bias": "number added"}),
)  # fmt: skip

_INDEXING = (
    _core(4, "reshape", "Reshape", "y = elements of a in order, in the shape b", "told", own={
        "allowzero": "1: an extent 0 is 0; 0: it is that of a",
    }),
    _core(4, "transpose", "Transpose", "y[i[perm]] = a[i]", "told", own={
        "perm": "axes of a in the new order",
    }),
    _core(4, "broadcast_to", "Expand", "y = a, repeated along axes of extent 1 up to the shape b", "told"),
    _core(4, "concat", "Concat", "y = a, b, ... one after another along axis", "told", "axis"),
    _core(4, "slice", "Slice", "y[i] = a[starts + i steps]", "told"),
    _core(4, "tile", "Tile", "y[i] = a[i mod extents of a]", "told"),
    _core(4, "take", "Gather", "y[.., i, ..] = a[.., b[i], ..], along axis", "told", "axis"),
    _core(4, "gather_nd", "GatherND", "y[i, ..] = a[b[i, 0], b[i, 1], ...]", "told", own={
        "batch_dims": "leading axes that both operands share",
    }),
    _core(4, "take_along_axis", "GatherElements", "y[i, j] = a[b[i, j], j], along axis 0", "told", "axis"),
    _core(4, "scatter_nd", "ScatterND", "y = a, then y[b[i, 0], b[i, 1], ...] = c[i, ..]", "same",
          "reduction"),
    _core(4, "put_along_axis", "ScatterElements", "y = a, then y[b[i, j], j] = c[i, j], along axis 0",
          "same", "axis reduction"),
    _core(4, "sum", "ReduceSum", "y = sum[axes] a", "reduced", _REDUCED),
    _core(4, "mean", "ReduceMean", "y = sum[axes] a / number of elements", "reduced", _REDUCED),
    _core(4, "max", "ReduceMax", "y = max[axes] a", "reduced", _REDUCED),
    _core(4, "min", "ReduceMin", "y = min[axes] a", "reduced", _REDUCED),
    _core(4, "prod", "ReduceProd", "y = product[axes] a", "reduced", _REDUCED),
    _core(4, "argmax", "ArgMax", "y = the first index along axis where a is largest", "reduced",
          "axis keepdims", own={"select_last_index": "1: the last such index"}),
    _core(4, "cumsum", "CumSum", "y[i] = sum[j <= i] a[j], along axis b", "same", own={
        "exclusive": "1: without a[i]", "reverse": "1: from the end",
    }),
    _core(4, "topk", "TopK", "y, z = the b largest elements along axis, and their indices", "told",
          "axis", own={
        "largest": "0: the smallest", "sorted": "1: in order",
    }),
    _core(4, "nonzero", "NonZero", "y[:, i] = indices of the i-th element that is not 0", "data"),
)  # fmt: skip

_CONTROL = (
    _core(5, "if", "If", "y = results of one of two graphs, by a", "body", own={
        "then_branch": "graph where a is true", "else_branch": "graph where it is false",
    }),
    _core(5, "loop", "Loop", "states = body(i, states), at most a times and while b", "body", "body"),
    _core(5, "scan", "Scan", "states, y[i] = body(states, a[i]), for each i", "body", "body", own={
        "num_scan_inputs": "operands that are read slice by slice",
        "scan_input_axes": "axis of the slices of each of them",
        "scan_output_axes": "axis of the slices of each scanned result",
        "scan_input_directions": "1: from the end, of each scanned operand",
        "scan_output_directions": "1: from the end, of each scanned result",
    }),
    _core(5, "lstm", "LSTM", "i, o, f = s(a[t] W + h R + bias); c = f c + i g(..); y[t] = h = o tanh(c)",
          "told", _CELL, own={"input_forget": "1: the input gate is 1 - f"}),
    _core(5, "gru", "GRU", "z, r = s(a[t] W + h R + bias); y[t] = h = (1 - z) g(..r..) + z h", "told",
          _CELL, own={"linear_before_reset": "1: r multiplies after the product with R"}),
    _core(5, "quantize", "QuantizeLinear", "y = saturate(round(a / b) + c)", "same",
          "axis block_size saturate output_dtype", own={"precision": "element type of the division"}),
    _core(5, "dequantize", "DequantizeLinear", "y = (a - c) b", "same", "axis block_size output_dtype"),
)  # fmt: skip

_VISION = (
    _core(6, "nms", "NonMaxSuppression",
          "y = (batch, class, box) in order of score, none that overlaps a better one by more than d", "data",
          own={"center_point_box": "1: boxes are centers and extents; 0: corners"}),
    _core(6, "roi_align", "RoiAlign",
          "y[r, k, p] = mean or max of a, interpolated at samples of bin p of box r",
          "told", "mode coordinate_transformation_mode", own={
              "output_height": "bins of a column", "output_width": "bins of a row",
              "sampling_ratio": "samples of a bin along an axis; 0: by its extent",
              "spatial_scale": "factor of the boxes' coordinates",
          }),
    _core(6, "grid_sample", "GridSample", "y[n, k, p] = a[n, k] interpolated at b[n, p]", "told",
          "mode", own={
        "padding_mode": "what lies beyond the border", "align_corners": "1: -1 and 1 are centers of corners",
    }),
    _core(6, "attention", "Attention", "y = softmax(scale a b^T + mask) c, a head each", "told", own={
        "is_causal": "1: a query sees no later key", "scale": "factor of the products",
        "softcap": "s: products become s tanh(product / s); 0: they stay",
        "q_num_heads": "heads of queries, of operands of rank 3",
        "kv_num_heads": "heads of keys, of operands of rank 3",
        "softmax_precision": "element type of the softmax",
        "qk_matmul_output_mode": "which products the last result has",
        "left_window_size": "keys before its own that a query sees; -1: all",
        "right_window_size": "keys after its own that a query sees; -1: all",
    }),
)  # fmt: skip

_INTERNAL = (
    _core(INTERNAL, "layout_transform", "ChangeLayout", "y = a, stored in another layout", "same"),
    _core(INTERNAL, "cast_storage", "CastStorage", "y = a, stored in another storage type", "same"),
    _core(INTERNAL, "sparse_retain", "SparseRetain", "y = rows b of a row_sparse a; others are 0", "same"),
    _core(INTERNAL, "zero_lanes", "ZeroLanes", "y = a, padded lanes 0", "same"),
    _core(INTERNAL, "bounded_compress", "BoundedCompress",
          "y = slices of a where b holds, then undefined ones, as many as a has", "same"),
    _core(INTERNAL, "bounded_nms", "BoundedNonMaxSuppression",
          "y, z = results of nms of the first f boxes, then undefined ones; their number", "told"),
    _core(INTERNAL, "prefix", "Prefix", "y = the first b elements of a along an axis", "data"),
    _core(INTERNAL, "subgraph_call", "Subgraph", "y = results of the nodes that one library runs", "body"),
)  # fmt: skip

CORE = (
    *_VALUES, *_ELEMENTWISE, *_CONTRACTIONS, *_WINDOWS, *_INDEXING, *_CONTROL, *_VISION, *_INTERNAL,
)  # fmt: skip
