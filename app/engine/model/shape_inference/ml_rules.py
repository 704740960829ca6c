"""Shape rules of the operators of ai.onnx.ml, as onnxruntime computes them.

The specification leaves open what a vector is (one sample), how many scores a classifier with one
coefficient vector gives (two), and what becomes of indices of rank 2. onnxruntime 1.31 says it.

Source: onnxruntime/core/providers/cpu/ml; ONNX operator specifications of ai.onnx.ml 1 to 5.
"""

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext

from app.engine.core import graph
from app.engine.types.map_type import MapType

Dims = Sequence[int | ir.SymbolicDim]
Infer = Callable[[ShapeInferenceContext, ir.Node], None]
_FLOAT, _INT64, _STRING = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.STRING


def _set(context: ShapeInferenceContext, node: ir.Node, index: int, dims: Dims | None, kind: object) -> None:
    """The type of an output, where the node has it and its elements are known."""
    if index < len(node.outputs) and isinstance(kind, ir.DataType):
        shape = None if dims is None else ir.Shape(dims)
        context.set_shape_and_dtype(node.outputs[index], shape, kind)


def _dims(node: ir.Node, index: int = 0) -> Dims | None:
    x = graph.input_at(node, index)
    return None if x is None or x.shape is None else x.shape.dims


def _samples(node: ir.Node) -> int | ir.SymbolicDim | None:
    """Rows of the first input; a vector is one row."""
    dims = _dims(node)
    if not dims:
        return None
    return dims[0] if len(dims) > 1 else 1


def _kind(node: ir.Node) -> ir.DataType | None:
    return None if node.inputs[0] is None else node.inputs[0].dtype


def _like_input(kind: Callable[[ir.Node], ir.DataType | None]) -> Infer:
    def infer(context: ShapeInferenceContext, node: ir.Node) -> None:
        """The shape of the input, elements as `kind` says."""
        _set(context, node, 0, _dims(node), kind(node))

    return infer


def _scores(count: Callable[[ir.Node], int | None], first: int, kind: ir.DataType = _FLOAT) -> Infer:
    def infer(context: ShapeInferenceContext, node: ir.Node) -> None:
        """A matrix [samples, count] as output `first`."""
        rows, columns = _samples(node), count(node)
        _set(context, node, first, None if rows is None or columns is None else [rows, columns], kind)

    return infer


def _classifier(count: Callable[[ir.Node], int | None]) -> Infer:
    scores = _scores(count, 1)

    def infer(context: ShapeInferenceContext, node: ir.Node) -> None:
        """Labels [samples], of the kind of the class labels, and scores [samples, count]."""
        rows = _samples(node)
        _set(context, node, 0, None if rows is None else [rows], _label_kind(node))
        scores(context, node)

    return infer


def _length(node: ir.Node, *names: str) -> int:
    """Entries of the first of these attributes that has any."""
    return next((len(found) for n in names if (found := graph.attribute(node, n, ()))), 0)


def _label_kind(node: ir.Node) -> ir.DataType:
    return _STRING if _length(node, "classlabels_strings") else _INT64


def _labels(node: ir.Node) -> int:
    return _length(node, "classlabels_strings", "classlabels_int64s", "classlabels_ints")


def _linear_scores(node: ir.Node) -> int | None:
    """One a coefficient vector, or two where one vector tells two classes apart."""
    dims, coefficients = _dims(node), _length(node, "coefficients")
    count = _length(node, "intercepts")
    if not count:
        if not dims or not isinstance(dims[-1], int) or not dims[-1]:
            return None
        count = coefficients // dims[-1]
    return 2 if count == 1 and _labels(node) == 2 else count


def _vector_scores(node: ir.Node) -> int:
    """One a class where probabilities are fitted or the machine is linear, else one a pair of classes."""
    classes = _labels(node)
    if not _length(node, "prob_a") and _length(node, "vectors_per_class") and classes > 2:
        return classes * (classes - 1) // 2
    return max(classes, 2) if _length(node, "vectors_per_class") else classes


