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


def layer_norm(
    rows: int,
    n: int,
    dtype: str,
    epsilon: float,
    *,
    parameters: str = "",
    bias: bool = True,
    residual: bool = False,
    keeps_sum: bool = False,
    statistics: bool = False,
    after: Recipe = (),
) -> Launches:
    """Rows of (z - mean) / sqrt(variance + epsilon) · scale + bias, where z is x or x + r.

    Roles x, [r], y, [z], scale, [bias], [mean, deviation]: x, r, y, z: dtype[rows, n] contiguous,
    scale, bias: parameters[n], mean and deviation (1 / standard deviation): float32[rows]. y may be
    x or r, z may be the other; r, z and the statistics are there if asked for.

    Args:
        rows: how many.
        n: elements of a row.
        dtype: float32, float16 or bfloat16.
        epsilon: added to the variance.
        parameters: element type of scale and bias; by default dtype.
        bias: whether there is one.
        residual: whether r is added first.
        keeps_sum: whether z is written.
        statistics: whether mean and deviation are written.
        after: what is made of each element of y last, a recipe of one float32.
    """
    return _row_norm(
        "layer_norm",
        rows,
        n,
        dtype,
        epsilon,
        parameters or dtype,
        bias,
        residual,
        keeps_sum,
        statistics,
        after,
    )


def rms_norm(
    rows: int,
    n: int,
    dtype: str,
    epsilon: float,
    *,
    parameters: str = "",
    residual: bool = False,
    keeps_sum: bool = False,
    after: Recipe = (),
) -> Launches:
    """Rows of z / sqrt(mean of z² + epsilon) · scale, where z is x or x + r.

    Roles x, [r], y, [z], scale and all else as `layer_norm`.
    """
    return _row_norm(
        "rms_norm", rows, n, dtype, epsilon, parameters or dtype, False, residual, keeps_sum, False, after
    )


def _row_norm(
    name: str,
    rows: int,
    n: int,
    dtype: str,
    epsilon: float,
    parameters: str,
    bias: bool,
    residual: bool,
    keeps_sum: bool,
    statistics: bool,
    after: Recipe,
) -> Launches:
    check_size(name, rows * n)
    width = row_width(n, dtype, parameters)
    loads = "load(x, uint32(base + {c}))"
    if residual:
        loads = f"plus({loads}, load(r, uint32(base + {{c}})))"
    made = Rows(n, width, loads, f"uint32(row * uint32({n}))")
    made.functions += vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    made.functions += vectors.load("load_parameter", parameters, width)
    made.functions += lanewise("plus", ("a", "b"), "a[{i}] + b[{i}]", width) if residual else []
    made.begin()
    if keeps_sum:
        made.sweep("store(z, uint32(base + {c}), {v})")
        made.loads = "load(z, uint32(base + {c}))"  # x may be overwritten by now
    if name == "layer_norm":
        _center(made, n)
    _deviate(made, n, epsilon)
    if statistics:
        made.body += [
            "if live and column == 0:",
            "    mean[row] = m",
            "    deviation[row] = f",
        ]
    operands = ["v[{i}] * f * s[{i}]" + (" + b[{i}]" if bias else "")]
    given = ["load_parameter(scale, {c})", *(["load_parameter(bias, {c})"] if bias else [])]
    made.functions += _finish(("v", "f", "s", *(["b"] if bias else [])), operands[0], after, width)
    made.sweep(f"store(y, uint32(base + {{c}}), finish({{v}}, f, {', '.join(given)}))")
    kind, parameter = vectors.pointer(dtype), vectors.pointer(parameters)
    addresses = [("x", kind), *([("r", kind)] if residual else []), ("y", kind)]
    addresses += [("z", kind)] if keeps_sum else []
    addresses += [("scale", parameter), *([("bias", parameter)] if bias else [])]
    addresses += [("mean", "float32*"), ("deviation", "float32*")] if statistics else []
    return made.launch(name, [(a, k, a) for a, k in addresses], rows)


