"""Write random training graphs and the storage types that MXNet 1.9.1 infers for them. Runs in its environment.

    python training_graphs.py FILE COUNT [SEED]
    python training_graphs.py FOLDER COUNT [SEED]

Each line of the file is a graph in JSON: `symbol` is the training graph that MXNet's executor makes of a random
symbol (bound with grad_req write), as a symbol with gradients as heads; `nodes` are, in its order, the mode and the
storage types of inputs and outputs from the verbose log of its inference, or `refused` names the operator at which
it ended. In a folder, cases of values for `tests.mxnet`, see `write_values`. Imports nothing of ours.
"""

import ctypes
import json
import os
import re
import sys
import tempfile
from pathlib import Path

SETTINGS = os.environ  # noqa: TID251  # MXNet's, which it reads from there alone
SETTINGS["MXNET_SUBGRAPH_BACKEND"] = "NONE"
SETTINGS["MXNET_INFER_STORAGE_TYPE_VERBOSE_LOGGING"] = "1"
SETTINGS["MXNET_STORAGE_FALLBACK_LOG_VERBOSE"] = "0"

import mxnet as mx  # noqa: E402  # after its settings
import numpy as np  # noqa: E402

S = mx.sym
SIZE = 4
KINDS = ("default", "row_sparse", "csr")
NODE = re.compile(r"exec_utils\.h:\d+: \s*(node|input|output) (\d+)(?::)? (.*)$")
_UNARY = """relu sigmoid tanh exp log sqrt square abs sign floor ceil round rint fix trunc negative sin cos tan
arcsin arccos arctan sinh cosh arcsinh arccosh arctanh degrees radians expm1 log1p log2 log10 rsqrt cbrt rcbrt
reciprocal gamma gammaln erf softsign hard_sigmoid identity BlockGrad make_loss zeros_like ones_like logical_not
softmax log_softmax softmin Flatten transpose smooth_l1 L2Normalization"""
UNARY = _UNARY.split()
_BINARY = """elemwise_add elemwise_sub elemwise_mul elemwise_div broadcast_add broadcast_sub broadcast_mul
broadcast_div broadcast_maximum broadcast_minimum broadcast_power broadcast_hypot broadcast_equal
broadcast_greater broadcast_lesser_equal dot _maximum _minimum _power _hypot _mod _equal _greater
reshape_like broadcast_like"""
BINARY = _BINARY.split()
_SCALAR = """_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar _power_scalar
_rpower_scalar _maximum_scalar _minimum_scalar _equal_scalar _not_equal_scalar _greater_scalar
_greater_equal_scalar _lesser_scalar _lesser_equal_scalar _mod_scalar _hypot_scalar"""
SCALAR = _SCALAR.split()


def operator(name):
    """A function of mx.sym, of its internal ones or of those for sparse arrays."""
    return next(getattr(m, name) for m in (S, S._internal, S.sparse) if hasattr(m, name))


