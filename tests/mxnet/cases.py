"""Write symbols, parameters, inputs and outputs of MXNet 1.9.1. Runs in an environment of its own.

    python cases.py FOLDER [NAME...]

Each case is NAME-symbol.json, NAME-0000.params where it has parameters, and NAME.npz with the inputs by name
and the outputs as `output0`, `output1`, ... Imports nothing of ours.
"""

import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import operator_cases
import quantized
from mxnet.gluon import nn, rnn
from mxnet.gluon.model_zoo import vision

S = mx.sym
ZOO = [
    "resnet18_v1",
    "resnet50_v2",
    "mobilenet1.0",
    "mobilenetv2_1.0",
    "squeezenet1.1",
    "densenet121",
    "inceptionv3",
    "vgg11",
    "alexnet",
]


def rng(name):
    return np.random.default_rng(sum(name.encode()))


def save(folder, name, symbol, inputs, parameters=()):
    """Run a symbol on arrays by name and write all of it."""
    arrays = {k: mx.nd.array(v, dtype=v.dtype) for k, v in {**inputs, **dict(parameters)}.items()}
    args = {k: arrays[k] for k in symbol.list_arguments() if k in arrays}
    aux = {k: arrays[k] for k in symbol.list_auxiliary_states()}
    if set(symbol.list_arguments()) - set(args):  # labels
        shapes, _, _ = symbol.infer_shape(**{k: a.shape for k, a in args.items()})
        for label, shape in zip(symbol.list_arguments(), shapes):
            args.setdefault(label, mx.nd.zeros(shape))
    stored = {k: v.get("__storage_type__") for k, v in symbol.attr_dict().items()}
    args = {k: v.tostype("row_sparse") if stored.get(k) == "1" else v for k, v in args.items()}
    arrays.update(args)
    executor = symbol.bind(mx.cpu(), args=args, aux_states=aux, grad_req="null")
    outputs = executor.forward(is_train=False)
    symbol.save(str(folder / f"{name}-symbol.json"))
    if parameters:
        kinds = {k: "aux" if k in aux else "arg" for k in dict(parameters)}
        mx.nd.waitall()  # a sparse array that is still computed is written with no rows
        mx.nd.save(str(folder / f"{name}-0000.params"), {f"{kinds[k]}:{k}": arrays[k] for k in kinds})
    found = {f"output{i}": o.asnumpy() for i, o in enumerate(outputs)}
    np.savez(folder / f"{name}.npz", **inputs, **found)


def save_block(folder, name, block, *inputs):
    """Export a gluon block and run it."""
    mx.random.seed(sum(name.encode()))
    block.initialize(mx.init.Xavier(magnitude=2))
    block.hybridize()
    arrays = [mx.nd.array(x) for x in inputs]
    outputs = block(arrays[0], arrays[1:]) if len(arrays) > 1 else block(*arrays)
    block.export(str(folder / name))
    flat = list(flattened(outputs))
    names = ["data"] if len(inputs) == 1 else [f"data{i}" for i in range(len(inputs))]
    found = {f"output{i}": o.asnumpy() for i, o in enumerate(flat)}
    np.savez(folder / f"{name}.npz", **dict(zip(names, inputs)), **found)


def flattened(outputs):
    if isinstance(outputs, (list, tuple)):
        for output in outputs:
            yield from flattened(output)
    else:
        yield outputs


def positive(r, *shape):
    return (r.random(shape) * 0.8 + 0.1).astype("f4")


def normal(r, *shape):
    return r.standard_normal(shape).astype("f4")


# (name, symbol of its variables, shapes of the inputs, and of the parameters, by name)
X, Y = S.var("x", shape=(2, 3, 4, 5)), S.var("y", shape=(2, 3, 4, 5))
V = S.var("v")  # a rank that is not declared
IMAGE = (2, 4, 9, 11)
IMG = S.var("x", shape=IMAGE)


