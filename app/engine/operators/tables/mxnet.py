"""Storage types as operators of MXNet 1.9.1 infer them, and which of them an ONNX node stands for.

A row reads `dc>d:X`: inputs default and csr, output default, mode COMPUTE_EX (F: COMPUTE, B: FALLBACK).
Where no row applies, operands are cast (FALLBACK) or, for few operators, it is an error.

Source: measured on MXNet 1.9.1, CPU with oneDNN, operator by operator (the verbose log of its inference);
what was not measured, such as bias operands, follows apache/mxnet src/operator.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.registry import Operator, SymbolOf
from app.engine.types.storage import (
    LETTERS,
    MXNET,
    Attributes,
    DispatchMode,
    Kinds,
    StorageKind,
    StorageRuleOf,
    StorageRules,
    Symbol,
    dense,
    parsed,
)


def table(text: str, otherwise: StorageKind | None = "default", *, first: bool = False) -> StorageRuleOf:
    """These rows whatever the attributes."""
    rows = StorageRules(parsed(text), otherwise, first)
    return lambda _attributes, _inputs, _outputs: rows


GATED = dense(DispatchMode.COMPUTE_EX)  # oneDNN computes dense operands
KEEPS_ZERO = table("d>d:F r>r:X c>c:X")


KINDS: Mapping[str, StorageKind] = {kind: kind for kind in LETTERS.values()}

# Rows of dot by what is transposed; of several for the same inputs the first is what is not asked for.
_PRODUCTS = {
    (False, False): "dd>d:F cd>d:X cr>d:X dc>c:X dc>d:X",
    (True, False): "dd>d:F cd>r:X cr>r:X cd>d:X",
    (False, True): "dd>d:F dc>d:X",
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
    return StorageRules((*parsed("dc>c:B" if turned == (False, True) else ""), *rows))


def _concat(attributes: Attributes, inputs: int, _outputs: int) -> StorageRules:
    if attributes.get("dim", "1") == "0":
        return StorageRules(parsed(f"{'d' * inputs}>d:F {'c' * inputs}>c:X"))
    return StorageRules(parsed(f"{'d' * inputs}>d:X"))


def _sum_of(_attributes: Attributes, inputs: int, _outputs: int) -> StorageRules:
    """Storage rule of several operands: all alike, csr between two dense, more than four with a dense one."""
    rows = list(parsed(f"{'d' * inputs}>d:X {'r' * inputs}>r:X"))
    if inputs == 3:
        rows += parsed("dcd>d:X")
    return StorageRules(tuple(rows), of_kinds=_dense_of_many)


def _dense_of_many(kinds: Kinds) -> DispatchMode | None:
    return DispatchMode.COMPUTE_EX if len(kinds) > 4 and "default" in kinds else None


def _reduce(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Along one axis csr has a kernel."""
    axis = attributes.get("axis", "None").strip("()[], ")
    kept = _is_true(attributes, "keepdims") or _is_true(attributes, "exclude")
    return StorageRules(parsed("d>d:F c>d:X" if axis in ("0", "1") and not kept else "d>d:F"))


