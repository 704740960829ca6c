"""Normalization by mean and variance of rows and of groups of channels.

Statistics are taken in two sweeps, mean, then squared deviations, which stays exact where the mean
is large against the deviation. All is computed in float32.
"""

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import check_size
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.rows import Rows, folded, lanewise
from app.kernels.cuda.softmax import row_width
from app.kernels.expressions import Recipe


def row_norm(
    kind: str,
    rows: int,
    n: int,
    dtype: str,
    epsilon: float,
    *,
    parameters: str = "",
    bias: bool = False,
    after: Recipe = (),
) -> Launches:
    """Rows of (x - mean) / sqrt(variance + epsilon) · scale + bias.

    Of kind "rms_norm", rows of x / sqrt(mean of x² + epsilon) · scale.

    Roles x, y, scale, [bias]: x, y: dtype[rows, n] contiguous, scale, bias: parameters[n]. y may be x.

    Args:
        kind: "layer_norm" or "rms_norm".
        rows: how many.
        n: elements of a row.
        dtype: float32, float16 or bfloat16.
        epsilon: added to the variance.
        parameters: element type of scale and bias; by default dtype.
        bias: whether there is one.
        after: what is made of each element of y last, a recipe of one float32.
    """
    check_size(kind, rows * n)
    parameters = parameters or dtype
    width = row_width(n, dtype, parameters)
    made = Rows(n, width, "load(x, uint32(base + {c}))", f"uint32(row * uint32({n}))")
    made.functions += vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    made.functions += vectors.load("load_parameter", parameters, width)
    made.begin()
    if kind == "layer_norm":
        _center(made, n)
    _deviate(made, n, epsilon)
    expression, given = "v[{i}] * f * s[{i}]", ["load_parameter(scale, {c})"]
    if bias:
        expression += " + b[{i}]"
        given.append("load_parameter(bias, {c})")
    if after:
        made.functions += functions.recipe_function("last", after, ("float32",))
        expression = f"last({expression})"
    made.functions += lanewise("finish", ("v", "f", "s", *("b" * bias)), expression, width)
    made.sweep(f"store(y, uint32(base + {{c}}), finish({{v}}, f, {', '.join(given)}))")
    addresses = dict.fromkeys("xy", vectors.pointer(dtype)) | {"scale": vectors.pointer(parameters)}
    addresses |= {"bias": vectors.pointer(parameters)} if bias else {}
    return made.launch(kind, addresses, rows)


def group_norm(
    batch: int, groups: int, channels: int, pixels: int, dtype: str, epsilon: float, parameters: str = ""
) -> Launches:
    """Groups of channels to mean 0 and variance 1, then · scale + bias per channel; instances too.

    Roles x, y, scale, bias: x, y: dtype[batch, groups · channels, pixels], y may be x; scale, bias:
    parameters[groups · channels]. A group is one row of `row_norm`; instance normalization has
    groups of one channel.

    Args:
        batch: images.
        groups: of an image.
        channels: of a group.
        pixels: of a channel.
        dtype: float32, float16 or bfloat16.
        epsilon: added to the variance.
        parameters: element type of scale and bias; by default dtype.
    """
    n, width, parameters = channels * pixels, row_width(pixels, dtype), parameters or dtype
    check_size("group_norm", batch * groups * n)
    made = Rows(n, width, "load(x, uint32(base + {c}))", f"uint32(row * uint32({n}))", least=32)
    made.body += [
        f"group = uint32(block_x() * uint32({made.rows}) + thread() // uint32({made.threads}))",
        f"group = uint32(group % uint32({groups}))",
    ]
    made.functions += vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    made.functions += vectors.load("load_parameter", parameters, 1)
    made.begin()
    _center(made, n)
    _deviate(made, n, epsilon)
    made.functions += lanewise("finish", ("v", "f", "s", "b"), "v[{i}] * f * s[0] + b[0]", width)
    given = "load_parameter(scale, channel), load_parameter(bias, channel)"
    made.sweep(
        f"channel = uint32(group * uint32({channels}) + {{c}} // uint32({pixels}))",
        f"store(y, uint32(base + {{c}}), finish({{v}}, f, {given}))",
    )
    addresses = dict.fromkeys("xy", vectors.pointer(dtype))
    addresses |= dict.fromkeys(("scale", "bias"), vectors.pointer(parameters))
    return made.launch("group_norm", addresses, batch * groups)


def _center(made: Rows, n: int) -> None:
    """The mean `m`, and the row less it."""
    made.functions += folded("sums", "v[{i}]", "({a} + {b})", made.width)
    made.functions += lanewise("less", ("v", "m"), "v[{i}] - m", made.width)
    made.body.append("m = float32(0)")
    made.sweep("m = sums(m, {v})")
    made.join(("m",), ("m = m + m_",))
    made.body.append(f"m = m * float32({1 / n!r})")
    made.transform("less({v}, m)")


def _deviate(made: Rows, n: int, epsilon: float) -> None:
    """The factor `f` that makes the variance 1."""
    made.functions += folded("squares", "(v[{i}] * v[{i}])", "({a} + {b})", made.width)
    made.body.append("q = float32(0)")
    made.sweep("q = squares(q, {v})")
    made.join(("q",), ("q = q + q_",))
    made.body.append(f"f = float32(1) / float32(sqrt(q * float32({1 / n!r}) + float32({epsilon!r})))")
