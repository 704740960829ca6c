"""Quantized operators and networks that MXNet 1.9.1 writes; runs in its environment, for cases.py.

Each case is a name, a symbol, inputs and parameters as arrays.
"""

import logging

import mxnet as mx
import numpy as np
from mxnet.contrib import quantization

S, C = mx.sym, mx.sym.contrib
LOW, HIGH = {"int8": -3.0, "uint8": 0.0}, 2.0
LIMITS = {"int8": (-127, 128), "uint8": (0, 256)}


def integers(r, dtype, *shape):
    return r.integers(*LIMITS[dtype], shape).astype(dtype)


def number(x):
    return np.array([x], "f4")


def variables(**arrays):
    return {k: S.var(k, shape=v.shape, dtype=v.dtype) for k, v in arrays.items()}


def operators():
    """Every operator on random numbers, with its results dequantized where they are no numbers."""
    r = np.random.default_rng(11)
    x = np.concatenate([np.arange(-20, 21) / 2, r.standard_normal(59) * 8]).astype("f4").reshape(4, 25)
    v = variables(x=x)
    calibrated = {"min_calib_range": -13.0, "max_calib_range": 10.0}
    for kind in ("int8", "uint8", "auto"):
        for name, options in (("", {}), ("_calibrated", calibrated)):
            q = C.quantize_v2(v["x"], out_type=kind, **options)
            yield f"quantize_{kind}{name}", S.Group(list(q)), {"x": x}, {}
            if kind != "auto":
                yield f"dequantize_{kind}{name}", C.dequantize(*q), {"x": x}, {}
    positive = C.quantize_v2(v["x"], out_type="auto", min_calib_range=0.0, max_calib_range=9.0)
    yield "quantize_auto_positive", S.Group(list(positive)), {"x": x}, {}
    sums = r.integers(-200000, 200000, (4, 25)).astype("i4")
    ends = {"low": number(-(2.0**31) * 1e-3), "high": number(2.0**31 * 1e-3)}
    v = variables(x=sums, **ends)
    for kind in ("int8", "uint8", "auto"):
        for name, options in (
            ("", {}),
            ("_calibrated", {"min_calib_range": -99.0, "max_calib_range": 120.0}),
        ):
            if kind == "uint8" and not options:
                continue
            found = C.requantize(v["x"], v["low"], v["high"], out_type=kind, **options)
            yield f"requantize_{kind}{name}", S.Group(list(found)), {"x": sums}, ends
    for kind in ("int8", "uint8"):
        yield from layers(r, kind)


def layers(r, kind):
    x = integers(r, kind, 2, 4, 6, 6)
    ends = {"low": number(LOW[kind]), "high": number(HIGH)}
    more = {"wl": number(-1.5), "wh": number(1.0), "bl": number(-0.7), "bh": number(0.8)}
    weight, bias = integers(r, "int8", 5, 4, 3, 3), integers(r, "int8", 5)
    v = variables(x=x, w=weight, b=bias, **ends, **more)
    q, e = (v["x"], v["low"], v["high"]), (v["low"], v["high"])
    window = {"kernel": (3, 3), "num_filter": 5, "pad": (1, 1), "stride": (2, 1)}
    if kind == "uint8":
        ranges = {"min_data": e[0], "max_data": e[1], "min_weight": v["wl"], "max_weight": v["wh"]}
        found = C.quantized_conv(data=v["x"], weight=v["w"], no_bias=True, **ranges, **window)
        weights = {"w": weight, **ends, "wl": more["wl"], "wh": more["wh"]}
        yield "quantized_conv", S.Group(list(found)), {"x": x}, weights
        found = C.quantized_conv(v["x"], v["w"], v["b"], *e, v["wl"], v["wh"], v["bl"], v["bh"], **window)
        yield "quantized_conv_bias", S.Group(list(found)), {"x": x}, {"w": weight, "b": bias, **ends, **more}
    for flat in (True, False):
        weight, bias = integers(r, "int8", 7, 144 if flat else 6), integers(r, "int8", 7)
        w = variables(w=weight, b=bias)
        found = C.quantized_fully_connected(
            v["x"], w["w"], w["b"], *e, v["wl"], v["wh"], v["bl"], v["bh"], num_hidden=7, flatten=flat
        )
        arrays = {"w": weight, "b": bias, **ends, **more}
        yield f"quantized_dense_{kind}_{flat}", S.Group(list(found)), {"x": x}, arrays
    for name, options in (
        ("max", {"kernel": (3, 2), "stride": (2, 2), "pad": (1, 0), "pool_type": "max"}),
        ("avg", {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "pool_type": "avg"}),
        ("global", {"kernel": (1, 1), "global_pool": True, "pool_type": "avg"}),
    ):
        yield (
            f"quantized_pool_{name}_{kind}",
            S.Group(list(C.quantized_pooling(*q, **options))),
            {"x": x},
            ends,
        )
    yield f"quantized_act_{kind}", S.Group(list(C.quantized_act(*q, act_type="relu"))), {"x": x}, ends
    yield f"quantized_flatten_{kind}", S.Group(list(C.quantized_flatten(*q))), {"x": x}, ends
    for other in ("int8", "uint8"):
        y = integers(r, other, 2, 4, 6, 6)
        ends2 = {"low2": number(LOW[other] * 2), "high2": number(4.0)}
        w = variables(y=y, **ends2)
        found = C.quantized_concat(v["x"], w["y"], *e, w["low2"], w["high2"], dim=1, num_args=2)
        yield f"quantized_concat_{kind}_{other}", S.Group(list(found)), {"x": x, "y": y}, {**ends, **ends2}
        for name, options in (("", {}), ("_calibrated", {"min_calib_range": -4.0, "max_calib_range": 6.0})):
            if kind == other:
                found = C.quantized_elemwise_add(v["x"], w["y"], *e, w["low2"], w["high2"], **options)
                both = {"x": x, "y": y}, {**ends, **ends2}
                yield f"quantized_add_{kind}{name}", S.Group(list(found)), *both