def _slice(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    steps = attributes.get("step", "")
    plain = all(s.strip() in ("", "None", "1") for s in steps.strip("()[]").split(","))
    return StorageRules(parsed("d>d:X c>c:X" if plain else "d>d:F"))


def _fully_connected(_attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Weight and bias may be row_sparse, data may not."""

    def mode(kinds: Kinds) -> DispatchMode | None:
        taken = kinds[:1] == ("default",) and "csr" not in kinds
        return DispatchMode.COMPUTE_EX if taken else None

    return StorageRules((), of_kinds=mode)


def _concat_gradient(attributes: Attributes, inputs: int, outputs: int) -> StorageRules:
    """Gradients are dense whatever is stored; oneDNN splits dense ones along other axes than the first."""
    mode = "F" if attributes.get("dim", "1") == "0" else "X"
    return StorageRules(parsed(f"{'d' * inputs}>{'d' * outputs}:{mode}"), mode=DispatchMode.COMPUTE)


def _fully_connected_gradient(_attributes: Attributes, inputs: int, outputs: int) -> StorageRules:
    """Operands that are csr count as dense ones that oneDNN does not compute on."""
    rules = dense(DispatchMode.COMPUTE_EX)({}, inputs, outputs)
    return replace(rules, of_kinds=lambda kinds: None if "row_sparse" in kinds else DispatchMode.COMPUTE)


def _by_activation(*kinds: str) -> StorageRuleOf:
    """Dense operands in oneDNN for these of `act_type`, else without it."""

    def rules(attributes: Attributes, inputs: int, outputs: int) -> StorageRules:
        found = attributes.get("act_type", "leaky") in kinds
        return dense(DispatchMode.COMPUTE_EX if found else DispatchMode.COMPUTE)(attributes, inputs, outputs)

    return rules


def _square_sum(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Sums of squares of row_sparse operands, which alone it takes."""
    first = attributes.get("axis", "None").strip("()[], ").split(",")[0]
    if first == "1" and _is_true(attributes, "keepdims"):
        return StorageRules(parsed("r>r:X"), None)
    return StorageRules(parsed("r>d:X" if first in ("0", "1") else ""), None)


def _norm(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Sparse operands as a whole, csr along one axis too."""
    axis = attributes.get("axis", "None").strip("()[], ")
    if axis in ("None", ""):
        return StorageRules(parsed("d>d:F r>d:X c>d:X"))
    return _reduce(attributes, 1, 1)


def _batch_norm(attributes: Attributes, inputs: int, outputs: int) -> StorageRules:
    """Sparse operands are cast, or are an error while gamma is fixed."""
    rows = dense(DispatchMode.COMPUTE_EX)({}, inputs, outputs).rows
    fixed = _is_true({"fix_gamma": "True", **attributes}, "fix_gamma")
    return StorageRules(rows, None if fixed else "default")


def _cast_storage(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    texts = {"csr": "d>c:X c>c:X", "row_sparse": "d>r:X r>r:X", "default": "d>d:X r>d:X c>d:X"}
    return StorageRules(parsed(texts[attributes["stype"]]), None)


def _embedding_gradient(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Gradients from (output gradient, indices, weight's shape): none of the indices, one of the weight."""
    sparse = _is_true(attributes, "sparse_grad")
    return StorageRules(parsed("dd>dr:X" if sparse else "dd>dd:F"), None)


def _dot_gradient(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Gradients of both operands from (output gradient, left, right); none of a csr left operand."""
    turned_left, turned_right = _is_true(attributes, "transpose_a"), _is_true(attributes, "transpose_b")
    rows = ["ddd>dd:F"]
    if not turned_left:
        rows.append("ddc>dd:X")
    if not turned_right:  # whatever is on the right: it is not read
        made = "d" if turned_left else "r"
        rows += [f"{gradient}c{right}>d{made}:X" for gradient in "dr" for right in "drc"]
    return StorageRules(parsed(" ".join(rows)))


def _quadratic(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Storage rule of a x^2 + b x + c: csr stays csr where c is 0."""
    kept = float(attributes.get("c", "0")) == 0
    return StorageRules(parsed("d>d:F c>c:X" if kept else "d>d:F"))


def _of_scalar(keeps: Callable[[float], bool], otherwise: str = "d>d:F") -> StorageRuleOf:
    """Sparse operands stay sparse where the scalar leaves zeros zero."""

    def rules(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
        zero = keeps(float(attributes.get("scalar", "1")))
        return StorageRules(parsed("d>d:F r>r:X c>c:X" if zero else otherwise))

    return rules


def _clip(attributes: Attributes, _inputs: int, _outputs: int) -> StorageRules:
    """Between bounds that zero is not within, sparse operands are an error."""
    low, high = float(attributes.get("a_min", "-inf")), float(attributes.get("a_max", "inf"))
    if low <= 0 <= high:
        return StorageRules(parsed("d>d:F r>r:X c>c:X"))
    return StorageRules(parsed("d>d:F"), None)


_ADD = "dr>d:X dc>d:X rd>d:X rr>r:X cd>d:X cc>c:X"

_KEEP_ZERO = (
    "relu tanh sqrt square abs sign floor ceil round negative sin zeros_like BlockGrad "
    "arcsin arcsinh arctan arctanh cbrt degrees expm1 fix log1p make_loss radians rint sinh tan trunc "
    "_contrib_gradientmultiplier _contrib_backward_gradientmultiplier _contrib_round_ste _contrib_sign_ste "
    "_mul_scalar _div_scalar _backward_mul_scalar _backward_div_scalar _scatter_plus_scalar "
    "_scatter_minus_scalar"
)
# Of two operands alike.
_PAIRS = (
    "_maximum _minimum _hypot _grad_add _backward_relu _backward_square _backward_abs _backward_sign "
    "_backward_cos _backward_cosh _backward_sigmoid"
)
# The result is dense, and a dense operand beside a sparse one counts as two dense ones.
_TO_DENSE = (
    "elemwise_div _power _backward_arccos _backward_arccosh _backward_arcsin _backward_arcsinh "
    "_backward_arctan _backward_arctanh _backward_cbrt _backward_degrees _backward_expm1 _backward_gamma "
    "_backward_gammaln _backward_log _backward_log10 _backward_log1p _backward_log2 _backward_radians "
    "_backward_rsqrt _backward_sin _backward_sinh _backward_sqrt _backward_tan _backward_tanh"
)
_DISTRIBUTIONS = "uniform normal gamma exponential poisson negative_binomial generalized_negative_binomial"
_GATED = (
    "softmax Flatten reshape transpose Convolution Deconvolution Pooling "
    "_backward_Convolution _backward_Deconvolution _backward_Pooling "
    "_backward_softmax _backward_log_softmax SoftmaxOutput log_softmax expand_dims"
)
_DENSE = "batch_dot sigmoid exp log cos reciprocal ones_like Dropout _backward_batch_dot _backward_Dropout"

_RULES: dict[str, StorageRuleOf] = {
    "elemwise_add": table(f"dd>d:X {_ADD}"),
    "elemwise_sub": table(f"dd>d:F {_ADD}"),
    "elemwise_mul": table("dd>d:F dr>r:X dc>c:X rd>r:X rr>r:X cd>c:X cc>c:X"),
    "broadcast_add": table("dd>d:F dc>d:X cd>d:X"),
    "broadcast_sub": table("dd>d:F dc>d:X cd>d:X"),
    "broadcast_mul": table("dd>d:F cd>c:X"),
    "broadcast_div": table("dd>d:F cd>c:X"),
    "dot": _dot,
    "concat": _concat,
    "add_n": _sum_of,
    "sum": _reduce,
    "mean": _reduce,
    "norm": _norm,
    **dict.fromkeys(("BatchNorm", "_backward_BatchNorm"), _batch_norm),
    "slice": _slice,
    "_plus_scalar": _of_scalar(lambda s: s == 0, "d>d:F r>d:X c>d:X"),
    "_minus_scalar": _of_scalar(lambda s: s == 0, "d>d:F r>d:X c>d:X"),
    "_equal_scalar": _of_scalar(lambda s: s != 0),
    "_not_equal_scalar": _of_scalar(lambda s: s == 0),
    "_greater_scalar": _of_scalar(lambda s: s >= 0),
    "_greater_equal_scalar": _of_scalar(lambda s: s > 0),
    "_lesser_scalar": _of_scalar(lambda s: s <= 0),
    "_lesser_equal_scalar": _of_scalar(lambda s: s < 0),
    "clip": _clip,
    "_contrib_quantize_v2": table("d>ddd:X r>ddd:X c>ddd:X"),
    "_contrib_quadratic": _quadratic,
    "_identity_with_attr_like_rhs": table(
        "dd>d:F rr>r:X cc>c:X rd>d:X cd>d:X dr>r:B dc>c:B rc>c:B cr>r:B", first=True
    ),
    "_scatter_elemwise_div": table("rd>r:X rr>r:X rc>r:X"),
    "LinearRegressionOutput": table("dd>d:F dc>d:X"),
    "LogisticRegressionOutput": table("dd>d:F dc>d:X"),
    "identity": table("d>d:X r>r:X c>c:X"),
    "FullyConnected": _fully_connected,
    "Embedding": table("dd>d:F dr>d:X", None),
    "take": table("dd>d:F cd>c:X"),
    **dict.fromkeys(
        (f"_random_{name}_like" for name in _DISTRIBUTIONS.split()), table("d>d:F r>r:X")
    ),
    "where": table("ddd>d:F cdd>d:X"),
    **dict.fromkeys(("CTCLoss", "_contrib_CTCLoss"), table("dd>dd:F dr>dd:F dc>dd:F")),
    "sparse_retain": table("rd>r:X", None),
    "cast_storage": _cast_storage,
    # Backward operators: gradients of outputs first, then what the forward operator read or made.
    "_backward_add": table("d>dd:F r>rr:X c>cc:X"),
    "_backward_sub": table("d>dd:F r>rr:X c>cc:X"),
    "_backward_mul": table("ddd>dd:F ddc>cd:X dcd>dc:X"),
    "_backward_dot": _dot_gradient,
    "_backward_Embedding": _embedding_gradient,
    "_backward_sparse_retain": table("dd>rd:X", None),
    "_backward_Concat": _concat_gradient,
    "_backward_FullyConnected": _fully_connected_gradient,
    **dict.fromkeys(
        ("Activation", "_backward_Activation"), _by_activation("relu", "sigmoid", "tanh", "softrelu")
    ),
    **dict.fromkeys(("LeakyReLU", "_backward_LeakyReLU"), _by_activation("leaky", "elu", "gelu")),
    "_square_sum": _square_sum,
    "_backward_square_sum": table("dr>r:X rr>r:X", None),
    "_backward_where": table("dd>dd:F dc>dd:X"),
    "_backward_linear_reg_out": table("dd>dd:F cd>dd:X"),
    "_backward_logistic_reg_out": table("dd>dd:F cd>dd:X"),
    **dict.fromkeys(
        _KEEP_ZERO.split(),
        KEEPS_ZERO,
    ),
    **dict.fromkeys(
        _PAIRS.split(),
        table("dd>d:F rr>r:X cc>c:X"),
    ),
    **dict.fromkeys(
        _TO_DENSE.split(),
        table("dd>d:F dr>d:F dc>d:F rd>d:F cd>d:F rr>d:X"),
    ),
    **dict.fromkeys(
        _GATED.split(),
        GATED,
    ),
    **dict.fromkeys(
        _DENSE.split(),
        dense(),
    ),
}  # fmt: skip

# Other names of the same operators; symbols of models hold any of them. By the name above.
_ALIASES: Mapping[str, str] = {
    "identity": "_copy _backward_copy",
    "elemwise_add": "_add _plus _Plus",
    "elemwise_sub": "_sub _minus _Minus",
    "elemwise_mul": "_mul _Mul",
    "elemwise_div": "_div _Div",
    "broadcast_add": "broadcast_plus",
    "broadcast_sub": "broadcast_minus",
    "add_n": "ElementWiseSum",
    "concat": "Concat",
    "reshape": "Reshape",
    "Flatten": "flatten",
    "sum": "sum_axis",
    "BlockGrad": "stop_gradient",
    "SoftmaxOutput": "Softmax",
    "_maximum": "_Maximum",
    "_minimum": "_Minimum",
    "_hypot": "_Hypot",
    "_power": "_Power",
    "_plus_scalar": "_PlusScalar",
    "_minus_scalar": "_MinusScalar",
    "_mul_scalar": "_MulScalar",
    "_div_scalar": "_DivScalar",
    "_equal_scalar": "_EqualScalar",
    "_not_equal_scalar": "_NotEqualScalar",
    "_greater_scalar": "_GreaterScalar",
    "_greater_equal_scalar": "_GreaterEqualScalar",
    "_lesser_scalar": "_LesserScalar",
    "_lesser_equal_scalar": "_LesserEqualScalar",
    "sparse_retain": "_sparse_retain",
}


def _spellings() -> Mapping[str, StorageRuleOf]:
    """Rules by every name; what has sparse kernels may have a name that begins with `_sparse_`."""
    named = dict(_RULES)
    for name, aliases in _ALIASES.items():
        named.update(dict.fromkeys(aliases.split(), _RULES[name]))
    return {**{f"_sparse_{name}": rule for name, rule in named.items()}, **named}


OPERATORS = tuple(Operator(name, storage=rule, domain=MXNET) for name, rule in _spellings().items())


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
            return Symbol(scalar, {"scalar": str(float(graph.array(b).reshape(-1)[0]))}, operands=1)
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


def _bounds(node: ir.Node) -> Symbol:
    """Bounds that are not constants are taken as if zero were within."""
    told = {}
    for name, place in (("a_min", 1), ("a_max", 2)):
        bound = graph.constant(graph.input_at(node, place))
        if bound is not None:
            told[name] = str(float(bound.reshape(-1)[0]))
    return Symbol("clip", told, operands=1)


def _axes(op: str) -> SymbolOf:
    def symbol(node: ir.Node) -> Symbol:
        axes = graph.constant(graph.input_at(node, 1))
        told = {} if axes is None else {"axis": ", ".join(str(int(a)) for a in axes.reshape(-1))}
        return Symbol(op, {**told, "keepdims": str(bool(graph.attribute(node, "keepdims", 1)))}, operands=1)

    return symbol


_LOWERED = "Relu Sigmoid Tanh Exp Log Sqrt Abs Sign Floor Ceil Round Sin Cos Tan Sinh Cosh Reciprocal"
_INVERSE = "Asin Asinh Atan Atanh Acos Acosh"

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
    "BatchNormalization": lambda _node: Symbol("BatchNorm", {"fix_gamma": "False"}),
    "Clip": _bounds,
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
    **{op: _named(f"arc{op[1:]}") for op in _INVERSE.split()},
}
