"""Reads and writes at indices that are known at run time only.

Negative indices count from the end. A kernel cannot raise: where an index is outside, what it should have
produced becomes poison, all bits set (NaN in floating point), and no byte outside is touched.
"""

import math
from collections.abc import Sequence

from app.kernels.cuda import vectors
from app.kernels.cuda.elementwise import copy
from app.kernels.cuda.geometry import BITS, NBYTES, Strided, check_size, contiguous, indented, place, unpacked
from app.kernels.cuda.kernel import Launch, Launches, Ref
from app.kernels.cuda.units import per_unit

_POISON = {8: "int64(-1)", 4: "uint32(4294967295)", 2: "uint16(65535)", 1: "uint8(255)"}
COMBINE = {
    "none": "b",
    "add": "a + b",
    "mul": "a * b",
    "max": "a if a > b or a != a else b",
    "min": "a if a < b or a != a else b",
}


def gather_nd(
    batch: int,
    sizes: Sequence[int],
    inner: int,
    count: int,
    dtype: str,
    indices: str,
    *,
    shared: bool = False,
) -> Launches:
    """y[b, j, :] = x[b, index[b, j, 0], index[b, j, 1], ..., :]: embeddings, Gather along any axis, GatherND.

    Roles x, index, y: x: dtype[batch, *sizes, inner], index: indices[batch, count, len(sizes)] (without
    batch if `shared`), y: dtype[batch, count, inner] contiguous. No aliasing. Every element type.
    """
    check_size("gather", batch * max(math.prod(sizes), count) * inner)
    kind, width = _words(inner, dtype)
    inner = inner * NBYTES[dtype] // NBYTES[kind]
    groups = inner // width
    lines = vectors.load("load", kind, width) + vectors.store("store", kind, width)
    body = [
        *unpacked("u", [batch, count, groups], ["b", "j", "c"]),
        f"at = uint32({'j' if shared else f'b * uint32({count}) + j'}) * uint32({len(sizes)})",
        f"p = b * uint32({math.prod(sizes) * inner}) + c * uint32({width})",
        "inside = True",
        *_address(sizes, inner, "uint32(at + {d})"),
        f"v = ({', '.join([_POISON[NBYTES[kind]]] * width)},)",
        "if inside:",
        "    v = load(x, uint32(p))",
        f"store(y, uint32(u * uint32({width})), v)",
    ]
    return per_unit(
        "gather", lines, body, [("x", kind), ("index", indices), ("y", kind)], batch * count * groups
    )


def gather_elements(
    shape: Sequence[int], sizes: Sequence[int], axis: int, dtype: str, indices: str
) -> Launches:
    """y[i] = x[i with i[axis] = index[i]].

    Roles x, index, y: x: dtype[sizes], index: indices[shape], y: dtype[shape] contiguous. y may be
    index if elements are of one size. Every element type.
    """
    check_size("gather_elements", max(math.prod(shape), math.prod(sizes)))
    kind = BITS[NBYTES[dtype]]
    names = [f"i{a}" for a in range(len(shape))]
    read = list(names)
    read[axis] = "uint32(k)"
    body = [
        *unpacked("u", shape, names),
        "k = int64(index[u])",
        f"k = int64(k + {sizes[axis]}) if k < 0 else k",
        f"v = {_POISON[NBYTES[kind]]}",
        f"if k >= 0 and k < {sizes[axis]}:",
        f"    v = x[{place(read, contiguous(sizes))}]",
        "y[u] = v",
    ]
    return per_unit(
        "gather_elements", [], body, [("x", kind), ("index", indices), ("y", kind)], math.prod(shape)
    )


