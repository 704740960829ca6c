"""Storage types as operators of MXNet 1.9.1 infer them, and which of them an ONNX node stands for.

A row reads `dc>d:X`: inputs default and csr, output default, mode COMPUTE_EX (F: COMPUTE, B: FALLBACK).
Where no row applies, operands are cast (FALLBACK) or, for few operators, it is an error.

Source: measured on MXNet 1.9.1, CPU with oneDNN (design note storage-dispatch-layout, section 1); what
was not measured, bias operands and backward operators among it, follows the source named there.
"""

import itertools
from collections.abc import Mapping

import onnx_ir as ir

from app.engine import graph
from app.engine.registry import Operator, Symbol, SymbolOf
from app.engine.storage import (
    LETTERS,
    MXNET,
    Attributes,
    DispatchMode,
    StorageKind,
    StorageRow,
    StorageRuleOf,
    StorageRules,
    dense,
    parsed,
)


def table(text: str, otherwise: StorageKind | None = "default") -> StorageRuleOf:
    """These rows whatever the attributes."""
    rows = StorageRules(parsed(text), otherwise)
    return lambda _attributes, _inputs, _outputs: rows


GATED = dense(DispatchMode.COMPUTE_EX)  # oneDNN computes dense operands
KEEPS_ZERO = table("d>d:F r>r:X c>c:X")


KINDS: Mapping[str, StorageKind] = {kind: kind for kind in LETTERS.values()}

# Rows of dot by what is transposed; of several for the same inputs the first is what is not asked for.
_PRODUCTS = {
    (False, False): "dd>d:F cd>d:X cr>d:X dc>c:X dc>d:X",
    (True, False): "dd>d:F cd>r:X cr>r:X cd>d:X",
    (False, True): "dd>d:F",
    (True, True): "dd>d:F",
}


def _is_true(attributes: Attributes, name: str) -> bool:
    return attributes.get(name, "False") in ("True", "true", "1")


