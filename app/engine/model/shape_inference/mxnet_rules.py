"""Shapes and element types that operators of MXNet give, of those that no operators of ONNX express.

A graph with such nodes can be planned, not run. Source: shape functions of apache/mxnet 1.9.1
(src/operator); the samples of tests/mxnet/planned.py are compared with its inference.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_shape_inference import ShapeInferenceContext

from app.engine.model.mxnet.attributes import Attributes
from app.engine.types.errors import GraphError

Dims: TypeAlias = tuple[int | ir.SymbolicDim, ...]
Kind: TypeAlias = np.dtype[Any]
Typed: TypeAlias = tuple[Dims, Kind]
FLOAT = np.dtype("f4")
_SHAPE, _DTYPE = "__shape__", "__dtype__"  # of a node: what its first output is


@dataclass(frozen=True, slots=True)
class Given:
    """Attributes of a node, types of its operands, and how many outputs it has."""

    attributes: Attributes
    operands: tuple[Typed, ...]
    outputs: int

    def dims(self, place: int, rank: int | None = None) -> Dims:
        """The shape of an operand.

        Raises:
            GraphError: it has another rank.
        """
        dims = self.operands[place][0]
        if rank is not None and len(dims) != rank:
            raise GraphError(
                f"{self.attributes.title}: operand {place} has {len(dims)} axes; expected {rank}"
            )
        return dims

    def kind(self, place: int = 0) -> Kind:
        """The element type of an operand."""
        return self.operands[place][1]

    def sizes(self, place: int, rank: int | None = None) -> tuple[int, ...]:
        """The shape of an operand, of which all is known.

        Raises:
            GraphError: a dimension is free.
        """
        dims = self.dims(place, rank)
        known = tuple(d for d in dims if isinstance(d, int))
        if len(known) < len(dims):
            raise GraphError(f"{self.attributes.title}: operand {place} has free dimensions; bind its shape")
        return known

    def dtype(self, default: Kind) -> Kind:
        """The attribute `dtype`."""
        return self.attributes.dtype("dtype", None) or default

    def pair(self, name: str) -> tuple[int, int]:
        """Two whole numbers, or one twice."""
        found = self.attributes.integers(name)
        if len(found) not in (1, 2):
            raise self.attributes.error(name, "one or two whole numbers")
        return found[0], found[-1]


Rule: TypeAlias = Callable[[Given], Sequence[Typed]]


def _like(*places: int) -> Rule:
    """Each output has the type of an operand."""
    return lambda g: [g.operands[place] for place in places]


def _shaped(default: str = "float32") -> Rule:
    """The attribute `shape`, of a scalar (1,)."""

    def rule(g: Given) -> Sequence[Typed]:
        shape = g.attributes.integers("shape", ())
        return [(shape or (1,), g.dtype(np.dtype(default)))]

    return rule


def _drawn(g: Given) -> Sequence[Typed]:
    """As many numbers of each distribution as `shape` says."""
    return [((*g.dims(0), *g.attributes.integers("shape", ())), g.dtype(FLOAT))]


def _drawn_classes(g: Given) -> Sequence[Typed]:
    dims = g.dims(0)
    shape = (*dims[:-1], *g.attributes.integers("shape", ())) or (1,)
    return [(shape, g.dtype(np.dtype("i4"))), (shape, g.kind())]


def _leading(count: int) -> Rule:
    """The operand without its last axes."""
    return lambda g: [(g.dims(0)[:-count] or (1,), g.kind())]


def _determinant(results: int) -> Rule:
    """Of each matrix; then its factors and the order of its rows."""

    def rule(g: Given) -> Sequence[Typed]:
        dims, kind = g.dims(0), g.kind()
        return [(dims[:-2] or (1,), kind)] * results + [(dims, kind), (dims[:-1], np.dtype("i4"))]

    return rule


def _gelqf(g: Given) -> Sequence[Typed]:
    dims = g.dims(0)
    return [(dims, g.kind()), ((*dims[:-1], dims[-2]), g.kind())]


def _syevd(g: Given) -> Sequence[Typed]:
    return [(g.dims(0), g.kind()), (g.dims(0)[:-1], g.kind())]


def _regions(g: Given) -> Sequence[Typed]:
    """One image for each region: [regions, channels, height, width]."""
    high, wide = g.pair("pooled_size")
    channels = g.dims(0, 4)[1]
    if g.attributes.flag("position_sensitive"):
        channels = g.sizes(0)[1] // (high * wide)
    return [((g.dims(1, 2)[0], channels, high, wide), g.kind())]


def _pooled_regions(g: Given) -> Sequence[Typed]:
    """Largest elements, then where these were."""
    return [*_regions(g)] * 2


def _sensitive_regions(g: Given) -> Sequence[Typed]:
    size = g.attributes.integer("pooled_size")
    shape = (g.dims(1, 2)[0], g.attributes.integer("output_dim"), size, size)
    return [(shape, g.kind())] * g.outputs


def _correlation(g: Given) -> Sequence[Typed]:
    """Products of patches that are at most `max_displacement` apart."""
    batch, _, height, width = g.sizes(0, 4)
    far, step = g.attributes.integer("max_displacement", 1), g.attributes.integer("stride2", 1)
    stride, pad = g.attributes.integer("stride1", 1), g.attributes.integer("pad_size", 0)
    border = far + (g.attributes.integer("kernel_size", 1) - 1) // 2
    high, wide = (math.ceil((n + 2 * pad - 2 * border) / stride) for n in (height, width))
    kind = g.kind()
    padded = ((batch, height + 2 * pad, width + 2 * pad, g.sizes(0)[1]), kind)
    return [((batch, (2 * (far // step) + 1) ** 2, high, wide), kind), padded, padded]


def _ctc(g: Given) -> Sequence[Typed]:
    dims = g.dims(0, 3)
    return [(dims[1:2], g.kind()), (dims, g.kind())]


def _anchors(g: Given) -> Sequence[Typed]:
    _, _, height, width = g.sizes(0, 4)
    count = _listed(g, "sizes") + _listed(g, "ratios") - 1
    return [((1, height * width * count, 4), g.kind())]


def _listed(g: Given, name: str) -> int:
    """Numbers in an attribute; one where it is left out."""
    return len([p for p in g.attributes.text(name, "(1,)").strip("()[] ").split(",") if p.strip()])


def _anchor_targets(g: Given) -> Sequence[Typed]:
    anchors, batch = g.sizes(0, 3)[1], g.dims(1, 3)[0]
    corners = ((batch, anchors * 4), g.kind())
    return [corners, corners, ((batch, anchors), g.kind())]


def _detections(g: Given) -> Sequence[Typed]:
    batch, _, anchors = g.dims(0, 3)
    return [((batch, anchors, 6), g.kind())]


def _proposals(images: bool) -> Rule:
    def rule(g: Given) -> Sequence[Typed]:
        count = g.attributes.integer("rpn_post_nms_top_n", 300) * (g.sizes(0, 4)[0] if images else 1)
        return [((count, 5), g.kind()), ((count, 1), g.kind())]

    return rule


def _matches(g: Given) -> Sequence[Typed]:
    *lead, rows, columns = g.dims(0)
    return [((*lead, rows), g.kind()), ((*lead, columns), g.kind())]


def _window(g: Given, sizes: Sequence[int]) -> tuple[int, ...]:
    """Places of a window along each axis."""
    kernel, axes = g.attributes.integers("kernel"), len(sizes)
    strides, dilations, pads = (
        g.attributes.integers(name, (default,) * axes) or (default,) * axes
        for name, default in (("stride", 1), ("dilate", 1), ("pad", 0))
    )
    spans = (d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True))
    return tuple(
        (n + 2 * p - span) // s + 1 for n, p, span, s in zip(sizes, pads, spans, strides, strict=True)
    )


def _deformable(g: Given) -> Sequence[Typed]:
    batch, _, *sizes = g.sizes(0)
    return [((batch, g.attributes.integer("num_filter"), *_window(g, sizes)), g.kind())]


def _columns(g: Given) -> Sequence[Typed]:
    batch, channels, *sizes = g.sizes(0)
    rows = channels * math.prod(g.attributes.integers("kernel"))
    return [((batch, rows, math.prod(_window(g, sizes))), g.kind())]


def _images(g: Given) -> Sequence[Typed]:
    batch, rows, _ = g.sizes(0, 3)
    channels = rows // math.prod(g.attributes.integers("kernel"))
    return [((batch, channels, *g.attributes.integers("output_size")), g.kind())]


def _resized(g: Given) -> Sequence[Typed]:
    size = g.attributes.integers("size")
    if g.attributes.flag("keep_ratio") or len(size) not in (1, 2):
        raise GraphError(f"{g.attributes.title}: the size of the result depends on the image")
    *lead, _, _, channels = g.dims(0)
    return [((*lead, size[-1], size[0], channels), g.kind())]


def _histogram(g: Given) -> Sequence[Typed]:
    count = g.attributes.integer("bin_cnt")
    return [((count,), np.dtype("i8")), ((count + 1,), g.kind())]


def _hawkes(g: Given) -> Sequence[Typed]:
    return [(g.dims(0)[:1], g.kind()), (g.dims(0), g.kind())]


def _sampled_ids(g: Given) -> Sequence[Typed]:
    shape = g.attributes.integers("shape")
    return [(shape, np.dtype("i8")), (shape[:1], np.dtype("i8"))]


def _sum_squares(g: Given) -> Sequence[Typed]:
    return [((g.attributes.integer("num_arrays"),), FLOAT)]


def _nothing(_given: Given) -> Sequence[Typed]:
    """The node must say what it gives."""
    return []


_FIRST = """erfinv _shuffle _linalg_potrf _linalg_potri _linalg_inverse _contrib_index_copy multi_lars
_random_uniform_like _random_normal_like _random_gamma_like _random_exponential_like _random_poisson_like
_random_negative_binomial_like _random_generalized_negative_binomial_like _image_random_brightness
_image_random_contrast _image_random_saturation _image_random_hue _image_random_color_jitter
_image_random_lighting _image_adjust_lighting _image_random_flip_left_right _image_random_flip_top_bottom"""
_DRAWN = "uniform normal gamma exponential poisson negative_binomial generalized_negative_binomial"

# By the name that MXNet writes into symbols.
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_FIRST.split(), _like(0)),
    **{f"_random_{name}": _shaped() for name in _DRAWN.split()},
    "_random_randint": _shaped("int32"),
    **{f"_sample_{name}": _drawn for name in _DRAWN.split()},
    **{f"_random_pdf_{name}": _like(0) for name in (*_DRAWN.split(),)},
    "_random_pdf_dirichlet": _leading(1),
    "_sample_multinomial": _drawn_classes,
    "_sample_unique_zipfian": _sampled_ids,
    "_linalg_trsm": _like(1),
    "_linalg_gelqf": _gelqf,
    "_linalg_syevd": _syevd,
    "_linalg_det": _determinant(1),
    "_linalg_slogdet": _determinant(2),
    "ROIPooling": _pooled_regions,
    "_contrib_ROIAlign": _regions,
    "_contrib_RROIAlign": _regions,
    "_contrib_PSROIPooling": _sensitive_regions,
    "_contrib_DeformablePSROIPooling": _sensitive_regions,
    "Correlation": _correlation,
    "_contrib_CTCLoss": _ctc,
    "CTCLoss": _ctc,
    "_contrib_box_nms": _like(0, 0),
    "_contrib_bipartite_matching": _matches,
    "_contrib_MultiBoxPrior": _anchors,
    "_contrib_MultiBoxTarget": _anchor_targets,
    "_contrib_MultiBoxDetection": _detections,
    "_contrib_Proposal": _proposals(images=False),
    "_contrib_MultiProposal": _proposals(images=True),
    "_contrib_DeformableConvolution": _deformable,
    "_contrib_ModulatedDeformableConvolution": _deformable,
    "im2col": _columns,
    "col2im": _images,
    "_contrib_hawkesll": _hawkes,
    "multi_sum_sq": _sum_squares,
    "_image_resize": _resized,
    "_histogram": _histogram,
    "Custom": _nothing,
}


def infer(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Types of all outputs, as far as those of the operands are known.

    `__shape__` and `__dtype__` of the node precede the rule; they tell of its first output.

    Raises:
        GraphError: the attributes or operands do not fit.
    """
    values = {name: str(a.value) for name, a in node.attributes.items()}
    attributes = Attributes(values, f"{node.op_type} {node.name!r}")
    shapes = [(v.shape, v.dtype) for v in node.inputs if v is not None]
    found: list[Typed] = []
    if all(shape is not None and dtype is not None for shape, dtype in shapes):
        operands = tuple((tuple(s), k.numpy()) for s, k in shapes if s is not None and k is not None)
        try:
            found = list(RULES[node.op_type](Given(attributes, operands, len(node.outputs))))
        except (IndexError, ValueError, ArithmeticError, TypeError) as cause:
            raise GraphError(f"{attributes.title}: operands and attributes do not fit: {cause}") from cause
    if attributes.given(_SHAPE):
        stated = attributes.dtype(_DTYPE, "float32") or FLOAT
        found[:1] = [(attributes.integers(_SHAPE), found[0][1] if found else stated)]
    for output, (dims, kind) in zip(node.outputs, found):
        context.set_shape_and_dtype(output, ir.Shape(dims), ir.DataType.from_numpy(kind))