def scatter_elements(
    shape: Sequence[int],
    sizes: Sequence[int],
    axis: int,
    dtype: str,
    indices: str,
    reduction: str = "none",
) -> Launches:
    """The data, then y[i with i[axis] = index[i]] joined with updates[i].

    Roles data, index, updates, y: data, y: dtype[sizes]; index: indices[shape], updates: dtype[shape];
    all contiguous. y may be data. The updates of a line are applied in order, so results do not vary.

    Args:
        shape: of the updates.
        sizes: of the data.
        axis: that indices count along.
        dtype: float32, float16, bfloat16, int32 or int64; any for reduction "none".
        indices: "int32" or "int64".
        reduction: a key of `COMBINE`.
    """
    lines, kind = _combine(dtype, reduction)
    others = [a for a in range(len(shape)) if a != axis]
    names = [f"i{a}" for a in range(len(shape))]
    target = list(names)
    target[axis] = "uint32(k)"
    body = [
        *unpacked("u", [shape[a] for a in others] or [1], [names[a] for a in others] or ["none"]),
        f"for n in range({shape[axis]}):",
        *indented([
            f"i{axis} = uint32(n)",
            f"at = {place(names, contiguous(shape))}",
            "k = int64(index[at])",
            f"k = int64(k + {sizes[axis]}) if k < 0 else k",
            f"if k >= 0 and k < {sizes[axis]}:",
            f"    p = {place(target, contiguous(sizes))}",
            "    y[p] = combined(y[p], updates[at])",
        ]),
    ]  # fmt: skip
    made = per_unit(
        "scatter_elements",
        lines,
        body,
        [("index", indices), ("updates", kind), ("y", kind)],
        math.prod(shape[a] for a in others),
    )
    return Launches((*_whole(sizes, dtype), *made))


def scatter_nd(
    sizes: Sequence[int], inner: int, count: int, dtype: str, indices: str, reduction: str
) -> Launches:
    """The data, then y[index[j, 0], ..., :] joined with updates[j, :].

    Roles data, index, updates, y: data, y: dtype[*sizes, inner]; index: indices[count, len(sizes)],
    updates: dtype[count, inner]; all contiguous. y may be data. Updates are applied in order.
    """
    lines, kind = _combine(dtype, reduction)
    update = [
        "p = uint32(i)",
        f"at = uint32(j) * uint32({len(sizes)})",
        "inside = True",
        *_address(sizes, inner, "uint32(at + {d})"),
        "if inside:",
        "    p = uint32(p)",
        f"    y[p] = combined(y[p], updates[uint32(uint32(j) * uint32({inner}) + i)])",
    ]
    body = ["i = u", f"for j in range({count}):", *indented(update)]
    made = per_unit("scatter_nd", lines, body, [("index", indices), ("updates", kind), ("y", kind)], inner)
    return Launches((*_whole([*sizes, inner], dtype), *made))


def _whole(sizes: Sequence[int], dtype: str) -> tuple[Launch, ...]:
    """The copy of the data, which does nothing where y is data."""
    size = math.prod(sizes)
    made = copy((size,), Strided(dtype, (1,)), Strided(dtype, (1,)), "scatter_data")
    return tuple(Launch(s.kernel, s.grid, (Ref("data"), Ref("y"), *s.arguments[2:])) for s in made.steps)


def _combine(dtype: str, reduction: str) -> tuple[list[str], str]:
    """Lines of `combined(old, new)` of elements in memory, and their type."""
    if reduction == "none":
        return vectors.device("combined(a, b)", "return b"), BITS[NBYTES[dtype]]
    body = [
        "a = x",
        "b = z",
        f"a = {vectors.scalar(dtype, 'a')}",
        f"b = {vectors.scalar(dtype, 'b')}",
        f"c = {COMBINE[reduction]}",
        f"return {vectors.kept(dtype, 'c')}",
    ]
    return vectors.device("combined(x, z)", *body), dtype


def _address(sizes: Sequence[int], inner: int, at: str) -> list[str]:
    """Lines that add the place of an index tuple to `p`, and clear `inside` where it is outside."""
    lines = []
    steps = contiguous([*sizes, inner])
    for d, size in enumerate(sizes):
        lines += [
            f"k{d} = int64(index[{at.format(d=d)}])",
            f"k{d} = int64(k{d} + {size}) if k{d} < 0 else k{d}",
            f"inside = inside and k{d} >= 0 and k{d} < {size}",
            f"p = p + uint32(k{d}) * uint32({steps[d]})",
        ]
    return lines


def _words(inner: int, dtype: str) -> tuple[str, int]:
    """The widest (type, elements) that rows of `inner` elements of a type are moved as."""
    nbytes = inner * NBYTES[dtype]
    if nbytes % 4 == 0:
        width = 4
        while nbytes % (4 * width):
            width //= 2
        return "uint32", width
    return BITS[NBYTES[dtype]], 1
