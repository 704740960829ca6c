"""Networks as MXNet symbols, and MXNet 1.9.1's plans for their training. Runs in an environment of its own.

    python -m benchmarks.mxnet_networks FOLDER [NAME...]

Each network is FOLDER/NAME-symbol.json, NAME-0000.params with zeros, and NAME.json with the shapes of all
arguments, the names of the parameters and the auxiliary states, and the bytes that MXNet's executor says it
allocated for what its memory plan holds: all values of the graph but arguments, their gradients and auxiliary
states, in whole MiB rounded down; temporary space of operators comes on top and is not counted. Imports
nothing of ours.
"""

import json
import re
import sys
from pathlib import Path

import mxnet as mx
from mxnet.gluon.model_zoo import vision

S = mx.sym


def loss_of(logits):
    """Cross entropy against one-hot labels, as one number."""
    return S.sum(S.log_softmax(logits, axis=-1) * S.var("label")) * -1.0


def zoo(name, batch, size):
    """A network of the model zoo on images."""
    block = getattr(vision, name)()
    return loss_of(block(S.var("data"))), {"data": (batch, 3, size, size), "label": (batch, 1000)}


def transformer(batch=8, length=128, width=256, heads=4, blocks=4):
    """Pre-normalized blocks of attention and two dense layers, over embedded tokens."""

    def dense(x, units, name):
        return S.FullyConnected(x, num_hidden=units, flatten=False, name=name)

    def apart(x):
        cut = S.reshape(x, shape=(batch, length, heads, width // heads))
        return S.reshape(S.transpose(cut, axes=(0, 2, 1, 3)), shape=(batch * heads, length, width // heads))

    x = S.var("data")
    for i in range(blocks):
        n = S.LayerNorm(x, name=f"b{i}_norm1")
        q, k, v = (apart(dense(n, width, f"b{i}_{part}")) for part in "qkv")
        scores = S.softmax(S.batch_dot(q, k, transpose_b=True) * (width // heads) ** -0.5, axis=-1)
        mixed = S.reshape(S.batch_dot(scores, v), shape=(batch, heads, length, width // heads))
        joined = S.reshape(S.transpose(mixed, axes=(0, 2, 1, 3)), shape=(batch, length, width))
        x = x + dense(joined, width, f"b{i}_out")
        n = S.LayerNorm(x, name=f"b{i}_norm2")
        hidden = S.LeakyReLU(dense(n, 4 * width, f"b{i}_up"), act_type="gelu")
        x = x + dense(hidden, width, f"b{i}_down")
    logits = dense(S.LayerNorm(x, name="norm"), 1000, "head")
    return loss_of(logits), {"data": (batch, length, width), "label": (batch, length, 1000)}


def lstm(batch=32, steps=20, width=200, words=1000):
    """Two layers of cells, unrolled, with a dense layer on every step."""
    x = S.var("data")
    for i in range(2):
        cell = mx.rnn.LSTMCell(width, prefix=f"l{i}_")
        zeros = [S.zeros((batch, width)), S.zeros((batch, width))]
        x, _ = cell.unroll(steps, inputs=x, begin_state=zeros, layout="NTC", merge_outputs=True)
    logits = S.FullyConnected(S.reshape(x, shape=(batch * steps, width)), num_hidden=words, name="head")
    return loss_of(logits), {"data": (batch, steps, width), "label": (batch * steps, words)}


def dlrm(batch=2048, rows=10_000, width=64, tables=8, sparse=False):
    """Dense features beside embeddings, their products, a dense head; gradients of tables dense or sparse."""

    def stack(x, units, name):
        for i, n in enumerate(units):
            x = S.Activation(S.FullyConnected(x, num_hidden=n, name=f"{name}{i}"), act_type="relu")
        return x

    bottom = stack(S.var("data"), (512, 256, width), "bottom")
    shapes = {"data": (batch, 13), "label": (batch, 2)}
    parts = [bottom]
    for i in range(tables):
        weight = S.var(f"table{i}", stype="row_sparse" if sparse else None)
        index = S.var(f"index{i}")
        parts.append(S.Embedding(index, weight, input_dim=rows, output_dim=width, sparse_grad=sparse))
        shapes[f"index{i}"] = (batch,)
    features = S.stack(*parts, axis=1)
    products = S.flatten(S.batch_dot(features, features, transpose_b=True))
    top = stack(S.concat(bottom, products, dim=1), (512, 256), "top")
    return loss_of(S.FullyConnected(top, num_hidden=2, name="head")), shapes


def unet(batch=4, size=128, base=32, levels=3, classes=4):
    """Convolutions with batch normalization down to an eighth of the image and up again, joined by copies."""

    def block(x, units, name):
        for i in range(2):
            x = S.Convolution(
                x, num_filter=units, kernel=(3, 3), pad=(1, 1), no_bias=True, name=f"{name}_c{i}"
            )
            x = S.Activation(S.BatchNorm(x, fix_gamma=False, name=f"{name}_n{i}"), act_type="relu")
        return x

    x, beside = S.var("data"), []
    for i in range(levels):
        x = block(x, base << i, f"down{i}")
        beside.append(x)
        x = S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    x = block(x, base << levels, "middle")
    for i in reversed(range(levels)):
        x = S.Deconvolution(
            x, num_filter=base << i, kernel=(2, 2), stride=(2, 2), no_bias=True, name=f"up{i}"
        )
        x = block(S.concat(x, beside[i], dim=1), base << i, f"join{i}")
    x = S.Convolution(x, num_filter=classes, kernel=(1, 1), name="head")
    logits = S.transpose(x, axes=(0, 2, 3, 1))
    return loss_of(logits), {"data": (batch, 3, size, size), "label": (batch, size, size, classes)}


NETWORKS = {
    "resnet18": lambda: zoo("resnet18_v1", 16, 224),
    "mobilenet_v2": lambda: zoo("mobilenet_v2_1_0", 16, 224),
    "transformer": transformer,
    "lstm": lstm,
    "dlrm": dlrm,
    "dlrm_row_sparse": lambda: dlrm(sparse=True),
    "unet": unet,
}


def write(folder, name):
    """Bind the network for training and write what there is to know."""
    loss, given = NETWORKS[name]()
    arguments, auxiliary = loss.list_arguments(), loss.list_auxiliary_states()
    parameters = [a for a in arguments if a not in given]
    shapes, _, states = loss.infer_shape(**given)
    executor = loss.simple_bind(
        mx.cpu(), grad_req={a: "write" if a in parameters else "null" for a in arguments}, **given
    )
    told = executor.debug_str()
    symbol = json.loads(loss.tojson())
    for node in symbol["nodes"]:
        if node["name"] in given:
            node.setdefault("attrs", {})["__shape__"] = str(tuple(given[node["name"]]))
    (folder / f"{name}-symbol.json").write_text(json.dumps(symbol))
    kinds = {**dict.fromkeys(parameters, "arg"), **dict.fromkeys(auxiliary, "aux")}
    sizes = {**dict(zip(arguments, shapes)), **dict(zip(auxiliary, states))}
    mx.nd.save(
        str(folder / f"{name}-0000.params"),
        {f"{kind}:{n}": mx.nd.zeros(sizes[n]) for n, kind in kinds.items()},
    )
    found = {
        "shapes": sizes,
        "parameters": parameters,
        "auxiliary": auxiliary,
        "planned_mib": int(re.search(r"Total (\d+) MB allocated", told).group(1)),
        "row_sparse": [
            n for n, g in zip(arguments, executor.grad_arrays) if g is not None and g.stype == "row_sparse"
        ],
    }
    (folder / f"{name}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for network in sys.argv[2:] or NETWORKS:
        write(target, network)