def elementwise():
    shape = {"x": (2, 3, 4, 5)}
    unary = [
        "relu",
        "sigmoid",
        "tanh",
        "exp",
        "log",
        "sqrt",
        "abs",
        "negative",
        "floor",
        "ceil",
        "sin",
        "cos",
        "tan",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "arcsinh",
        "arctanh",
        "erf",
        "sign",
        "reciprocal",
        "softsign",
        "round",
        "rint",
        "fix",
        "trunc",
        "square",
        "rsqrt",
        "cbrt",
        "rcbrt",
        "log10",
        "log2",
        "log1p",
        "expm1",
        "degrees",
        "radians",
        "logical_not",
        "hard_sigmoid",
        "zeros_like",
        "ones_like",
        "identity",
        "BlockGrad",
        "smooth_l1",
        "softmax",
        "log_softmax",
        "softmin",
        "LogisticRegressionOutput",
        "_copy",
    ]
    for op in unary:
        function = getattr(S, op, None) or getattr(S._internal, op)
        arguments = (X, S.var("label")) if op == "LogisticRegressionOutput" else (X,)
        yield f"unary_{op}", function(*arguments), shape, {}
    two = {"x": (2, 3, 4, 5), "y": (2, 3, 4, 5)}
    for op in [
        "elemwise_add",
        "elemwise_sub",
        "elemwise_mul",
        "elemwise_div",
        "_mod",
        "_power",
        "_maximum",
        "_minimum",
        "_hypot",
        "_equal",
        "_not_equal",
        "_greater",
        "_greater_equal",
        "_lesser",
        "_lesser_equal",
        "_logical_and",
        "_logical_or",
        "_logical_xor",
    ]:
        function = getattr(S, op, None) or getattr(S._internal, op)
        yield f"binary_{op}", function(X, Y), two, {}
    for op in [
        "add",
        "sub",
        "mul",
        "div",
        "mod",
        "power",
        "maximum",
        "minimum",
        "hypot",
        "equal",
        "not_equal",
        "greater",
        "greater_equal",
        "lesser",
        "lesser_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
    ]:
        row = S.var("y", shape=(1, 3, 1, 5))
        yield f"broadcast_{op}", getattr(S, f"broadcast_{op}")(X, row), {**shape, "y": (1, 3, 1, 5)}, {}
    for op in [
        "plus",
        "minus",
        "rminus",
        "mul",
        "div",
        "rdiv",
        "mod",
        "rmod",
        "power",
        "rpower",
        "maximum",
        "minimum",
        "equal",
        "not_equal",
        "greater",
        "greater_equal",
        "lesser",
        "lesser_equal",
        "logical_and",
        "logical_or",
        "logical_xor",
        "hypot",
    ]:
        yield f"scalar_{op}", getattr(S._internal, f"_{op}_scalar")(X, scalar=0.4), shape, {}
    yield "scalar_camel", S._internal._PlusScalar(S._internal._RMinusScalar(X, scalar=2), scalar=3), shape, {}
    for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
        yield f"activation_{kind}", S.Activation(X - 0.5, act_type=kind), shape, {}
    for kind in ("leaky", "elu", "selu", "gelu"):
        yield f"leaky_{kind}", S.LeakyReLU(X - 0.5, act_type=kind, slope=0.3), shape, {}
    gamma = S.var("gamma")
    yield "leaky_prelu", S.LeakyReLU(X - 0.5, gamma, act_type="prelu"), shape, {"gamma": (3,)}
    yield "clip", S.clip(X, 0.3, 0.6), shape, {}
    yield "cast", S.Cast(X * 9, dtype="int32"), shape, {}
    yield "add_n", S.add_n(X, Y, X), two, {}
    yield "where", S.where(X > 0.5, X, Y), two, {}
    yield "where_rows", S.where(S.var("c", shape=(2,)) > 0.5, X, Y), {**two, "c": (2,)}, {}
    yield "temperature", S.softmax(X, axis=1, temperature=2.0), shape, {}
    ends = S.Cast(S.floor(S.var("n", shape=(2, 4, 5)) * 3) + 1, dtype="int32")
    masked = S.softmax(X, ends, axis=1, use_length=True)
    yield "softmax_lengths", masked, {**shape, "n": (2, 4, 5)}, {}
    yield "argmax_kept", S.argmax(X, keepdims=True), shape, {}
    yield "softmax_output", S.SoftmaxOutput(S.Flatten(X), name="softmax"), shape, {}
    yield "softmax_output_4d", S.SoftmaxOutput(X, name="softmax"), shape, {}
    yield "softmax_channel", S.SoftmaxActivation(X, mode="channel"), shape, {}
    yield "softmax_instance", S.SoftmaxActivation(X), shape, {}
    yield "softmax_multi_output", S.SoftmaxOutput(X, name="softmax", multi_output=True), shape, {}
    yield "div_sqrt_dim", S.contrib.div_sqrt_dim(X), shape, {}