def _dot(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """`forward_stype` is the output's storage type, if given, and no other comes of a fallback."""
    turned = _is_true(attributes, "transpose_a"), _is_true(attributes, "transpose_b")
    rows = parsed(_PRODUCTS[turned])
    hint = attributes.get("forward_stype", "None")
    if hint in KINDS:
        return StorageRules(tuple(r for r in rows if r.outputs == (hint,)), KINDS[hint])
    # What a csr operand alone would give is kept even where there is no kernel for it.
    return StorageRules((*rows, *parsed("dc>c:B" if turned == (False, True) else "")))


def _concat(attributes: Attributes, inputs: int, _outputs: int) -> StorageRules:
    if attributes.get("dim", "1") == "0":
        return StorageRules(parsed(f"{'d' * inputs}>d:F {'c' * inputs}>c:X"))
    return StorageRules(parsed(f"{'d' * inputs}>d:X"))


def _sum_of(_attributes: Attributes, inputs: int, _outputs: int) -> StorageRules:
    """Of several: all alike, csr between two dense, or more than four with a dense one."""
    rows = list(parsed(f"{'d' * inputs}>d:X {'r' * inputs}>r:X"))
    if inputs == 3:
        rows += parsed("dcd>d:X")
    if inputs > 4:
        kinds: tuple[StorageKind, ...] = ("default", "row_sparse", "csr")
        rows += [
            StorageRow(combination, ("default",), DispatchMode.COMPUTE_EX)
            for combination in itertools.product(kinds, repeat=inputs)
            if "default" in combination
        ]
    return StorageRules(tuple(rows))


def _reduce(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Along one axis csr has a kernel."""
    axis = attributes.get("axis", "None").strip("()[], ")
    kept = _is_true(attributes, "keepdims") or _is_true(attributes, "exclude")
    return StorageRules(parsed("d>d:F c>d:X" if axis in ("0", "1") and not kept else "d>d:F"))


def _slice(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    steps = attributes.get("step", "")
    plain = all(s.strip() in ("", "None", "1") for s in steps.strip("()[]").split(","))
    return StorageRules(parsed("d>d:X c>c:X" if plain else "d>d:X"))


def _fully_connected(_attributes: Attributes, inputs: int, _outputs: int) -> StorageRules:
    """Weight and bias may be row_sparse, data may not."""
    rest = ("".join(kinds) for kinds in itertools.product("dr", repeat=inputs - 1))
    return StorageRules(parsed(" ".join(f"d{kinds}>d:X" for kinds in rest)))


def _cast_storage(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    texts = {"csr": "d>c:X c>c:X", "row_sparse": "d>r:X r>r:X", "default": "d>d:X r>d:X c>d:X"}
    return StorageRules(parsed(texts[attributes["stype"]]), None)


def _embedding_gradient(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Of (output gradient, indices, weight's shape): (no gradient of indices, gradient of the weight)."""
    sparse = _is_true(attributes, "sparse_grad")
    return StorageRules(parsed("dd>dr:X" if sparse else "dd>dd:F"), None)


def _dot_gradient(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Of (output gradient, left, right) for both operands; that of a csr left operand is not made."""
    if _is_true(attributes, "transpose_b"):
        return StorageRules(parsed("ddd>dd:F"))
    right = "d" if _is_true(attributes, "transpose_a") else "r"
    return StorageRules(parsed(f"ddd>dd:F dcd>d{right}:X"))


_ADD = "dr>d:X dc>d:X rd>d:X rr>r:X cd>d:X cc>c:X"

_KEEP_ZERO = (
    "relu tanh sqrt square abs sign floor ceil round negative sin zeros_like BlockGrad clip "
    "_mul_scalar _div_scalar"
)
_GATED = (
    "softmax Flatten reshape transpose Activation LeakyReLU Convolution Deconvolution Pooling "
    "BatchNorm _backward_Activation _backward_LeakyReLU _backward_Convolution "
    "_backward_Deconvolution _backward_Pooling _backward_FullyConnected _backward_BatchNorm "
    "_backward_softmax"
)
_DENSE = (
    "batch_dot sigmoid exp log cos reciprocal ones_like Dropout _backward_sigmoid "
    "_backward_batch_dot _backward_Dropout"
)

_RULES: dict[str, StorageRuleOf] = {
    "elemwise_add": table(f"dd>d:X {_ADD}"),
    "elemwise_sub": table(f"dd>d:F {_ADD}"),
    "elemwise_mul": table("dd>d:F dr>r:X dc>c:X rd>r:X rr>r:X cd>c:X cc>c:X"),
    "elemwise_div": table("dd>d:F dr>d:F dc>d:F rd>d:F rr>d:X cd>d:F"),
    "broadcast_add": table("dd>d:F dc>d:X cd>d:X"),
    "broadcast_sub": table("dd>d:F dc>d:X cd>d:X"),
    "broadcast_mul": table("dd>d:F cd>c:X"),
    "broadcast_div": table("dd>d:F cd>c:X"),
    "dot": _dot,
    "concat": _concat,
    "add_n": _sum_of,
    "sum": _reduce,
    "mean": _reduce,
    "norm": table("d>d:F r>d:X c>d:X"),
    "slice": _slice,
    "_plus_scalar": table("d>d:F r>d:X c>d:X"),
    "_minus_scalar": table("d>d:F r>d:X c>d:X"),
    "identity": table("d>d:X r>r:X c>c:X"),
    "FullyConnected": _fully_connected,
    "Embedding": table("dd>d:F dr>d:X", None),
    "take": table("dd>d:F cd>c:X"),
    "where": table("ddd>d:F cdd>d:X"),
    "sparse_retain": table("rd>r:X", None),
    "cast_storage": _cast_storage,
    # Backward operators: gradients of outputs first, then what the forward operator read or made.
    "_backward_add": table("d>dd:F r>rr:X c>cc:X"),
    "_backward_sub": table("d>dd:F r>rr:X c>cc:X"),
    "_backward_mul": table("ddd>dd:F rrr>rr:X"),
    "_backward_dot": _dot_gradient,
    "_backward_Embedding": _embedding_gradient,
    "_backward_copy": table("d>d:X r>r:X c>c:X"),
    "_backward_sparse_retain": table("dd>dr:X rd>dr:X", None),
    **dict.fromkeys(
        _KEEP_ZERO.split(),
        KEEPS_ZERO,
    ),
    **dict.fromkeys(["_backward_relu", "_backward_tanh", "_backward_sqrt", "_backward_square"],
        table("dd>d:F rr>r:X cc>c:X")),
    **dict.fromkeys(
        _GATED.split(),
        GATED,
    ),
    **dict.fromkeys(
        _DENSE.split(),
        dense(),
    ),
}  # fmt: skip

OPERATORS = tuple(Operator(name, "mxnet", storage=rule, domain=MXNET) for name, rule in _RULES.items())


# What ONNX nodes stand for.


def _named(op: str, operands: int | None = None) -> SymbolOf:
    return lambda _node: Symbol(op, operands=operands)


def _binary(elementwise: str, broadcast: str, scalar: str = "") -> SymbolOf:
    """By the shapes of two operands: equal, one of them a single constant, or any."""

    def symbol(node: ir.Node) -> Symbol:
        a, b = node.inputs
        if a is None or b is None or graph.shape(a) == graph.shape(b):
            return Symbol(elementwise)
        if scalar and graph.is_constant(b) and graph.shape(b) in ((), (1,)):
            return Symbol(scalar, operands=1)
        return Symbol(broadcast)

    return symbol


def _product(node: ir.Node) -> Symbol:
    ranks = {len(graph.shape(v) or ()) for v in node.inputs if v is not None}
    return Symbol("dot" if ranks == {2} else "batch_dot")


def _gemm(node: ir.Node) -> Symbol:
    """FullyConnected has a turned weight, and its bias is no matrix."""
    if graph.attribute(node, "transB", 0) and not graph.attribute(node, "transA", 0):
        return Symbol("FullyConnected")
    turned = {f"transpose_{x}": str(bool(graph.attribute(node, f"trans{x.upper()}", 0))) for x in "ab"}
    return Symbol("dot", turned, operands=2)


def _axes(op: str) -> SymbolOf:
    def symbol(node: ir.Node) -> Symbol:
        axes = graph.constant(graph.input_at(node, 1))
        told = {} if axes is None else {"axis": ", ".join(str(int(a)) for a in axes.reshape(-1))}
        return Symbol(op, {**told, "keepdims": str(bool(graph.attribute(node, "keepdims", 1)))}, operands=1)

    return symbol


_LOWERED = "Relu Sigmoid Tanh Exp Log Sqrt Abs Sign Floor Ceil Round Sin Cos Reciprocal"

SYMBOLS: dict[str, SymbolOf] = {
    "Add": _binary("elemwise_add", "broadcast_add", "_plus_scalar"),
    "Sub": _binary("elemwise_sub", "broadcast_sub", "_minus_scalar"),
    "Mul": _binary("elemwise_mul", "broadcast_mul", "_mul_scalar"),
    "Div": _binary("elemwise_div", "broadcast_div", "_div_scalar"),
    "MatMul": _product,
    "Gemm": _gemm,
    "Sum": _named("add_n"),
    "Concat": lambda node: Symbol("concat", {"dim": str(graph.attribute(node, "axis", 0))}),
    "ReduceSum": _axes("sum"),
    "ReduceMean": _axes("mean"),
    "ReduceL2": _named("norm", 1),
    "Gather": _named("take"),
    "Where": _named("where"),
    "Slice": _named("slice", 1),
    "Reshape": _named("reshape", 1),
    "Flatten": _named("Flatten"),
    "Transpose": _named("transpose"),
    "Conv": _named("Convolution"),
    "ConvTranspose": _named("Deconvolution"),
    "BatchNormalization": _named("BatchNorm"),
    "Clip": _named("clip", 1),
    "Dropout": _named("Dropout", 1),
    "LeakyRelu": _named("LeakyReLU"),
    "Elu": _named("LeakyReLU"),
    "Selu": _named("LeakyReLU"),
    "PRelu": _named("LeakyReLU"),
    "Neg": _named("negative"),
    "Softmax": _named("softmax"),
    "Identity": _named("identity"),
    **{
        op: _named("Pooling")
        for op in ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool", "LpPool", "GlobalLpPool")
    },
    **{op: _named(op.lower()) for op in _LOWERED.split()},
}