def network(kind):
    """A network of the layers that MXNet can compute of each type."""
    x = S.var("data")
    if kind == "int8":
        x = S.Activation(S.FullyConnected(x, num_hidden=32, name="fc0"), act_type="relu", name="relu0")
        y = S.FullyConnected(x, num_hidden=32, name="fc1")
        x = S.concat(S.elemwise_add(x, y, name="sum"), y, dim=1, name="cat")
    else:
        x = S.Convolution(x, num_filter=8, kernel=(3, 3), pad=(1, 1), name="conv0")
        x = S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool0")
        y = S.Convolution(x, num_filter=8, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv1")
        z = S.Convolution(x, num_filter=8, kernel=(1, 1), name="conv2")
        x = S.concat(S.elemwise_add(y, z, name="sum"), x, dim=1, name="cat")
        x = S.Flatten(S.Pooling(x, global_pool=True, kernel=(1, 1), pool_type="avg", name="gap"), name="flat")
    return S.softmax(S.FullyConnected(x, num_hidden=10, name="fc"), name="softmax")


def unsaturated(weight):
    """Weights of which no two products with uint8 exceed int16, in which oneDNN adds them on many CPUs."""
    found = weight.asnumpy()
    found *= 0.49 / np.abs(found).max()
    found[0] = 0
    found[(0,) * found.ndim] = 1
    return mx.nd.array(found)


def networks():
    """Networks as quantize_model writes them, with a calibration and without."""
    for kind, shape in (("int8", (4, 20)), ("uint8", (4, 3, 16, 16))):
        for mode in ("naive", "none"):
            r = np.random.default_rng(3)
            symbol = network(kind)
            mx.random.seed(4)
            module = mx.mod.Module(symbol, data_names=["data"], label_names=None)
            module.bind(data_shapes=[("data", shape)], for_training=False)
            module.init_params(mx.init.Xavier(magnitude=2))
            args, aux = module.get_params()
            args = {k: unsaturated(v) if k.endswith("_weight") else v for k, v in args.items()}
            data = np.abs(r.standard_normal((16, *shape[1:]))).astype("f4")
            examples = mx.io.NDArrayIter(data=mx.nd.array(data), batch_size=4)
            options = {"calib_data": examples, "num_calib_examples": 16} if mode != "none" else {}
            found, args, aux = quantization.quantize_model(
                symbol, args, aux, data_names=["data"], label_names=None, calib_mode=mode,
                quantized_dtype=kind, logger=logging.getLogger("quantization"), **options,
            )  # fmt: skip
            arrays = {k: v.asnumpy() for k, v in {**args, **aux}.items()}
            yield f"quantized_net_{kind}_{mode}", found, {"data": data[:4]}, arrays


def fused():
    """A network as oneDNN's backend writes it."""
    r = np.random.default_rng(7)
    x = S.var("data", shape=(2, 3, 8, 8))
    y = S.Convolution(x, num_filter=4, kernel=(3, 3), pad=(1, 1), name="conv")
    y = S.Activation(S.BatchNorm(y, fix_gamma=False, name="bn"), act_type="relu")
    z = S.Convolution(y, num_filter=4, kernel=(1, 1), no_bias=True, name="conv2")
    symbol = S.Activation(S.FullyConnected(y + z, num_hidden=5, name="fc"), act_type="relu")
    shapes, _, states = symbol.infer_shape()
    names = [*zip(symbol.list_arguments(), shapes), *zip(symbol.list_auxiliary_states(), states)]
    arrays = {k: (r.random(s) * 0.8 + 0.1).astype("f4") for k, s in names}
    yield "fused", symbol.get_backend_symbol("MKLDNN"), {"data": arrays.pop("data")}, arrays