def layers():
    shape = {"x": IMAGE}
    conv = {"w": (6, 4, 3, 3), "b": (6,)}
    w, b = S.var("w"), S.var("b")
    yield (
        "conv",
        S.Convolution(IMG, w, b, kernel=(3, 3), num_filter=6, pad=(1, 2), stride=(2, 1)),
        shape,
        conv,
    )
    free = S.Convolution(S.var("x"), w, b, kernel=(3, 3), num_filter=6)
    yield "conv_rank_from_kernel", free, shape, conv
    grouped = S.Convolution(IMG, w, kernel=(3, 3), num_filter=6, num_group=2, no_bias=True, dilate=(2, 2))
    yield "conv_grouped", grouped, shape, {"w": (6, 2, 3, 3)}
    line = S.Convolution(S.var("x", shape=(2, 4, 9)), w, b, kernel=(3,), num_filter=6)
    yield "conv_1d", line, {"x": (2, 4, 9)}, {"w": (6, 4, 3), "b": (6,)}
    up = S.Deconvolution(IMG, w, kernel=(3, 3), num_filter=6, stride=(2, 2), pad=(1, 1), adj=(1, 0))
    yield "deconv", up, shape, {"w": (4, 6, 3, 3)}
    up = S.Deconvolution(IMG, w, b, kernel=(4, 4), num_filter=6, stride=(2, 2), num_group=2, no_bias=False)
    yield "deconv_grouped", up, shape, {"w": (4, 3, 4, 4), "b": (6,)}
    full = {"w": (7, 4 * 9 * 11), "b": (7,)}
    yield "dense_flat", S.FullyConnected(IMG, w, b, num_hidden=7), shape, full
    yield (
        "dense_last",
        S.FullyConnected(IMG, w, num_hidden=7, flatten=False, no_bias=True),
        shape,
        {"w": (7, 11)},
    )
    yield (
        "dense_last_bias",
        S.FullyConnected(IMG, w, b, num_hidden=7, flatten=False),
        shape,
        {"w": (7, 11), "b": (7,)},
    )
    statistics = {f"bn_{k}": (4,) for k in ("gamma", "beta", "moving_mean", "moving_var")}
    yield "batch_norm", S.BatchNorm(IMG, fix_gamma=False, eps=1e-5, name="bn"), shape, statistics
    yield "batch_norm_fixed", S.BatchNorm(IMG, name="bn"), shape, statistics
    statistics = dict.fromkeys(statistics, (11,))
    yield "batch_norm_last", S.BatchNorm(IMG, axis=-1, fix_gamma=False, name="bn"), shape, statistics
    for kind in ("max", "avg", "sum"):
        yield (
            f"pool_{kind}",
            S.Pooling(IMG, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type=kind),
            shape,
            {},
        )
        yield (
            f"pool_global_{kind}",
            S.Pooling(IMG, kernel=(1, 1), global_pool=True, pool_type=kind),
            shape,
            {},
        )
    for kind in ("max", "avg"):
        for counted in (True, False):
            options = {"count_include_pad": counted} if kind == "avg" else {}
            pooled = S.Pooling(
                IMG,
                kernel=(3, 2),
                stride=(2, 3),
                pad=(1, 0),
                pool_type=kind,
                pooling_convention="full",
                **options,
            )
            yield f"pool_full_{kind}_{counted}", pooled, shape, {}
    some = S.Pooling(IMG, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False)
    yield "pool_avg_valid", some, shape, {}
    yield "pool_lp", S.Pooling(IMG, kernel=(2, 2), stride=(2, 2), pool_type="lp", p_value=2), shape, {}
    for name, size in (("uneven", (4, 5)), ("square", 3)):
        yield f"adaptive_{name}", S.contrib.AdaptiveAvgPooling2D(IMG, output_size=size), shape, {}
    yield "adaptive", S.contrib.AdaptiveAvgPooling2D(IMG, output_size=1), shape, {}
    yield "lrn", S.LRN(IMG, nsize=3, alpha=0.3, knorm=1.5), shape, {}
    pair = {"g": (4,), "b": (4,)}
    yield "instance_norm", S.InstanceNorm(IMG, S.var("g"), b), shape, pair
    yield "group_norm", S.GroupNorm(IMG, S.var("g"), b, num_groups=2), shape, {"g": (2,), "b": (2,)}
    yield "layer_norm", S.LayerNorm(IMG, S.var("g"), b), shape, {"g": (11,), "b": (11,)}
    yield "layer_norm_axis", S.LayerNorm(IMG, S.var("g"), b, axis=1), shape, pair
    for mode in ("instance", "channel", "spatial"):
        yield f"l2_{mode}", S.L2Normalization(IMG, mode=mode), shape, {}
    for mode in ("constant", "edge", "reflect"):
        padded = S.Pad(IMG, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 3, 1), constant_value=0.5)
        yield f"pad_{mode}", padded, shape, {}
    yield "upsampling", S.UpSampling(IMG, scale=2, sample_type="nearest"), shape, {}
    for corners in (True, False):
        bigger = S.contrib.BilinearResize2D(IMG, height=14, width=17, align_corners=corners)
        yield f"bilinear_{corners}", bigger, shape, {}
    yield "dropout", S.Dropout(IMG, p=0.5), shape, {}