class Graph:
    """A random symbol under construction; every value has four rows of four."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.count = 0
        self.values = [self.variable() for _ in range(self.random.integers(2, 5))]

    def name(self, stem):
        self.count += 1
        return f"{stem.strip('_')}{self.count}"

    def any(self):
        return self.values[self.random.integers(len(self.values))]

    def pick(self, options):
        return options[self.random.integers(len(options))]

    def variable(self, shape=(SIZE, SIZE), kinds=KINDS, stem="x"):
        """A variable of a random storage type; one of six declares none."""
        kind = None if self.random.random() < 1 / 6 else self.pick(kinds)
        return S.var(self.name(stem), shape=shape, stype=kind)

    def rows(self, stem="label"):
        return self.variable((SIZE,), KINDS[:2] if self.random.random() < 0.1 else KINDS[:1], stem)

    def operand(self):
        """A value, or a new variable."""
        return self.any() if self.random.random() < 0.75 else self.variable()

    def add(self, op, *operands, **attributes):
        made = operator(op)(*operands, name=self.name(op), **attributes)
        return made[0] if len(made.list_outputs()) > 1 else made

    def grow(self):
        self.values.append(self.pick(STEPS)(self))

    def symbol(self):
        heads = [self.values[-1]]
        if self.random.random() < 0.4:
            heads.append(self.any())
        if self.random.random() < 0.3:
            heads[0] = self.pick(LOSSES)(self, heads[0])
        return S.Group(heads) if len(heads) > 1 else heads[0]


def _unary(g):
    return g.add(g.pick(UNARY), g.any())


def _unary_axis(g):
    return g.add("flip", g.any(), axis=int(g.random.integers(2)))


def _binary(g):
    return g.add(g.pick(BINARY), g.any(), g.operand())


def _sparse_binary(g):
    return g.add(g.pick(BINARY[:8]), g.any(), g.operand())


def _scalar(g):
    return g.add(g.pick(SCALAR), g.any(), scalar=float(g.pick((0, 1, 2, -1.5))))


def _dot(g):
    attributes = {k: True for k in ("transpose_a", "transpose_b") if g.random.random() < 0.35}
    if g.random.random() < 0.2:
        attributes["forward_stype"] = g.pick(KINDS)
    return g.add("dot", g.any(), g.operand(), **attributes)


def _add_n(g):
    return g.add("add_n", *(g.operand() for _ in range(g.random.integers(1, 7))))


def _where(g):
    return g.add("where", g.any(), g.operand(), g.operand())


def _clip(g):
    low, high = g.pick(((-1, 1), (0, 6), (1, 2), (-2, -1)))
    return g.add("clip", g.any(), a_min=low, a_max=high)


def _reduced(g):
    axis = g.pick((0, 1, (0,), (1,), None, (0, 1), -1))
    kept = g.random.random() < 0.7 or axis in (None, (0, 1))
    op = g.pick(("sum", "mean", "norm", "max", "min", "prod", "nansum", "_square_sum"))
    attributes = {"keepdims": kept} if axis is None else {"axis": axis, "keepdims": kept}
    found = g.add(op, g.any(), **attributes)
    if not kept:
        found = g.add("reshape", found, shape=(1, SIZE) if axis in (0, (0,)) else (SIZE, 1))
    return g.add(
        g.pick(("broadcast_mul", "broadcast_add", "broadcast_div", "broadcast_sub")), g.operand(), found
    )


def _sliced(g):
    """Two halves of values, together again."""
    axis = int(g.random.integers(2))
    ends = {"begin": (0,), "end": (2,)} if axis == 0 else {"begin": (None, 0), "end": (None, 2)}
    if g.random.random() < 0.15:
        ends = {"begin": (0,), "end": (4,), "step": (2,)} if axis == 0 else ends
    parts = [
        g.add("slice", g.operand(), **ends) if g.random.random() < 0.7
        else g.add("slice_axis", g.operand(), axis=axis, begin=0, end=2)
        for _ in range(2)
    ]  # fmt: skip
    return g.add("concat", *parts, dim=axis)


def _cast_storage(g):
    return g.add("cast_storage", g.any(), stype=g.pick(KINDS))


def _retain(g):
    retained = g.any() if g.random.random() < 0.3 else g.add("cast_storage", g.any(), stype="row_sparse")
    return g.add("retain", retained, g.rows("rows"))


def _embedding(g):
    weight = g.variable(kinds=KINDS[:2] if g.random.random() < 0.9 else KINDS, stem="weight")
    sparse = bool(g.random.random() < 0.5)
    return g.add("Embedding", g.rows("tokens"), weight, input_dim=SIZE, output_dim=SIZE, sparse_grad=sparse)


def _take(g):
    return g.add("take", g.any(), g.rows("places"))


def _fully_connected(g):
    weight = g.variable(stem="weight") if g.random.random() < 0.7 else g.any()
    if g.random.random() < 0.5:
        return g.add("FullyConnected", g.any(), weight, num_hidden=SIZE, no_bias=True)
    return g.add("FullyConnected", g.any(), weight, g.variable((SIZE,), KINDS[:2], "bias"), num_hidden=SIZE)


def _activation(g):
    if g.random.random() < 0.5:
        return g.add(
            "Activation", g.any(), act_type=g.pick(("relu", "sigmoid", "tanh", "softrelu", "softsign"))
        )
    return g.add("LeakyReLU", g.any(), act_type=g.pick(("leaky", "elu", "selu", "gelu")))


def _normalized(g):
    parameters = [S.var(g.name("parameter"), shape=(SIZE,)) for _ in range(4)]
    if g.random.random() < 0.5:
        return g.add("LayerNorm", g.any(), *parameters[:2])
    return g.add("BatchNorm", g.any(), *parameters)


def _reshaped(g):
    found = g.add("reshape", g.any(), shape=(2, 8))
    return g.add("Reshape", g.add("relu", found) if g.random.random() < 0.3 else found, shape=(SIZE, SIZE))


def _batched(g):
    a, b = (g.add("expand_dims", g.operand(), axis=0) for _ in range(2))
    return g.add("squeeze", g.add("batch_dot", a, b, transpose_b=bool(g.random.random() < 0.5)), axis=0)


def _split(g):
    axis = int(g.random.integers(2))
    parts = S.split(g.any(), num_outputs=2, axis=axis, name=g.name("split"))
    return g.add("concat", *parts, dim=axis)


def _dropout(g):
    return g.add("Dropout", g.any(), p=0.5)


def _stacked(g):
    found = g.add("stack", g.any(), g.operand(), axis=0)
    return g.add("sum", found, axis=0)


def _windows(g):
    image = g.add("reshape", g.any(), shape=(1, 1, SIZE, SIZE))
    if g.random.random() < 0.5:
        weight = S.var(g.name("weight"), shape=(1, 1, 3, 3))
        found = g.add("Convolution", image, weight, kernel=(3, 3), pad=(1, 1), num_filter=1, no_bias=True)
    else:
        kind = g.pick(("max", "avg"))
        found = g.add("Pooling", image, kernel=(3, 3), pad=(1, 1), pool_type=kind)
    return g.add("reshape", found, shape=(SIZE, SIZE))


STEPS = (
    *[_unary] * 8, *[_sparse_binary] * 5, *[_binary] * 4, *[_scalar] * 4, *[_dot] * 4, *[_add_n] * 2,
    *[_reduced] * 3, *[_sliced] * 2, *[_cast_storage] * 2, *[_retain] * 2, *[_embedding] * 2,
    *[_fully_connected] * 2, *[_activation] * 2, _where, _clip, _take, _normalized, _reshaped, _batched, _split,
    _dropout, _stacked, _windows, _unary_axis,
)  # fmt: skip


def _softmax_output(g, x):
    return g.add("SoftmaxOutput", x, g.rows())


def _regression(g, x):
    op = g.pick(("LinearRegressionOutput", "LogisticRegressionOutput", "MAERegressionOutput"))
    return g.add(op, x, g.variable(kinds=("default", "csr"), stem="label"))


def _make_loss(g, x):
    return g.add(g.pick(("MakeLoss", "make_loss")), x)


def _total(g, x):
    return g.add("sum", x)


LOSSES = (_softmax_output, _regression, _make_loss, _total)


def logged(symbol, grad_req="write"):
    """The executor's own account of a symbol, and the lines of its log of inference; or the error."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            executor, error = symbol.simple_bind(mx.cpu(), grad_req=grad_req), None
        except (mx.base.MXNetError, RuntimeError) as cause:
            executor, error = None, str(cause)
        finally:
            os.dup2(saved, 2)
            os.close(saved)
        file.seek(0)
        text = file.read().decode(errors="replace")
    return executor, error, text


