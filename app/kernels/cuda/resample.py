"""Elements copied or blended from places that tables tell, an axis each: Resize and Pad."""

import math
from collections.abc import Sequence

from app.kernels.cuda import vectors
from app.kernels.cuda.geometry import (
    BITS,
    NBYTES,
    Strided,
    check_size,
    contiguous,
    indented,
    place,
    unpacked,
    vector_width,
)
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.rows import lanewise
from app.kernels.cuda.units import per_unit

MOST_TAPS = 64  # elements that one result is blended from


def lookup(
    shape: Sequence[int], sizes: Sequence[int], moved: Sequence[int], dtype: str, fill: int = 0
) -> Launches:
    """y[i0, i1, ...] = x[t0[i0], t1[i1], ...]; where a table tells a negative index, a constant.

    Roles x, y, and t0, t1, ... for the k-th of `moved`: x: dtype[sizes], y: dtype[shape] contiguous;
    t: int32[shape[axis]]. Nearest Resize, and Pad of every mode. No aliasing. Every element type: bits
    are moved.

    Args:
        shape: of y.
        sizes: of x.
        moved: the axes that have a table, ascending; along the others index i is read at i.
        dtype: of x and y.
        fill: the constant, its bits as an integer.
    """
    check_size("lookup", max(math.prod(shape), math.prod(sizes)))
    kind = BITS[NBYTES[dtype]]
    width = _width(shape, sizes, moved, kind)
    lines = vectors.load("load", kind, width) + vectors.store("store", kind, width)
    names = [f"i{a}" for a in range(len(shape))]
    body = _unit(shape, width, names)
    read = list(names)
    for k, axis in enumerate(moved):
        body.append(f"j{axis} = t{k}[{names[axis]}]")
        read[axis] = f"uint32(j{axis})"
    inside = " and ".join(f"j{axis} >= 0" for axis in moved) or "u < units"
    body += [
        f"v = ({', '.join([f'{kind}({fill})'] * width)},)",
        f"if {inside}:",
        f"    v = load(x, {place(read, contiguous(sizes))})",
        f"store(y, uint32(u * uint32({width})), v)" if width > 1 else "store(y, u, v)",
    ]
    tables = [(f"t{k}", "int32") for k in range(len(moved))]
    return per_unit("lookup", lines, body, [("x", kind), ("y", kind), *tables], math.prod(shape) // width)


def blend(
    shape: Sequence[int],
    sizes: Sequence[int],
    moved: Sequence[tuple[int, int]],
    dtype: str,
    fill: float = 0.0,
) -> Launches:
    """y[i0, i1, ...] = sum over taps of w0[i0, a] · w1[i1, b] ... · x[t0[i0, a], t1[i1, b], ...].

    Roles x, y, and t0, w0, t1, w1, ... for the k-th of `moved`: x: dtype[sizes], y: dtype[shape]
    contiguous; t: int32[shape[axis], taps], w: float32[shape[axis], taps]. Where the first index of an
    axis is negative, the result is the constant. Linear and cubic Resize in one kernel. No aliasing.
    float32, float16 or bfloat16, summed up in float32.

    Args:
        shape: of y.
        sizes: of x.
        moved: (axis, taps) of those that are blended, ascending.
        dtype: of x and y.
        fill: the constant.

    Raises:
        ValueError: more taps than one kernel unrolls; blend one axis after the other.
    """
    check_size("blend", max(math.prod(shape), math.prod(sizes)))
    taps = math.prod(t for _, t in moved)
    if taps > MOST_TAPS:
        raise ValueError(f"a result is blended from {taps} elements, at most {MOST_TAPS} are supported")
    axes = [axis for axis, _ in moved]
    width = _width(shape, sizes, axes, dtype)
    lines = vectors.load("load", dtype, width) + vectors.store("store", dtype, width)
    lines += lanewise("add", ("a", "v", "f"), "fma(v[{i}], f, a[{i}])", width)
    names = [f"i{a}" for a in range(len(shape))]
    steps = contiguous(sizes)
    body = _unit(shape, width, names)
    rest = [(n, s) for a, (n, s) in enumerate(zip(names, steps)) if a not in axes]
    body.append(f"base = {place([n for n, _ in rest], [s for _, s in rest])}")
    for k, (axis, count) in enumerate(moved):
        body.append(f"at{k} = uint32({names[axis]} * uint32({count}))")
    for k, _ in enumerate(moved):
        body.append(f"out{k} = t{k}[at{k}] < 0")
    outside = " or ".join(f"out{k}" for k in range(len(moved))) or "units < u"
    body.append(f"a = ({', '.join([f'float32({fill!r})'] * width)},)")
    inner = [f"a = ({', '.join(['float32(0)'] * width)},)"]
    inner += _taps(moved, steps, 0, "base", "float32(1)")
    body += [f"if not ({outside}):", *indented(inner)]
    body.append(f"store(y, uint32(u * uint32({width})), a)" if width > 1 else "store(y, u, a)")
    tables = [(f"{n}{k}", d) for k in range(len(moved)) for n, d in (("t", "int32"), ("w", "float32"))]
    return per_unit("blend", lines, body, [("x", dtype), ("y", dtype), *tables], math.prod(shape) // width)


def _taps(
    moved: Sequence[tuple[int, int]], steps: Sequence[int], k: int, base: str, factor: str
) -> list[str]:
    """Loops over the taps of the axes from the k-th on; the innermost adds an element."""
    if k == len(moved):
        return [f"a = add(a, load(x, {base}), {factor})"]
    axis, count = moved[k]
    inner = [
        f"q{k} = uint32(at{k} + uint32(n{k}))",
        f"b{k} = uint32({base} + uint32(t{k}[q{k}]) * uint32({steps[axis]}))",
        f"f{k} = float32({factor} * w{k}[q{k}])",
        *_taps(moved, steps, k + 1, f"b{k}", f"f{k}"),
    ]
    return [f"for n{k} in range({count}):", *indented(inner)]


def _width(shape: Sequence[int], sizes: Sequence[int], moved: Sequence[int], dtype: str) -> int:
    """Neighbours of a thread: several where the innermost axis is left as it is."""
    if len(shape) - 1 in moved or not shape:
        return 1
    walks = (Strided(dtype, contiguous(shape)), Strided(dtype, contiguous(sizes)))
    width = vector_width(shape, walks)
    while shape[-1] % width:
        width //= 2
    return width


def _unit(shape: Sequence[int], width: int, names: Sequence[str]) -> list[str]:
    lines = unpacked("u", [*shape[:-1], shape[-1] // width], names)
    return [*lines, f"{names[-1]} = uint32({names[-1]} * uint32({width}))"] if width > 1 else lines