def movement():
    shape = {"x": (2, 3, 4, 5)}
    for i, codes in enumerate(
        [
            (0, -1),
            (-1, 5),
            (-2,),
            (0, -2),
            (-3, -2),
            (0, 0, -3),
            (-4, 1, 2, -2),
            (0, -4, -1, 3, -2),
            (-3, -3),
            (6, 1, -1),
        ]
    ):
        yield f"reshape_{i}", S.Reshape(X, shape=codes), shape, {}
    yield "reshape_reverse", S.Reshape(X, shape=(-1, 0, 5), reverse=True), shape, {}
    yield "reshape_like", S.reshape_like(X, S.var("y", shape=(6, 20))), {**shape, "y": (6, 20)}, {}
    yield "transpose", S.transpose(X), shape, {}
    yield "transpose_axes", S.transpose(X, axes=(0, 2, 3, 1)), shape, {}
    yield "swapaxes", S.SwapAxis(X, dim1=1, dim2=3), shape, {}
    yield "expand_squeeze", S.squeeze(S.expand_dims(X, axis=-1), axis=-1), shape, {}
    yield "slice", S.slice(X, begin=(None, 1, 0), end=(None, 3, -1)), shape, {}
    yield "slice_step", S.slice(X, begin=(1, None), end=(None, None), step=(1, 2)), shape, {}
    yield "slice_back", S.slice(X, begin=(None, 2), end=(None, None), step=(-1, -1)), shape, {}
    yield "slice_axis", S.slice_axis(X, axis=-1, begin=1, end=None), shape, {}
    yield "slice_axis_end", S.slice_axis(X, axis=2, begin=-3, end=-1), shape, {}
    like = S.var("y", shape=(1, 2, 3, 9))
    yield "slice_like", S.slice_like(X, like, axes=(1, -2)), {**shape, "y": (1, 2, 3, 9)}, {}
    yield "concat", S.Concat(X, Y, dim=2), {**shape, "y": (2, 3, 4, 5)}, {}
    yield "stack", S.stack(X, Y, axis=1), {**shape, "y": (2, 3, 4, 5)}, {}
    yield "split", S.Group(list(S.split(X, num_outputs=2, axis=2))), shape, {}
    yield (
        "split_squeezed",
        S.Group(list(S.SliceChannel(X, num_outputs=3, axis=1, squeeze_axis=True))),
        shape,
        {},
    )
    yield "split_v2", S.Group(list(S.split_v2(X, (1, 3), axis=2))), shape, {}
    yield "split_sections", S.Group(list(S.split_v2(X, 2, axis=2))), shape, {}
    yield "tile", S.tile(X, reps=(2, 1, 1, 1, 3)), shape, {}
    yield "tile_short", S.tile(X, reps=(2, 3)), shape, {}
    yield "repeat", S.repeat(X, repeats=2, axis=1), shape, {}
    yield "repeat_flat", S.repeat(X, repeats=3), shape, {}
    yield "flip", S.flip(X, axis=2), shape, {}
    one = {"x": (2, 1, 4, 1)}
    narrow = S.var("x", shape=(2, 1, 4, 1))
    yield "broadcast_to", S.broadcast_to(narrow, shape=(0, 3, 0, 5)), one, {}
    yield "broadcast_axis", S.broadcast_axis(narrow, axis=(1, 3), size=(3, 5)), one, {}
    yield "broadcast_like", S.broadcast_like(narrow, Y), {**one, "y": (2, 3, 4, 5)}, {}
    blocks = S.var("x", shape=(2, 8, 4, 6))
    yield "depth_to_space", S.depth_to_space(blocks, block_size=2), {"x": (2, 8, 4, 6)}, {}
    yield "space_to_depth", S.space_to_depth(blocks, block_size=2), {"x": (2, 8, 4, 6)}, {}
    rows = S.ones((4, 5)) * 2 + S.zeros((4, 5))
    summed = S.broadcast_add(S.broadcast_add(X, rows), S.arange(0, 5) + S.full((5,), 3.5))
    yield "constants", summed, shape, {}
    yield "arange_like", S.contrib.arange_like(X, start=1, step=2, axis=2), shape, {}
    yield "arange_like_all", S.contrib.arange_like(X), shape, {}