def inference(text):
    """Nodes of a log: [operator or None, mode, input entries, input kinds, output kinds], in order."""
    nodes = []
    for line in text.splitlines():
        found = NODE.search(line)
        if not found:
            continue
        part, number, rest = found.groups()
        if part == "node":
            op, _, mode = rest.partition(": ")
            nodes.append([None if op == "var" else op, mode, [], [], []])
        elif part == "input":
            nodes[-1][2].append(int(number))
            nodes[-1][3].append(rest)
        else:
            nodes[-1][4].append(rest)
    return nodes


def described(text):
    """(operator or None, name, attributes) of the nodes that an executor prints, and its outputs."""
    nodes, heads, part = [], [], ""
    for line in text.splitlines():
        if line.startswith("\toutput["):
            name, number = re.fullmatch(r"\toutput\[\d+\]=(.*)\((\d+)\)", line).groups()
            heads.append((name, int(number)))
        elif line.startswith("Variable:"):
            nodes.append((None, line[len("Variable:") :], {}, []))
        elif line.startswith("Op:"):
            op, name = re.fullmatch(r"Op:(\S+), Name=(.*)", line).groups()
            nodes.append((op, name, {}, []))
        elif line.endswith(":"):
            part = line
        elif part == "Attrs:" and line.startswith("\t"):
            key, _, text_of = line[1:].partition("=")
            nodes[-1][2][key] = text_of
        elif part == "Control deps:" and line.startswith("\t"):
            nodes[-1][3].append(line.partition("=")[2])
    return nodes, heads


