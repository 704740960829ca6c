"""Sliding windows over one to three spatial axes: pooling and depthwise convolution.

Channels innermost (`last`): a thread has 16 bytes of channels of an output pixel, fewer under wide depthwise
windows, so neighbours read neighbouring channels. Channels outermost: a thread has one output pixel.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import FLOATS, check_size, contiguous, indented, place, unpacked
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.rows import lanewise
from app.kernels.cuda.softmax import row_width
from app.kernels.cuda.units import per_unit
from app.kernels.expressions import Recipe

FULL = 132 * 1024  # threads that fill a GPU half: a thread takes several pixels only beyond
ROW = 64  # weights of a row of a window that a thread holds in registers: wider ones take fewer channels
BLOCKS = 2  # of a multiprocessor that registers must leave room for: 16 warps keep its memory busy
LOWEST = {"uint8": "0", "int8": "-128"}


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a window: tap t of output p reads pixel p · stride + t · dilation - before."""

    size: int
    taps: int
    out: int
    stride: int = 1
    dilation: int = 1
    before: int = 0  # pixels of padding
    after: int = 0


def pool(
    kind: str,
    batch: int,
    channels: int,
    axes: Sequence[Axis],
    dtype: str,
    *,
    last: bool,
    counts_padding: bool = False,
) -> Launches:
    """Maximum or average of every window.

    Roles x, y: dtype[batch, spatial ..., channels] if `last`, else dtype[batch, channels, spatial ...],
    contiguous. No aliasing. float32, float16, bfloat16; "max" also of int8 and uint8.

    Args:
        kind: "max" or "average".
        batch: images.
        channels: of an image.
        axes: spatial ones, outermost first.
        dtype: of x and y.
        last: whether channels are innermost.
        counts_padding: whether an average counts padding as zeros.
    """
    check_size(
        "pool", batch * channels * max(math.prod(a.size for a in axes), math.prod(a.out for a in axes))
    )
    width = row_width(channels, dtype) if last else 1
    real = dtype in FLOATS
    start = ("float32(0)" if kind == "average" else "float32(-inf)") if real else f"int32({LOWEST[dtype]})"
    step = "a[{i}] + v[{i}]" if kind == "average" else "maximum(a[{i}], v[{i}])"
    step = step if real else "larger(int32(a[{i}]), int32(v[{i}]))"
    lines = vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    lines += lanewise("join", ("a", "v"), step, width)
    lines += lanewise("shared_by", ("a", "n"), "a[{i}] * n", width)
    rank = len(axes)
    names = [f"o{a}" for a in range(rank)]
    outs = [a.out for a in axes]
    if last:
        units, order = [batch, *outs, channels // width], ["b", *names, "c"]
        sizes = [batch, *(a.size for a in axes), channels // width]
    else:
        units, order = [batch * channels, *outs], ["b", *names]
        sizes = [batch * channels, *(a.size for a in axes)]
    steps = [s * width for s in contiguous(sizes)]
    body = [
        *unpacked("u", units, order),
        f"base = {place(['b', 'c'] if last else ['b'], [steps[0], steps[-1]] if last else [steps[0]])}",
        f"t = ({', '.join([start] * width)},)",
        *(["n = float32(1)"] if kind == "average" else []),
    ]
    body += _counts(axes, counts_padding) if kind == "average" else []
    body += _loops(axes, [f"t = join(t, load(x, uint32(base + {_pixel(rank, steps[1:])})))"])
    body += ["t = shared_by(t, float32(1) / n)"] if kind == "average" else []
    body.append(f"store(y, uint32(u * uint32({width})), t)" if width > 1 else "store(y, u, t)")
    return per_unit(f"{kind}_pool", lines, body, [("x", dtype), ("y", dtype)], math.prod(units))


def _counts(axes: Sequence[Axis], counts_padding: bool) -> list[str]:
    """Lines of `n`, the elements that an average is over."""
    lines = []
    for a, axis in enumerate(axes):
        low = f"int32(o{a} * uint32({axis.stride})) - int32({axis.before})"
        if counts_padding:
            if (axis.out - 1) * axis.stride + (
                axis.taps - 1
            ) * axis.dilation < axis.size + axis.before + axis.after:
                lines.append(f"n = n * float32({axis.taps})")
                continue
            bounds, limit = (-axis.before, axis.size + axis.after), axis.taps
        else:
            bounds, limit = (0, axis.size), axis.taps
        lines += [
            f"k{a} = int32(0)",
            f"for t{a} in range({limit}):",
            f"    p{a} = {low} + int32(t{a}) * int32({axis.dilation})",
            f"    if p{a} >= {bounds[0]} and p{a} < {bounds[1]}:",
            f"        k{a} = int32(k{a} + 1)",
            f"n = n * float32(k{a})",
        ]
    return lines


def _loops(axes: Sequence[Axis], inner: list[str]) -> list[str]:
    """Loops over the taps that are inside; `p0`, `p1` ... are their pixels, `t0` ... their numbers."""
    lines = inner
    for a in range(len(axes) - 1, -1, -1):
        axis = axes[a]
        padded = axis.before or (axis.out - 1) * axis.stride + (axis.taps - 1) * axis.dilation >= axis.size
        head = [
            f"p{a} = int32(int32(o{a} * uint32({axis.stride})) + int32(t{a}) * int32({axis.dilation})"
            f" - int32({axis.before}))"
        ]
        if padded:
            lines = [*head, f"if p{a} >= 0 and p{a} < {axis.size}:", *indented(lines)]
        else:
            lines = [*head, *lines]
        lines = [f"for t{a} in range({axis.taps}):", *indented(lines)]
    return lines


def _pixel(rank: int, steps: Sequence[int]) -> str:
    return " + ".join(f"uint32(p{a}) * uint32({steps[a]})" for a in range(rank))


def depthwise(
    batch: int,
    channels: int,
    axes: Sequence[Axis],
    dtype: str,
    *,
    multiplier: int = 1,
    bias: bool = True,
    residual: bool = False,
    after: Recipe = (),
) -> Launches:
    """A convolution of every channel with windows of its own, channels innermost.

    Roles x, w, [bias], [r], y: x: dtype[batch, h, w, channels]; w: dtype[kh, kw, channels · multiplier];
    bias: float32[channels · multiplier]; r and y: dtype[batch, oh, ow, channels · multiplier],
    contiguous. y may be r. float32, float16 or bfloat16, summed up in float32.

    Args:
        batch: images.
        channels: of x.
        axes: the two spatial ones, outermost first.
        dtype: of x, w, r and y.
        multiplier: outputs of a channel.
        bias: whether there is one.
        residual: whether r is there: the second input of `after`.
        after: what is made of a sum last, a recipe of float32: of the sum and the residual. Without one
            the residual is added.
    """
    high, wide = axes
    every = channels * multiplier
    check_size("depthwise", batch * max(channels * high.size * wide.size, every * high.out * wide.out))
    width = row_width(channels, dtype) if multiplier == 1 else 1
    while width > 1 and width * wide.taps > ROW:
        width //= 2
    groups, pixels = every // width, 4 if wide.stride == 1 else 2
    while pixels > 1 and batch * high.out * -(-wide.out // pixels) * groups < FULL:
        pixels //= 2
    after = after or ((("Add", (0, 1), ()),) if residual else ())
    strips = -(-wide.out // pixels)
    lines = _depthwise_functions(dtype, width, bias, residual, after)
    zeros = f"({', '.join(['float32(0)'] * width)},)"
    start = "load_bias(bias, c)" if bias else zeros
    body = [
        *unpacked("u", [batch, high.out, strips, groups], ["b", "o0", "o1", "g"]),
        f"c = uint32(g * uint32({width}))",
        f"o1 = uint32(o1 * uint32({pixels}))",
        f"base = uint32(b * uint32({high.size * wide.size * channels}) + "
        f"{'c' if multiplier == 1 else f'c // uint32({multiplier})'})",
        *(f"a{p} = {start}" for p in range(pixels)),
        *_loops([high], _row_of_taps(wide, channels, every, pixels, zeros)),
        f"line = uint32((b * uint32({high.out}) + o0) * uint32({wide.out}) + o1)",
    ]
    finish = ("finish({v}, load(r, {at}))" if residual else "finish({v})") if after else "{v}"
    for p in range(pixels):
        at = f"uint32((line + uint32({p})) * uint32({every}) + c)"
        body.append(f"if o1 + uint32({p}) < uint32({wide.out}):")
        body.append(f"    store(y, {at}, {finish.format(v=f'a{p}', at=at)})")
    roles = {"x": dtype, "w": dtype, "bias": "float32" * bias, "r": dtype * residual, "y": dtype}
    operands = [(role, kind) for role, kind in roles.items() if kind]
    return per_unit("depthwise", lines, body, operands, batch * high.out * strips * groups, BLOCKS)


def _depthwise_functions(dtype: str, width: int, bias: bool, residual: bool, after: Recipe) -> list[str]:
    """Functions on `width` channels: loads, a tap's products, and what follows the sum."""
    lines = vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    lines += vectors.load("load_bias", "float32", width) if bias else []
    lines += lanewise("multiply", ("a", "v", "w"), "fma(v[{i}], w[{i}], a[{i}])", width)
    given = ("v", "r") if residual else ("v",)
    if after:
        lines += functions.recipe_function("last", after, ("float32",) * len(given))
        lines += lanewise("finish", given, f"last({', '.join(f'{v}[{{i}}]' for v in given)})", width)
    return lines


def _row_of_taps(wide: Axis, channels: int, every: int, pixels: int, zeros: str) -> list[str]:
    """Lines that add a row of the window to the sums a0 ... of neighboring pixels.

    A column of the input serves several pixels where windows overlap: it is read once a row.
    """
    lines = [f"line = uint32(base + uint32(p0) * uint32({wide.size * channels}))"]
    lines += [
        f"w{t} = load(w, uint32((uint32(t0) * uint32({wide.taps}) + uint32({t})) * uint32({every}) + c))"
        for t in range(wide.taps)
    ]
    lines.append(f"x0 = int32(int32(o1 * uint32({wide.stride})) - int32({wide.before}))")
    readers: dict[int, list[str]] = {}
    for p in range(pixels):
        for t in range(wide.taps):
            column = p * wide.stride + t * wide.dilation
            readers.setdefault(column, []).append(f"a{p} = multiply(a{p}, v, w{t})")
    for column, products in sorted(readers.items()):
        lines += [
            f"q = int32(x0 + int32({column}))",
            f"v = {zeros}",
            f"if q >= 0 and q < {wide.size}:",
            f"    v = load(x, uint32(line + uint32(q) * uint32({channels})))",
            *products,
        ]
    return lines