def indexing():
    shape = {"x": (2, 3, 4, 5)}
    for op in ("sum", "mean", "max", "min", "prod", "norm"):
        for i, options in enumerate(
            [{}, {"axis": 1}, {"axis": (0, 2), "keepdims": True}, {"axis": 1, "exclude": True}]
        ):
            if op == "norm" and "exclude" in options:
                continue
            yield f"reduce_{op}_{i}", getattr(S, op)(X, **options), shape, {}
    for op in ("argmax", "argmin"):
        yield f"{op}_axis", getattr(S, op)(X, axis=2), shape, {}
        yield f"{op}_keep", getattr(S, op)(X, axis=-1, keepdims=True), shape, {}
        yield f"{op}_all", getattr(S, op)(X), shape, {}
    yield "argmax_channel", S.argmax_channel(S.Reshape(X, shape=(2, -1))), shape, {}
    index = S.var("i", shape=(2, 3))
    for mode in ("clip", "wrap"):
        yield f"take_{mode}", S.take(X, (index - 0.4) * 20, axis=1, mode=mode), {**shape, "i": (2, 3)}, {}
    flat = S.var("i", shape=(2, 3, 4))
    yield "pick", S.pick(X, flat * 5), {**shape, "i": (2, 3, 4)}, {}
    yield (
        "pick_axis",
        S.pick(X, S.var("i", shape=(2, 4, 5)) * 9, axis=1, keepdims=True),
        {**shape, "i": (2, 4, 5)},
        {},
    )
    yield "one_hot", S.one_hot(index * 6 - 1, depth=4, on_value=2, off_value=-1), {"i": (2, 3)}, {}
    for kind in ("indices", "value", "both"):
        found = S.topk(X, axis=2, k=3, ret_typ=kind)
        yield f"topk_{kind}", S.Group(list(found)) if kind == "both" else found, shape, {}
    yield "topk_low", S.topk(X, axis=-1, k=2, ret_typ="value", is_ascend=True), shape, {}
    yield "sort", S.sort(X, axis=1, is_ascend=False), shape, {}
    yield "argsort", S.argsort(X), shape, {}
    yield "gather_nd", S.gather_nd(X, S.floor(S.var("i", shape=(2, 6)) * 2)), {**shape, "i": (2, 6)}, {}
    a, b = S.var("a", shape=(4, 5)), S.var("b", shape=(5, 6))
    yield "dot", S.dot(a, b), {"a": (4, 5), "b": (5, 6)}, {}
    yield "dot_turned", S.dot(b, a, transpose_a=True, transpose_b=True), {"a": (4, 5), "b": (5, 6)}, {}
    yield "dot_deep", S.dot(X, S.var("b", shape=(5, 2, 3))), {**shape, "b": (5, 2, 3)}, {}
    yield "dot_vectors", S.dot(S.var("a", shape=(5,)), S.var("b", shape=(5,))), {"a": (5,), "b": (5,)}, {}
    left, right = S.var("a", shape=(3, 4, 5)), S.var("b", shape=(3, 6, 5))
    yield "batch_dot", S.batch_dot(left, right, transpose_b=True), {"a": (3, 4, 5), "b": (3, 6, 5)}, {}
    yield (
        "gemm2",
        S.linalg.gemm2(left, right, transpose_b=True, alpha=0.5),
        {"a": (3, 4, 5), "b": (3, 6, 5)},
        {},
    )
    table = {"w": (10, 6)}
    embedded = S.Embedding(index * 14 - 2, S.var("w"), input_dim=10, output_dim=6)
    yield "embedding", embedded, {"i": (2, 3)}, table
    rows = S.var("w", stype="row_sparse", attr={"__lr_mult__": "0.5"})
    sparse = S.contrib.SparseEmbedding(index * 9, rows, input_dim=10, output_dim=6)
    yield "embedding_row_sparse", sparse, {"i": (2, 3)}, table
    sparse = S.Embedding(index * 9, rows, input_dim=10, output_dim=6, sparse_grad=True)
    yield "embedding_sparse_grad", sparse, {"i": (2, 3)}, table
    sequence, lengths = S.var("x", shape=(4, 2, 3)), S.floor(S.var("n", shape=(2,)) * 3) + 1
    pair = {"x": (4, 2, 3), "n": (2,)}
    for op in ("SequenceMask", "SequenceLast", "SequenceReverse"):
        yield op, getattr(S, op)(sequence, lengths, use_sequence_length=True), pair, {}
        yield f"{op}_whole", getattr(S, op)(sequence), {"x": (4, 2, 3)}, {}
    masked = S.SequenceMask(
        sequence, S.floor(S.var("n", shape=(4,)) * 2) + 1, use_sequence_length=True, value=-1, axis=1
    )
    yield "SequenceMask_axis", masked, {"x": (4, 2, 3), "n": (4,)}, {}
    yield "cumsum", S.cumsum(X, axis=2), shape, {}
    heads = S.var("x", shape=(5, 2, 3 * 4 * 6))
    attention = S.softmax(S.contrib.interleaved_matmul_selfatt_qk(heads, heads=4))
    attended = S.contrib.interleaved_matmul_selfatt_valatt(heads, attention, heads=4)
    yield "self_attention", attended, {"x": (5, 2, 72)}, {}
    query, keys = S.var("q", shape=(5, 2, 24)), S.var("k", shape=(7, 2, 48))
    attention = S.softmax(S.contrib.interleaved_matmul_encdec_qk(query, keys, heads=4))
    attended = S.contrib.interleaved_matmul_encdec_valatt(keys, attention, heads=4)
    yield "cross_attention", attended, {"q": (5, 2, 24), "k": (7, 2, 48)}, {}


