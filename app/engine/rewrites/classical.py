"""Operators of ai.onnx.ml that are arithmetic or indexing, as core operators.

What the specification leaves open is as onnxruntime has it: a vector is one sample, sums are float32 unless
samples are float64, one vector of coefficients tells two classes apart. What fails on some data, such as a
category that is unknown where none may be, stays as it is.

Source: ONNX operator specifications of ai.onnx.ml 1 to 5.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.rewriter import Made, Replacement, RewriteRule, constant_of

DOMAIN = "ai.onnx.ml"
_FLOAT, _DOUBLE, _INT64 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.INT64
_NUMBERS = (_FLOAT, _DOUBLE, _INT64, ir.DataType.INT32)
Rule = Callable[[ir.Node, Made, ir.Value], ir.Value | tuple[ir.Value, ...] | None]


def _on_numbers(rule: Rule) -> Callable[[ir.Node], Replacement | None]:
    """A rewrite rule of a rule for nodes whose first input is a tensor of numbers of known shape."""

    def rewritten(node: ir.Node) -> Replacement | None:
        x = node.inputs[0]
        if x is None or x.dtype not in _NUMBERS or not graph.shape(x):
            return None
        made = Made(node)
        found = rule(node, made, x)
        if found is None:
            return None
        return Replacement(found if isinstance(found, tuple) else (found,), made.nodes)

    rewritten.__name__ = rule.__name__
    return rewritten


def _cast(made: Made, x: ir.Value, dtype: ir.DataType, known: ir.DataType | None = None) -> ir.Value:
    return x if (known or x.dtype) == dtype else made("Cast", x, to=int(dtype))


def _real(made: Made, x: ir.Value) -> tuple[ir.Value, ir.DataType]:
    """Numbers as float32, unless they are float64, and their type."""
    kind = _DOUBLE if x.dtype == _DOUBLE else _FLOAT
    return _cast(made, x, kind), kind


def _numbers(node: ir.Node, name: str, kind: ir.DataType = _FLOAT) -> np.ndarray:
    """An attribute of floats in float32, or made wider."""
    return np.asarray(graph.attribute(node, name, ()), np.float32).astype(kind.numpy())


def scaler_as_product(node: ir.Node, made: Made, x: ir.Value) -> ir.Value | None:
    """(x - offset) * scale."""
    wide, kind = _real(made, x)
    operands = _numbers(node, "offset", kind), _numbers(node, "scale", kind)
    if any(len(a) not in (1, graph.static_shape(x)[-1]) for a in operands):
        return None
    offset, scale = (made.array(a, n) for a, n in zip(operands, ("offset", "scale")))
    return _cast(made, made("Mul", made("Sub", wide, offset), scale), _FLOAT, kind)


_NORMS = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}


def normalizer_as_quotient(node: ir.Node, made: Made, x: ir.Value) -> ir.Value | None:
    """Rows over their largest element or norm, where that is not 0."""
    reduction = _NORMS.get(graph.attribute(node, "norm", "MAX"))
    if reduction is None:
        return None
    wide = _cast(made, x, _FLOAT)
    size = made(reduction, wide, made.axes(-1), keepdims=1)
    zero, one = (made.array(np.array(v, np.float32), f"{v}") for v in (0, 1))
    return made("Div", wide, made("Where", made("Equal", size, zero), one, size))


def imputer_as_choice(node: ir.Node, made: Made, x: ir.Value) -> ir.Value | None:
    """Values in the place of the one that stands for missing ones."""
    whole = x.dtype is not None and x.dtype.is_integer()
    values = graph.attribute(node, "imputed_value_int64s" if whole else "imputed_value_floats", ())
    if len(values) not in (1, graph.static_shape(x)[-1]):
        return None
    kind = graph.element_type(x)
    imputed = made.array(np.array(values, None if whole else np.float32).astype(kind), "imputed")
    replaced = graph.attribute(node, "replaced_value_int64" if whole else "replaced_value_float", 0)
    if not whole and np.isnan(replaced):
        missing = made("IsNaN", x)
    else:
        missing = made(
            "Equal", x, made.array(np.array(replaced, None if whole else np.float32).astype(kind), "replaced")
        )
    return made("Where", missing, imputed, x)


def binarizer_as_comparison(node: ir.Node, made: Made, x: ir.Value) -> ir.Value | None:
    """1 above the threshold, else 0."""
    if x.dtype not in (_FLOAT, _DOUBLE):
        return None
    threshold = np.array(graph.attribute(node, "threshold", 0.0), np.float32).astype(graph.element_type(x))
    return made("Cast", made("Greater", x, made.array(threshold, "threshold")), to=int(x.dtype))


def vectorizer_as_concat(node: ir.Node, made: Made, _x: ir.Value) -> ir.Value | None:
    """Inputs side by side, as float32."""
    widths = graph.attribute(node, "inputdimensions", ())
    values = [v for v in node.inputs if v is not None and v.dtype in _NUMBERS and graph.shape(v)]
    shapes = [(1, *graph.static_shape(v))[-2:] for v in values]
    if (
        [s[1] for s in shapes] != list(widths)
        or len(values) != len(node.inputs)
        or len({s[0] for s in shapes}) > 1
    ):
        return None
    parts = []
    for value, shape in zip(values, shapes):
        part = _cast(made, value, _FLOAT)
        parts.append(part if graph.static_shape(value) == shape else made("Reshape", part, made.axes(*shape)))
    return made("Concat", *parts, axis=1)


def extractor_as_gather(node: ir.Node, made: Made, x: ir.Value) -> ir.Value | None:
    """Columns of x, by number."""
    index = node.inputs[1]
    if index is None or index.dtype != _INT64 or graph.shape(index) is None:
        return None
    shape = graph.static_shape(x)
    matrix = x if len(shape) > 1 else made("Reshape", x, made.axes(1, -1))
    flat = index if len(graph.static_shape(index)) == 1 else made("Reshape", index, made.axes(-1))
    return made("Gather", matrix, flat, axis=len(graph.static_shape(x)) - 1 if len(shape) > 1 else 1)


def one_hot_as_comparison(node: ir.Node, made: Made, x: ir.Value) -> ir.Value | None:
    """1 where a category is met; all 0 for others, where the node allows these."""
    categories = graph.attribute(node, "cats_int64s", ())
    if not categories or not graph.attribute(node, "zeros", 1):
        return None
    whole = made("Unsqueeze", _cast(made, x, _INT64), made.axes(-1))
    return made(
        "Cast", made("Equal", whole, made.array(np.array(categories, np.int64), "categories")), to=int(_FLOAT)
    )


def _vectors(node: ir.Node, x: ir.Value) -> int:
    """How many vectors of coefficients a linear model has; 0 where its attributes do not fit its input."""
    shape = graph.static_shape(x)
    count = len(graph.attribute(node, "coefficients", ()))
    vectors = 0 if len(shape) > 2 or not shape[-1] or count % shape[-1] else count // shape[-1]
    fits = len(graph.attribute(node, "intercepts", ())) in (0, vectors)
    return vectors if fits and graph.attribute(node, "post_transform", "NONE") in _TRANSFORMS else 0


def _products(node: ir.Node, made: Made, x: ir.Value) -> tuple[ir.Value, ir.DataType]:
    """Products of samples with vectors of coefficients, and their type."""
    shape = graph.static_shape(x)
    wide, kind = _real(made, x)
    weights = _numbers(node, "coefficients", kind).reshape(-1, shape[-1])
    bias = _numbers(node, "intercepts", kind)
    matrix = wide if len(shape) == 2 else made("Reshape", wide, made.axes(1, shape[0]))
    operands = [made.array(np.ascontiguousarray(weights.T), "coefficients")]
    operands += [made.array(bias, "intercepts")] if len(bias) else []
    return made("Gemm", matrix, *operands), kind


_TRANSFORMS = {"NONE": None, "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}


def _transformed(made: Made, scores: ir.Value, name: str) -> ir.Value:
    op = _TRANSFORMS[name]
    if op is None:
        return scores
    return made(op, scores, axis=1) if op == "Softmax" else made(op, scores)


def regressor_as_product(node: ir.Node, made: Made, x: ir.Value) -> ir.Value | None:
    """A product with the coefficients; a single score is not transformed."""
    width = _vectors(node, x)
    if not width or width != graph.attribute(node, "targets", 1):
        return None
    scores, kind = _products(node, made, x)
    transform = graph.attribute(node, "post_transform", "NONE") if width > 1 else "NONE"
    return _cast(made, _transformed(made, scores, transform), _FLOAT, kind)


def classifier_as_product(node: ir.Node, made: Made, x: ir.Value) -> tuple[ir.Value, ...] | None:
    """Labels and scores; where one vector tells two classes apart, the first has what is left."""
    width, transform = _vectors(node, x), graph.attribute(node, "post_transform", "NONE")
    strings = graph.attribute(node, "classlabels_strings", ())
    labels = strings or graph.attribute(node, "classlabels_ints", ())
    if not width or (width > 1 and len(labels) < width) or (width == 1 and strings and len(labels) != 2):
        return None
    scores, kind = _products(node, made, x)
    if width > 1:
        chosen = made("ArgMax", scores, axis=1, keepdims=0)
        return _label(made, chosen, labels), _cast(made, _transformed(made, scores, transform), _FLOAT, kind)
    zero, one = (made.array(np.array(v, kind.numpy()), f"{v}") for v in (0, 1))
    above = made("Cast", made("Reshape", made("Greater", scores, zero), made.axes(-1)), to=int(_INT64))
    if len(labels) != 2:
        return above, _cast(made, scores, _FLOAT, kind)
    if transform == "LOGISTIC":
        pair = made("Sigmoid", made("Concat", made("Neg", scores), scores, axis=1))
    else:
        pair = made("Concat", made("Sub", one, scores), scores, axis=1)
    return _label(made, above, labels), _cast(made, pair, _FLOAT, kind)


def classes_as_numbers(node: ir.Node) -> Replacement | None:
    """Names of classes are looked up behind a classifier, which chooses their numbers."""
    names = graph.attribute(node, "classlabels_strings", ())
    if not names:
        return None
    numbers = "classlabels_int64s" if node.op_type == "TreeEnsembleClassifier" else "classlabels_ints"
    attributes = [a for a in node.attributes.values() if a.name not in ("classlabels_strings", numbers)]
    attributes.append(ir.AttrInt64s(numbers, range(len(names))))
    classifier = ir.Node(node.domain, node.op_type, node.inputs, attributes, num_outputs=len(node.outputs))
    made = Made(node)
    chosen = classifier.outputs[0]
    chosen.name, chosen.type, chosen.shape = (
        f"{node.name}.class",
        ir.TensorType(_INT64),
        node.outputs[0].shape,
    )
    made.nodes.append(classifier)
    return Replacement((_label(made, chosen, names), *classifier.outputs[1:]), made.nodes)


def _label(made: Made, chosen: ir.Value, labels: Sequence[int] | Sequence[str]) -> ir.Value:
    """The labels of classes by number."""
    if list(labels) == list(range(len(labels))):
        return chosen
    if isinstance(labels[0], str):
        encoded = [str(name).encode() for name in labels]
        table = constant_of(ir.StringTensor(encoded, shape=ir.Shape([len(encoded)])), f"{chosen.name}.names")
    else:
        table = made.array(np.array(labels, np.int64), "labels")
    return made("Gather", table, chosen)


def encoder_of_names(node: ir.Node) -> Replacement | None:
    """A LabelEncoder from numbers to names: from numbers to positions, at which the names are looked up."""
    names = graph.attribute(node, "values_strings", ())
    keys = next(
        (a for n in ("keys_int64s", "keys_floats") if (a := node.attributes.get(n)) is not None), None
    )
    if not names or keys is None:
        return None
    last = ir.AttrInt64("default_int64", len(names))
    attributes = [keys, ir.AttrInt64s("values_int64s", range(len(names))), last]
    encoder = ir.Node(node.domain, node.op_type, node.inputs, attributes)
    made = Made(node)
    made.nodes.append(encoder)
    position = encoder.outputs[0]
    position.name, position.type = f"{node.name}.position", ir.TensorType(_INT64)
    position.shape = node.outputs[0].shape
    default = graph.attribute(node, "default_string", "_Unused")
    return Replacement((_label(made, position, (*names, default)),), made.nodes)


_ON_NUMBERS: tuple[tuple[str, Rule], ...] = (
    ("ArrayFeatureExtractor", extractor_as_gather),
    ("Binarizer", binarizer_as_comparison),
    ("FeatureVectorizer", vectorizer_as_concat),
    ("Imputer", imputer_as_choice),
    ("LinearClassifier", classifier_as_product),
    ("LinearRegressor", regressor_as_product),
    ("Normalizer", normalizer_as_quotient),
    ("OneHotEncoder", one_hot_as_comparison),
    ("Scaler", scaler_as_product),
)
ROWS = (
    *(RewriteRule(_on_numbers(rule), (op,), domain=DOMAIN) for op, rule in _ON_NUMBERS),
    RewriteRule(classes_as_numbers, ("TreeEnsembleClassifier", "SVMClassifier"), domain=DOMAIN),
    RewriteRule(encoder_of_names, ("LabelEncoder",), domain=DOMAIN),
)