def array_feature_extractor(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The last axis of x is indexed by all of y, of whatever rank; a vector x is one row."""
    x, y = _dims(node), _dims(node, 1)
    dims = None
    if x and y is not None:
        count = math.prod(y) if all(isinstance(d, int) for d in y) else context.new_symbolic_dim()
        dims = [*(x[:-1] or [1]), count]
    _set(context, node, 0, dims, _kind(node))


def feature_vectorizer(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The inputs side by side: [samples, sum of `inputdimensions`]."""
    rows, widths = _samples(node), graph.attribute(node, "inputdimensions", ())
    _set(context, node, 0, None if rows is None else [rows, sum(widths)], _FLOAT)


def one_hot_encoder(context: ShapeInferenceContext, node: ir.Node) -> None:
    """One more axis, of the categories."""
    dims = _dims(node)
    count = _length(node, "cats_strings", "cats_int64s")
    _set(context, node, 0, None if dims is None else [*dims, count], _FLOAT)


def dict_vectorizer(context: ShapeInferenceContext, node: ir.Node) -> None:
    """[1, words of the vocabulary], of the elements of the map."""
    x = node.inputs[0]
    count = _length(node, "string_vocabulary", "int64_vocabulary")
    _set(context, node, 0, [1, count], x.type.value if x and isinstance(x.type, MapType) else None)


def cast_map(context: ShapeInferenceContext, node: ir.Node) -> None:
    """[1, n]: as many as a dense map has, or `max_map` of a sparse one."""
    kind = {"TO_FLOAT": _FLOAT, "TO_STRING": _STRING, "TO_INT64": _INT64}
    sparse = graph.attribute(node, "map_form", "DENSE") == "SPARSE"
    count = graph.attribute(node, "max_map", 1) if sparse else context.new_symbolic_dim()
    _set(context, node, 0, [1, count], kind.get(graph.attribute(node, "cast_to", "TO_FLOAT")))


def zip_map(context: ShapeInferenceContext, node: ir.Node) -> None:
    """A sequence with a map for each sample."""
    context.set_type(node.outputs[0], ir.SequenceType(MapType(_label_kind(node), _FLOAT)))


def _encoded(node: ir.Node) -> ir.DataType | None:
    """Elements that a LabelEncoder gives."""
    tensor = graph.attribute(node, "values_tensor", None)
    if tensor is not None:
        return tensor.dtype
    rows = (("values_strings", _STRING), ("values_int64s", _INT64), ("values_floats", _FLOAT))
    return next((kind for name, kind in rows if _length(node, name)), None) or _swapped(node)


def _swapped(node: ir.Node) -> ir.DataType | None:
    """Strings for integers and integers for strings."""
    return {_STRING: _INT64, _INT64: _STRING}.get(_kind(node) or _FLOAT)


def _targets(name: str, default: int) -> Callable[[ir.Node], int | None]:
    return lambda node: graph.attribute(node, name, default)


def tree_ensemble(context: ShapeInferenceContext, node: ir.Node) -> None:
    """[samples, n_targets], of the elements of the input."""
    rows = _samples(node)
    targets = graph.attribute(node, "n_targets", 1)
    _set(context, node, 0, None if rows is None else [rows, targets], _kind(node))


# By operator, for all versions of the operator set.
ML_RULES: tuple[tuple[str, Infer], ...] = (
    ("ArrayFeatureExtractor", array_feature_extractor),
    ("Binarizer", _like_input(_kind)),
    ("CastMap", cast_map),
    ("CategoryMapper", _like_input(_swapped)),
    ("DictVectorizer", dict_vectorizer),
    ("FeatureVectorizer", feature_vectorizer),
    ("Imputer", _like_input(_kind)),
    ("LabelEncoder", _like_input(_encoded)),
    ("LinearClassifier", _classifier(_linear_scores)),
    ("LinearRegressor", _scores(_targets("targets", 1), 0)),
    ("Normalizer", _like_input(lambda _node: _FLOAT)),
    ("OneHotEncoder", one_hot_encoder),
    ("SVMClassifier", _classifier(_vector_scores)),
    ("SVMRegressor", _scores(lambda _node: 1, 0)),
    ("Scaler", _like_input(lambda _node: _FLOAT)),
    ("TreeEnsemble", tree_ensemble),
    ("TreeEnsembleClassifier", _classifier(_labels)),
    ("TreeEnsembleRegressor", _scores(_targets("n_targets", 1), 0)),
    ("ZipMap", zip_map),
)