def recurrent():
    x = S.var("x", shape=(5, 2, 3))
    for mode, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        for layers_, both in ((1, False), (2, True)):
            d = 2 if both else 1
            size = d * gates * 4 * (3 + 4 + 2) + (layers_ - 1) * d * gates * 4 * (d * 4 + 4 + 2)
            state = (layers_ * d, 2, 4)
            states = ["s", "c"] if mode == "lstm" else ["s"]
            variables = [S.var(n, shape=state) for n in states]
            found = S.RNN(
                x,
                S.var("p"),
                *variables,
                mode=mode,
                state_size=4,
                num_layers=layers_,
                bidirectional=both,
                state_outputs=True,
            )
            inputs = {"x": (5, 2, 3), **dict.fromkeys(states, state)}
            yield f"rnn_{mode}_{layers_}", S.Group(list(found)), inputs, {"p": (size,)}


def control_flow():
    x, s, w = S.var("x", shape=(5, 2, 3)), S.var("s", shape=(2, 3)), S.var("w", shape=(2, 3))
    inputs = {"x": (5, 2, 3), "s": (2, 3), "w": (2, 3)}
    out, last = S.contrib.foreach(lambda a, b: (a * w + b, b * 0.5 + a), x, s)
    yield "foreach", S.Group([out, last]), inputs, {}
    out, last = S.contrib.foreach(
        lambda a, b: ([a[0] + b[0], a[1] * 2], [b[1], b[0] + a[1]]), [x, x * 2], [s, w]
    )
    yield "foreach_many", S.Group([*out, *last]), inputs, {}
    n, v = S.var("n", shape=(1,)), S.var("v", shape=(1,))
    w = S.var("u", shape=(1,))
    outs, final = S.contrib.while_loop(
        lambda i, t: i < 4, lambda i, t: (i * w, [i + 1, t + i]), [S.ceil(n), v], max_iterations=7
    )
    rows = S.slice_axis(outs if not isinstance(outs, list) else outs[0], axis=0, begin=0, end=3)
    yield "while_loop", S.Group([rows, *final]), {"n": (1,), "v": (1,), "u": (1,)}, {}
    w = S.var("w", shape=(2, 3))
    for i, edge in enumerate((-1, 99)):
        found = S.contrib.cond(S.sum(s) < edge, lambda: s * 2 + w, lambda: s - w)
        yield f"cond_{i}", found, {"s": (2, 3), "w": (2, 3)}, {}


