"""Reductions over any set of axes of a strided tensor; positions of extrema too.

Where the innermost axis is reduced, neighbouring threads share a row and join what they found by
shuffles (`rows`). Where it is kept, a thread owns neighbouring columns, and the rows of a block take
parts of the reduced elements and meet in shared memory (`columns`). Floats are joined in float32.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import (
    FLOATS,
    Strided,
    check_size,
    collapsed,
    contiguous,
    indented,
    place,
    unpacked,
    vector_width,
)
from app.kernels.cuda.kernel import WORKSPACE, Kernel, Launch, Launches, Ref
from app.kernels.cuda.rows import WARP, Rows, folded, lanewise
from app.kernels.cuda.units import per_unit

LONG = 16384  # reduced elements that are worth a second kernel where there are few results
FEW = 64  # results
PARTS = 256  # partial results that the first of two kernels makes


@dataclass(frozen=True, slots=True)
class Reduction:
    """One operation: what an element `{v}` contributes, how `{a}` and `{b}` join, what becomes of `{t}`.

    `start` is the identity, for floats and integers; `again` the operation that joins partial results.
    """

    start: str
    element: str
    step: str
    finish: str = "{t}"
    again: str = "sum"


REDUCTIONS = {
    "sum": Reduction("0", "{v}", "({a} + {b})"),
    "mean": Reduction("0", "{v}", "({a} + {b})", "({t} / {count})"),
    "l1": Reduction("0", "abs({v})", "({a} + {b})"),
    "l2": Reduction("0", "({v} * {v})", "({a} + {b})", "float32(sqrt({t}))"),
    "sum_square": Reduction("0", "({v} * {v})", "({a} + {b})"),
    "log_sum": Reduction("0", "{v}", "({a} + {b})", "float32(log({t}))"),
    "prod": Reduction("1", "{v}", "({a} * {b})", again="prod"),
    "max": Reduction("-inf", "{v}", "maximum({a}, {b})", again="max"),
    "min": Reduction("inf", "{v}", "minimum({a}, {b})", again="min"),
}
_WHOLE = {  # what integers do instead
    "-inf": {"int32": str(-(2**31)), "int64": str(-(2**63)), "uint8": "0", "int8": "-128", "bool": "0"},
    "inf": {"int32": str(2**31 - 1), "int64": str(2**63 - 1), "uint8": "255", "int8": "127", "bool": "1"},
}


def reduce(
    operation: str,
    shape: Sequence[int],
    axes: Sequence[int],
    dtype: str,
    *,
    strides: Sequence[int] | None = None,
) -> Launches:
    """Reduce x over some axes.

    Roles x, y: x: dtype[shape], contiguous unless strides are given; y: dtype[the axes that are
    kept] contiguous. No aliasing. float32, float16 and bfloat16 for every operation; int32, int64, int8,
    uint8 for sum, prod, max, min, l1, sum_square, mean (rounded towards zero).

    Args:
        operation: a key of `REDUCTIONS`.
        shape: of x.
        axes: that are reduced, not negative; none of extent 0 unless the result is the identity.
        dtype: of x.
        strides: of x in elements.
    """
    row = REDUCTIONS[operation]
    check_size("reduce", math.prod(shape))
    count = math.prod(shape[a] for a in axes)
    kept, reduced = _split(shape, axes, tuple(strides or contiguous(shape)))
    results = math.prod(n for n, _ in kept)
    if count > LONG and results <= FEW and dtype in FLOATS:
        parts = _divisor(reduced[0][0])
        if parts > 1:
            n, s = reduced[0]
            first = _reduce(
                replace(row, finish="{t}"), operation, [*kept, (parts, s * (n // parts))],
                [(n // parts, s), *reduced[1:]], dtype, "float32", count, "x", WORKSPACE,
            )  # fmt: skip
            last = replace(REDUCTIONS[row.again], finish=row.finish)
            second = _reduce(
                last, operation, [(results, parts)], [(parts, 1)], "float32", dtype, count, WORKSPACE, "y"
            )
            return Launches((*first, *second), workspace=results * parts * 4)
    return Launches(_reduce(row, operation, kept, reduced, dtype, dtype, count, "x", "y"))


Axes = list[tuple[int, int]]  # (extent, stride)


def _split(shape: Sequence[int], axes: Sequence[int], strides: Sequence[int]) -> tuple[Axes, Axes]:
    """Axes that stay and those that go, neighbours merged."""
    found = []
    for which in ([a for a in range(len(shape)) if a not in axes], sorted(axes)):
        x = Strided("float32", tuple(strides[a] for a in which))
        # The other operand, row-major over these axes, keeps their order.
        extents = [shape[a] for a in which]
        box, (walked, _) = collapsed(extents, (x, Strided("float32", contiguous(extents))))
        found.append(list(zip(box, walked.strides)))
    return found[0], found[1]


def _divisor(n: int) -> int:
    """The largest number of parts, at most PARTS, that n falls into."""
    return max(p for p in range(1, min(n, PARTS) + 1) if n % p == 0)


def _reduce(
    row: Reduction, operation: str, kept: Axes, reduced: Axes, dtype: str, output: str, count: int,
    source: str, target: str,
) -> tuple[Launch, ...]:  # fmt: skip
    if not math.prod(n for n, _ in kept):
        return ()
    contiguous_row = reduced[-1][1] == 1 or kept[-1][1] != 1
    kind = "float32" if dtype in FLOATS else dtype
    if contiguous_row and kind in ("float32", "int32"):
        return tuple(_rows(row, operation, kept, reduced, dtype, output, count, source, target))
    return _columns(row, operation, kept, reduced, dtype, output, count, source, target)


def _texts(row: Reduction, dtype: str, count: int) -> tuple[str, str, Reduction]:
    """(type that is joined, its identity, the operation's expressions for it)."""
    if dtype in FLOATS:
        number = f"float32({count})"
        return "float32", f"float32({row.start})", replace(row, finish=row.finish.replace("{count}", number))
    start = _WHOLE.get(row.start, {}).get(dtype, row.start)
    step = row.step.replace("maximum", "larger").replace("minimum", "smaller")
    finish = row.finish.replace("{count}", f"int64({count})").replace("({t} /", "quotient({t},")
    finish = finish.replace("quotient({t}, ", "quotient(int64({t}), ")
    kind = dtype if dtype in ("int32", "int64") else "int64"
    return kind, f"{kind}({start})", replace(row, step=step, finish=finish)


def _offsets(name: str, axes: Axes) -> list[str]:
    """Lines of `name(i)`: the element that a row-major number over axes is."""
    names = [f"i{a}" for a in range(len(axes))]
    lines = unpacked("i", [n for n, _ in axes], names)
    return vectors.device(f"{name}(i)", *lines, f"return {place(names, [s for _, s in axes])}")


def _rows(
    row: Reduction, operation: str, kept: Axes, reduced: Axes, dtype: str, output: str, count: int,
    source: str, target: str,
) -> Launches:  # fmt: skip
    kind, start, row = _texts(row, dtype, count)
    length = math.prod(n for n, _ in reduced)
    extents = [n for n, _ in reduced]
    x = Strided(dtype, tuple(s for _, s in reduced))
    width = vector_width(extents, (x,), 16 if dtype in FLOATS else 4) if x.strides[-1] == 1 else 1
    while length % width or any((s * x.nbytes) % min(16, width * x.nbytes) for _, s in kept):
        width //= 2
    made = Rows(
        length, width, "load(x, uint32(base + inner({c})))", "outer(row)",
        "f32" if kind == "float32" else "i32", f"{kind}(0)",
    )  # fmt: skip
    if len(reduced) == 1 and x.strides == (1,):
        made.loads = "load(x, uint32(base + {c}))"
    else:
        made.functions += _offsets("inner", reduced)
    made.functions += _offsets("outer", kept)
    made.functions += vectors.load("load", dtype, width)
    made.functions += folded("fold", row.element.format(v="v[{i}]"), row.step, width)
    made.begin()
    made.body.append(f"t = {start}")
    made.sweep("t = fold(t, {v})")
    made.join(("t",), (f"t = {row.step.format(a='t', b='t_')}",))
    made.body += [
        f"t = {row.finish.format(t='t')}",
        "if live and column == 0:",
        f"    y[row] = {vectors.kept(output, 't')}",
    ]
    return made.launch(
        f"reduce_{operation}",
        {"x": vectors.pointer(dtype), "y": vectors.pointer(output)},
        math.prod(n for n, _ in kept),
        (source, target),
    )


_COLUMNS = """\
def kernel(x, y, units):
    group = uint32(block_x() * uint32({across}) + thread() % uint32({across}))
    part = uint32(thread() // uint32({across}))
    live = group < units
    base = outer(uint32(group * uint32({width})))
    t = ({starts},)
    if live:
        for k in range(part, {length}, {down}):
            t = join(t, load(x, uint32(base + inner(uint32(k)))))
{meet}
    if live and part == 0:
        t = finish(t)
        store(y, uint32(group * uint32({width})), t)
"""


def _columns(
    row: Reduction, operation: str, kept: Axes, reduced: Axes, dtype: str, output: str, count: int,
    source: str, target: str,
) -> tuple[Launch, ...]:  # fmt: skip
    kind, start, row = _texts(row, dtype, count)
    length = math.prod(n for n, _ in reduced)
    x = Strided(dtype, tuple(s for _, s in kept))
    results = math.prod(n for n, _ in kept)
    width = 1
    if kind == "float32" and x.strides[-1] == 1:
        width = vector_width([n for n, _ in kept], (x,), 8)
        while kept[-1][0] % width or any((s * x.nbytes) % min(16, width * x.nbytes) for _, s in reduced):
            width //= 2
    groups = results // width
    # Rows of the block share the reduced elements: four each at least, if there are so few columns.
    down = 1
    if kind == "float32":
        while down < 16 and length >= 4 * down and groups * down < 132 * 1024:
            down *= 2
    across = WARP if down > 1 else 128
    lines = _offsets("outer", kept) + _offsets("inner", reduced)
    lines += vectors.load("load", dtype, width) + vectors.store("store", output, width)
    step = row.step.format(a="a[{i}]", b=row.element.format(v="v[{i}]"))
    lines += lanewise("join", ("a", "v"), f"{kind}({step})", width)
    lines += lanewise("meet", ("a", "b"), row.step.format(a="a[{i}]", b="b[{i}]"), width)
    finish = row.finish.format(t="t[{i}]")
    lines += lanewise("finish", ("t",), finish if output in FLOATS else f"{output}({finish})", width)
    meet: list[str] = []
    if down > 1:
        # A column of words for each element of the tuple: lanes touch neighbouring words.
        meet = ["s = shared_f32(uint32(0))", f"at = uint32(part * uint32({across * width}) + lane())"]
        writes = [f"    s[uint32(at + uint32({i * across}))] = t[{i}]" for i in range(width)]
        half = down // 2
        while half:
            reads = ", ".join(
                f"s[uint32(at + uint32({half * across * width + i * across}))]" for i in range(width)
            )
            meet += [
                f"if part >= {half} and part < {2 * half}:",
                *writes,
                "sync()",
                f"if part < {half}:",
                f"    t = meet(t, ({reads},))",
            ]
            half //= 2
    text = _COLUMNS.format(
        across=across, width=width, length=length, down=down,
        starts=", ".join([start] * width), meet="\n".join(indented(meet)),
    )  # fmt: skip
    kernel = Kernel(
        f"reduce_{operation}",
        "\n".join([*functions.library([*lines, text]), *lines, text]),
        (vectors.pointer(dtype), vectors.pointer(output), "uint32"),
        across * down,
        shared_bytes=4 * across * width * down if down > 1 else 0,
    )
    return (Launch(kernel, (-(-groups // across), 1, 1), (Ref(source), Ref(target), groups)),)


def argument(largest: bool, outer: int, n: int, inner: int, dtype: str, *, last: bool = False) -> Launches:
    """Index of the largest (or smallest) element along the middle axis; a NaN is beyond all.

    Roles x, y: x: dtype[outer, n, inner] contiguous, float32, float16, bfloat16, int32 or int64;
    y: int64[outer, inner]. No aliasing.

    Args:
        largest: or smallest.
        outer: extent before the axis.
        n: of the axis, at least 1.
        inner: after it.
        dtype: of x.
        last: whether of equal elements the last is told, else the first.
    """
    check_size("argument", outer * n * inner)
    sign = ">" if largest else "<"
    after = f"(b {sign} a or b != b and a == a)"
    tie = "(b == a or b != b and a != a)"
    order = f"({after} or {tie} and j {'>' if last else '<'} i)"
    lines = vectors.device("better(a, i, b, j)", f"return {order}")
    if inner == 1 and dtype in (*FLOATS, "int32"):
        return _argument_rows(lines, outer, n, dtype)
    lines += vectors.load("load", dtype, 1)
    body = [
        f"at = uint32(u // uint32({inner}) * uint32({n * inner}) + u % uint32({inner}))",
        "a = load(x, at)[0]",
        "i = int64(0)",
        f"for k in range(1, {n}):",
        f"    b = load(x, uint32(at + uint32(k) * uint32({inner})))[0]",
        "    j = int64(k)",
        "    if better(a, i, b, j):",
        "        a = b",
        "        i = j",
        "y[u] = i",
    ]
    return per_unit("argument", lines, body, [("x", dtype), ("y", "int64")], outer * inner, threads=128)


def _argument_rows(lines: list[str], outer: int, n: int, dtype: str) -> Launches:
    kind = "int32" if dtype == "int32" else "float32"
    made = Rows(n, 1, "load(x, uint32(base + {c}))", f"uint32(row * uint32({n}))")
    made.functions += [*lines, *vectors.load("load", dtype, 1)]
    made.begin()
    made.body += ["a = " + ("float32(0)" if kind == "float32" else "int32(0)"), "i = int32(-1)"]
    # Index -1 is of no element: it loses against all.
    made.sweep(
        "b = {v}[0]",
        "j = int32({c})",
        "if i < 0 or better(a, i, b, j):",
        "    a = b",
        "    i = j",
    )
    swap = ["if j >= 0 and (i < 0 or better(a, i, b, j)):", "    a = b", "    i = j"]
    t, shuffle = made.threads, "i32" if kind == "int32" else "f32"
    reach = min(t, WARP) // 2
    while reach:
        made.body += [
            f"b = shfl_xor_{shuffle}(a, uint32({reach}))",
            f"j = shfl_xor_i32(i, uint32({reach}))",
            *swap,
        ]
        reach //= 2
    shared = 0
    if t > WARP:
        warps = t // WARP
        shared = 8 * warps
        made.body = [line for line in made.body if not line.startswith("scratch = ")]
        made.body += [
            f"found = shared_{shuffle}(uint32(0))",
            f"places = shared_i32(uint32({4 * warps}))",
            "if lane() == 0:",
            "    found[warp()] = a",
            "    places[warp()] = i",
            "sync()",
            f"for w in range({warps}):",
            "    b = found[uint32(w)]",
            "    j = places[uint32(w)]",
            *indented(swap),
        ]
    made.body += ["if live and column == 0:", "    y[row] = int64(i)"]
    launches = made.launch("argument", {"x": vectors.pointer(dtype), "y": "int64*"}, outer)
    return Launches(tuple(replace(s, kernel=replace(s.kernel, shared_bytes=shared)) for s in launches))