def group_norm(
    batch: int,
    groups: int,
    channels: int,
    pixels: int,
    dtype: str,
    epsilon: float,
    *,
    last: bool,
    parameters: str = "",
    after: Recipe = (),
) -> Launches:
    """Groups of channels to mean 0 and variance 1, then · scale + bias per channel; instances too.

    Roles x, y, scale, bias: x, y: dtype[batch, groups · channels, pixels], or
    dtype[batch, pixels, groups · channels] if `last`, y may be x; scale, bias:
    parameters[groups · channels]. A group is one row of `layer_norm`; instance normalization has
    groups of one channel.

    Args:
        batch: images.
        groups: of an image.
        channels: of a group.
        pixels: of a channel.
        dtype: float32, float16 or bfloat16.
        epsilon: added to the variance.
        last: whether channels are innermost.
        parameters: element type of scale and bias; by default dtype.
        after: as for `layer_norm`.
    """
    every, parameters = groups * channels, parameters or dtype
    check_size("group_norm", batch * every * pixels)
    n = channels * pixels
    width = row_width(channels, dtype, parameters) if last else row_width(pixels, dtype)
    base, place, channel = _group_places(groups, channels, pixels, last)
    made = Rows(n, width, f"load(x, {place})", base, least=32)
    made.body += [
        f"group = uint32(block_x() * uint32({made.rows}) + thread() // uint32({made.threads}))",
        f"group = uint32(group % uint32({groups}))",
    ]
    made.functions += vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    made.functions += vectors.load("load_parameter", parameters, width if last else 1)
    made.begin()
    _center(made, n)
    _deviate(made, n, epsilon)
    i = "{i}" if last else "0"
    made.functions += _finish(("v", "f", "s", "b"), f"v[{{i}}] * f * s[{i}] + b[{i}]", after, width)
    made.sweep(
        f"channel = {channel}",
        f"store(y, {place}, finish({{v}}, f, load_parameter(scale, channel), load_parameter(bias, channel)))",
    )
    kind, parameter = vectors.pointer(dtype), vectors.pointer(parameters)
    return made.launch(
        "group_norm",
        [("x", kind, "x"), ("y", kind, "y"), ("scale", parameter, "scale"), ("bias", parameter, "bias")],
        batch * groups,
    )


def _group_places(groups: int, channels: int, pixels: int, last: bool) -> tuple[str, str, str]:
    """Sources of a group's first element, and of the place and the channel of its element {c}."""
    every, n = groups * channels, channels * pixels
    first = f"group * uint32({channels})"
    if not last:
        return (
            f"uint32(row * uint32({n}))",
            "uint32(base + {c})",
            f"uint32({first} + {{c}} // uint32({pixels}))",
        )
    return (
        f"uint32(row // uint32({groups}) * uint32({every * pixels}) + {first})",
        f"uint32(base + {{c}} // uint32({channels}) * uint32({every}) + {{c}} % uint32({channels}))",
        f"uint32({first} + {{c}} % uint32({channels}))",
    )


def _center(made: Rows, n: int) -> None:
    """The mean `m`, and the row less it."""
    made.functions += folded("sums", (), "v[{i}]", "({a} + {b})", made.width)
    made.functions += lanewise("less", ("v", "m"), "v[{i}] - m", made.width)
    made.body.append("m = float32(0)")
    made.sweep("m = sums(m, {v})")
    made.join(("m",), ("m = m + m_",))
    made.body.append(f"m = m * float32({1 / n!r})")
    made.transform("less({v}, m)")


def _deviate(made: Rows, n: int, epsilon: float) -> None:
    """The factor `f` that makes the variance 1."""
    made.functions += folded("squares", (), "(v[{i}] * v[{i}])", "({a} + {b})", made.width)
    made.body.append("q = float32(0)")
    made.sweep("q = squares(q, {v})")
    made.join(("q",), ("q = q + q_",))
    made.body.append(f"f = float32(1) / float32(sqrt(q * float32({1 / n!r}) + float32({epsilon!r})))")


def _finish(parameters: tuple[str, ...], expression: str, after: Recipe, width: int) -> list[str]:
    """Lines of `finish`: the elements of y."""
    lines: list[str] = []
    if after:
        lines = functions.recipe_function("last", after, ("float32",))
        expression = f"last({expression})"
    return [*lines, *lanewise("finish", parameters, expression, width)]