def blocks():
    r = rng("blocks")
    image = normal(r, 1, 3, 224, 224)
    for name in ZOO:
        size = 299 if name == "inceptionv3" else 224
        yield f"zoo_{name}", vision.get_model(name), [normal(r, 1, 3, size, size) if size != 224 else image]
    mlp = nn.HybridSequential()
    mlp.add(nn.Dense(16, activation="relu"), nn.Dropout(0.3), nn.Dense(5))
    yield "mlp", mlp, [normal(r, 4, 30)]
    yield (
        "gluon_lstm",
        rnn.LSTM(8, num_layers=2, bidirectional=True),
        [normal(r, 5, 2, 6), normal(r, 4, 2, 8), normal(r, 4, 2, 8)],
    )
    yield "gluon_gru", rnn.GRU(8, layout="NTC"), [normal(r, 2, 5, 6), normal(r, 1, 2, 8)]
    one = rnn.LSTM(8, projection_size=5)
    yield "gluon_projected", one, [normal(r, 7, 2, 6), normal(r, 1, 2, 5), normal(r, 1, 2, 8)]
    both = rnn.LSTM(8, num_layers=2, bidirectional=True, projection_size=5)
    yield "gluon_projected_states", both, [normal(r, 7, 2, 6), normal(r, 4, 2, 5), normal(r, 4, 2, 8)]
    yield "gluon_cell", Unrolled(), [normal(r, 2, 5, 6)]
    yield "transformer", Transformer(), [r.integers(0, 50, (2, 7)).astype("f4")]


class Unrolled(mx.gluon.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.cell = rnn.LSTMCell(8)

    def hybrid_forward(self, F, x):
        return self.cell.unroll(5, x, layout="NTC", merge_outputs=True)[0]


class Transformer(mx.gluon.HybridBlock):
    """An encoder layer as gluon programs write it."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.embedding = nn.Embedding(50, 24)
            self.projection = nn.Dense(72, flatten=False)
            self.out = nn.Dense(24, flatten=False)
            self.inner = nn.Dense(48, flatten=False, activation="relu")
            self.outer = nn.Dense(24, flatten=False)
            self.first, self.second = nn.LayerNorm(), nn.LayerNorm()

    def hybrid_forward(self, F, x):
        x = self.embedding(x)
        mixed = F.transpose(F.reshape(self.projection(x), shape=(0, 0, 12, -1)), axes=(0, 2, 1, 3))
        q, k, v = (F.reshape(t, shape=(-3, -2)) for t in F.split(mixed, num_outputs=3, axis=1))
        scores = F.softmax(F.batch_dot(F.contrib.div_sqrt_dim(q), k, transpose_b=True), axis=-1)
        heads = F.reshape(F.batch_dot(scores, v), shape=(-4, -1, 4, 0, 0))
        joined = F.reshape(F.transpose(heads, axes=(0, 2, 1, 3)), shape=(0, 0, -3))
        x = self.first(x + self.out(joined))
        return self.second(x + self.outer(self.inner(x)))


def main(folder, names):
    folder.mkdir(parents=True, exist_ok=True)
    for family in (elementwise, layers, movement, indexing, recurrent, control_flow):
        for name, symbol, inputs, parameters in family():
            if names and name not in names:
                continue
            r = rng(name)
            given = {k: positive(r, *shape) for k, shape in inputs.items()}
            save(folder, name, symbol, given, {k: positive(r, *shape) for k, shape in parameters.items()})
    for family in (quantized.operators, quantized.networks, quantized.fused, operator_cases.operators):
        for name, symbol, inputs, parameters in family():
            if not names or name in names:
                save(folder, name, symbol, inputs, parameters)
    for name, block, inputs in blocks():
        if not names or name in names:
            save_block(folder, name, block, *inputs)
    if not names:
        weights = {f"arg:{k}": mx.nd.array(positive(rng(k), 5, 4)) for k in ("dense", "csr", "row_sparse")}
        weights = {k: (v * (v > 0.6)).tostype(k[4:].replace("dense", "default")) for k, v in weights.items()}
        mx.nd.waitall()
        mx.nd.save(str(folder / "storage.params"), weights)
        np.savez(folder / "storage-arrays.npz", **{k[4:]: v.asnumpy() for k, v in weights.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), set(sys.argv[2:]))