def training_symbol(executor, nodes, attributes):
    """The graph of an executor as a symbol; wiring is that of the log, names and attributes are printed."""
    printed, heads = described(executor.debug_str())
    assert [n[0] for n in printed] == [n[0] for n in nodes]
    entries, pointers, made, places = [], [0], [], {}
    for at, ((op, name, told, after), node) in enumerate(zip(printed, nodes)):
        outputs = 1 if op is None else len(node[4])
        entries += [(at, i) for i in range(outputs)]
        pointers.append(len(entries))
        places.setdefault(name, at)
        row = {"op": op or "null", "name": name, "inputs": [[*entries[e], 0] for e in node[2]]}
        given = attributes.get(name, {}) if op is None else told
        if given:
            row["attrs"] = given
        if after:
            row["control_deps"] = [places[n] for n in after]
        made.append(row)
    return {
        "nodes": made,
        "arg_nodes": [i for i, n in enumerate(printed) if n[0] is None],
        "node_row_ptr": pointers,
        "heads": [[places[name], number, 0] for name, number in heads],
        "attrs": {"mxnet_version": ["int", 10901]},
    }


def case(seed):
    """A graph and what MXNet infers for it."""
    g = Graph(seed)
    for _ in range(g.random.integers(2, 9)):
        g.grow()
    symbol = g.symbol()
    attributes = {
        k: {a: v for a, v in told.items() if a.startswith("__")} for k, told in symbol.attr_dict().items()
    }
    executor, error, text = logged(symbol)
    if executor is not None:
        nodes = inference(text)
        told = [[n[1], n[3], n[4]] if n[0] else None for n in nodes]
        return {"seed": seed, "symbol": training_symbol(executor, nodes, attributes), "nodes": told}
    refused = re.search(r"Error in operator ([^:]+):", error)
    made = wiring(symbol, attributes) or json.loads(symbol.tojson())
    return {
        "seed": seed,
        "symbol": made,
        "refused": refused.group(1) if refused else error,
        "error": error[:600],
    }


# What refuses dense operands, by what takes them and is wired alike; the backward one's operands after these are not.
STANDS_IN = {
    "_sparse_retain": ("take", 2),
    "_backward_sparse_retain": ("_backward_take", 2),
    "_square_sum": ("norm", 1),
    "_backward_square_sum": ("_backward_norm", 2),
}


def wiring(symbol, attributes):
    """The training graph of a symbol that is refused: that of the same with dense variables, which is wired alike."""
    plain = json.loads(symbol.tojson())
    replaced, casts = set(), {}
    for node in plain["nodes"]:
        node.get("attrs", {}).pop("__storage_type__", None)
        if node["op"] == "cast_storage":
            stype = node["attrs"]["stype"]
            casts |= {node["name"]: stype, f"{node['name']}_backward": stype}
            node["attrs"]["stype"] = "default"
        if node["op"] in STANDS_IN:
            replaced |= {node["name"], f"{node['name']}_backward"}
            node["op"] = STANDS_IN[node["op"]][0]
    SETTINGS["MXNET_ELIMINATE_COMMON_EXPR"] = "0"  # casts that are alike here differ in the symbol
    executor, _, text = logged(S.load_json(json.dumps(plain)))
    del SETTINGS["MXNET_ELIMINATE_COMMON_EXPR"]
    if executor is None:  # a forward operator refuses dense operands as well
        return None
    made = training_symbol(executor, inference(text), attributes)
    back = {stand_in: (op, operands) for op, (stand_in, operands) in STANDS_IN.items()}
    for node in made["nodes"]:
        if node["name"] in casts and "stype" in node.get("attrs", {}):
            node["attrs"]["stype"] = casts[node["name"]]
        if node["name"] in replaced and node["op"] in back:
            node["op"], operands = back[node["op"]]
            node["inputs"] = node["inputs"][:operands]
    return made


def write_values(folder, seed):
    """Write a case of a random symbol."""
    g = Graph(seed)
    for _ in range(g.random.integers(1, 5)):
        g.grow()
    write_case(folder, f"training{seed}", g.symbol(), seed)


def layers():
    """Layers that compute otherwise in training, by name."""
    x = S.var("x", shape=(3, 4, 5, 2))

    def normalized(axis=1, **attributes):
        size = (3, 4, 5, 2)[axis]
        parts = [S.var(n, shape=(size,)) for n in ("gamma", "beta", "mean", "variance")]
        return S.sin(S.BatchNorm(x, *parts, axis=axis, name="norm", **attributes))

    yield "batch_norm", normalized(fix_gamma=False)
    yield "batch_norm_fixed", normalized()
    yield "batch_norm_last", normalized(axis=3, fix_gamma=False, eps=0.1)
    yield "batch_norm_global", normalized(fix_gamma=False, use_global_stats=True)
    yield "dropout", S.sin(S.Dropout(x, p=0.3, name="drop"))
    yield "dropout_axes", S.sin(S.Dropout(x, p=0.5, axes=(2, 3), name="drop"))
    yield "dropout_always", S.sin(S.Dropout(x, p=0.5, mode="always", name="drop"))
    twice = S.Dropout(S.relu(normalized(fix_gamma=False)), p=0.4, name="first")
    yield "norm_and_dropout", S.Dropout(S.square(twice), p=0.2, name="second")


def write_case(folder, title, symbol, seed):
    """Write the training graph of a symbol of dense variables, inputs, outputs and gradients as a case for `tests.mxnet`.

    Masks of Dropout, which MXNet draws, are inputs. Left out are graphs that MXNet refuses, those with operators
    that symbols cannot have here, and those with outputs that are not finite, rounding alone or not told apart.
    """
    attributes = {k: {a: v for a, v in t.items() if a == "__shape__"} for k, t in symbol.attr_dict().items()}
    plain = json.loads(symbol.tojson())
    for node in plain["nodes"]:
        node.get("attrs", {}).pop("__storage_type__", None)
    if {n["op"] for n in plain["nodes"]} & {"gamma", "gammaln", "nansum"}:
        return
    names = symbol.list_arguments()
    places = {n for n in names if n.startswith(("tokens", "places", "rows", "label"))}
    executor, _, text = logged(
        S.load_json(json.dumps(plain)), {n: "null" if n in places else "write" for n in names}
    )
    if executor is None:
        return
    made = training_symbol(executor, inference(text), attributes)
    if any(n["op"] == "_zeros_without_dtype" for n in made["nodes"]):  # its shape is inferred backward
        return
    random = np.random.default_rng(seed)
    inputs = {n: (random.random(a.shape) * 0.8 + 0.1).astype("f4") for n, a in executor.arg_dict.items()}
    for name, array in inputs.items():
        if name in places and array.ndim == 1:
            inputs[name] = random.integers(0, SIZE, array.shape).astype("f4")
        executor.arg_dict[name][:] = inputs[name]
    for name, array in executor.aux_dict.items():
        inputs[name] = (random.random(array.shape) + 0.5).astype("f4")
        array[:] = inputs[name]
    masks = watched(executor, [n["name"] for n in plain["nodes"] if n["op"] == "Dropout"])
    outputs = executor.forward(is_train=True)
    heads = [random.standard_normal(o.shape).astype("f4") for o in outputs]
    executor.backward([mx.nd.array(h) for h in heads])
    found = [o.asnumpy() for o in outputs]
    found += [executor.grad_dict[n].asnumpy() for n in names if n not in places]
    heads_of = {made["nodes"][h[0]]["name"] for h in made["heads"]}
    twice = any(sum(n["name"] == name for n in made["nodes"]) > 1 for name in heads_of)
    told = all(np.isfinite(a).all() and (not a.any() or np.abs(a).max() > 1e-5) for a in found)
    if twice or not told:  # the executor prints outputs by name alone
        return
    inputs |= masks
    for node in made["nodes"]:
        if node["name"].startswith("_head_grad_") and node["op"] == "null":
            index = int(node["name"].rsplit("_", 1)[1])
            inputs[node["name"]] = heads[index]
            node["attrs"] = {"__shape__": str(heads[index].shape)}
    (Path(folder) / f"{title}-symbol.json").write_text(json.dumps(made))
    used = {n["name"] for n in made["nodes"]} | {*masks}
    given = {n: a for n, a in inputs.items() if n in used}
    np.savez(Path(folder) / f"{title}.npz", **given, **{f"output{i}": a for i, a in enumerate(found)})


def watched(executor, dropouts):
    """Masks by the name of the input that each becomes here; they are there once the executor has run."""
    found = {}

    def keep(name, handle):
        text = name.decode()
        if text in {f"{n}_mask" for n in dropouts}:
            pointer = ctypes.cast(handle, mx.base.NDArrayHandle)
            found[text] = mx.nd.NDArray(pointer, writable=False).asnumpy()

    if dropouts:
        executor.set_monitor_callback(keep, monitor_all=True)
    return found


def main(file, count, seed=0):
    if Path(file).is_dir():
        for number, (title, symbol) in enumerate(layers()):
            write_case(file, f"training_{title}", symbol, number)
        for i in range(int(count)):
            write_values(file, int(seed) + i)
        return
    with Path(file).open("w") as out:
        for i in range(int(count)):
            out.write(json.dumps(case(int(seed) + i)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
