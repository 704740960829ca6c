"""One kernel for a chain of elementwise operators, generated from its recipe.

The axes of the results are collapsed first (by `collapsed`): neighbours along which every operand
is either all broadcast or all varying become one, so most chains have one axis, and a scale per
channel has two. What does not vary along the innermost axis is computed once a row. Sizes are
arguments; how often a source is compiled depends on operators, types and broadcast pattern only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.kernels.cpu.strips import STRIPS
from app.kernels.expressions import Recipe, kept, line, loaded, prelude, result_dtypes

Pattern = tuple[bool, ...]  # per collapsed axis: whether an operand varies along it

_MODULE = """\
{prelude}
from app.kernels.cpu.codegen.inner import njit
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.mapping import map_elements
from app.kernels.cpu.codegen.vectors import load, store


@njit(error_model="numpy", boundscheck=False, forceinline=True)
def element({parameters}):
{element}


def kernel({arguments}, {units}):
{kernel}
"""


def collapsed(
    shape: Sequence[int], operands: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[Pattern, ...]]:
    """Extents of the collapsed axes, outermost first, and the pattern of each operand.

    Args:
        shape: of the results.
        operands: shapes that broadcast to it.
    """
    rank = len(shape)
    wide = [(1,) * (rank - len(s)) + tuple(s) for s in operands]
    extents: list[int] = []
    columns: list[Pattern] = []
    for axis, extent in enumerate(shape):
        if extent == 1:
            continue
        column = tuple(s[axis] != 1 for s in wide)
        if columns and columns[-1] == column:
            extents[-1] *= extent
        else:
            extents.append(extent)
            columns.append(column)
    if not extents:
        extents, columns = [1], [(True,) * len(wide)]
    return tuple(extents), tuple(tuple(column[i] for column in columns) for i in range(len(wide)))


def emit(
    recipe: Recipe,
    dtypes: tuple[str, ...],
    patterns: tuple[Pattern, ...],
    results: tuple[tuple[int, str], ...],
) -> str:
    """Source of `kernel(inputs..., outputs..., extents..., begin, end)`.

    Inputs and outputs are addresses of contiguous tensors, extents those of the collapsed axes,
    outermost first; units are elements of a result. An output may be an input that varies along
    every axis.

    Args:
        recipe: the chain.
        dtypes: of the inputs, as they are in memory.
        patterns: of the inputs.
        results: number of a value and its dtype in memory, for each output.
    """
    chain = _chain(recipe, dtypes, patterns, results)
    inner = len(patterns[0]) - 1
    names = [f"x{i}" for i in range(len(dtypes))] + [f"y{i}" for i in range(len(results))]
    return _module(
        chain,
        names + [f"n{axis}" for axis in range(inner + 1)],
        _loops(patterns, chain.streamed, chain.held, len(results), chain.outer),
    )


PART = 1024  # elements of a block that are computed at once by `emit_lanes`, of which units consist

_LANES = """\
parts = (run + {part} - 1) // {part}
before = -1
for unit in range(begin, end):
    plane, start = unit // parts, unit % parts * {part}
    if plane != before:
{expand}
        before = plane
    first = plane * run + start
    map_elements(element, 0, min({part}, run - start), ({reads}), ({writes}), ({held}))
"""


def emit_lanes(
    lanes: int,
    recipe: Recipe,
    dtypes: tuple[str, ...],
    places: tuple[str, ...],
    results: tuple[tuple[int, str], ...],
) -> str:
    """Source of `kernel(inputs..., outputs..., buffer, blocks, run, begin, end, thread)` on blocked images.

    Results are T[batch, blocks, run], where `run` is pixels times lanes. What varies by lane alone is
    written out for a part of a block first, so that the loop over pixels is one over elements. buffer:
    float32[threads, operands by lane, PART]. Units are parts of `PART` elements (fastest), blocks,
    images. An output may be an input of place `same`.

    Args:
        lanes: channels in a block.
        recipe: the chain.
        dtypes: of the inputs, as they are in memory; float32 for those by lane.
        places: of the inputs: `same` as the results, `channel` (float32[blocks, lanes]), `plane`
            (float32[batch, blocks, lanes]), `scalar`.
        results: number of a value and its dtype in memory, for each output.
    """
    chain = _chain(recipe, dtypes, [(place != "scalar",) for place in places], results)
    by_lane = [i for i, place in enumerate(places) if place in _BLOCK]
    buffers = {i: f"at(buffer, (thread * {len(by_lane)} + {k}) * {PART})" for k, i in enumerate(by_lane)}
    expand = []
    for i, buffer in buffers.items():
        expand += [
            f"        wide, vector = {buffer}, load(x{i}, {_BLOCK[places[i]]} * {lanes}, {lanes})",
            f"        for j in range(0, min({PART}, run), {lanes}):",
            "            store(wide, j, vector)",
        ]
    reads = [buffers.get(i, f"at(x{i}, first)") for i in chain.streamed]
    names = [f"x{i}" for i in range(len(dtypes))] + [f"y{i}" for i in range(len(results))]
    body = _LANES.format(
        part=PART,
        expand="\n".join(expand),
        reads="".join(f"{r}, " for r in reads),
        writes="".join(f"at(y{i}, first), " for i in range(len(results))),
        held="".join(f"{h}, " for h in chain.held),
    )
    return _module(
        chain,
        [*names, "buffer", "blocks", "run"],
        [*chain.outer.get(0, ()), *body.splitlines()],
        "begin, end, thread",
    )


_STRIP = """\
    {unpack_rings}
    x, y, wide = x{image}, y0, at(buffer, work_at)
{span}
    while first < last:
{piece}
        x_slot = (first - x_origin) % x_ring
        count = min(count, x_ring - x_slot)
{planes}{expand}
            x_place, y_place = (plane * x_ring + x_slot) * line, (plane * y_ring + y_slot) * line
            r_place = r_at + (plane * r_ring + r_slot) * line
            for start in range(upper * line, lower * line, {part}):
                map_elements(element, 0, min({part}, lower * line - start), ({reads}),
                             (at(y, y_place + start),), ({held}))
        first += count
"""


def emit_strip(
    lanes: int,
    recipe: Recipe,
    dtypes: tuple[str, ...],
    places: tuple[str, ...],
    results: tuple[tuple[int, str], ...],
) -> str:
    """Source of a kernel that computes the next rows of a chain on blocked images, see `strips`.

    `kernel(image, result, inputs by lane and scalars..., blocks, rows, line, rings, cursors, most, buffer,
    second image, begin, end, thread)`: images are float32[blocks, ring, line], where `line` is columns times
    lanes; rows: of the image; rings: RingSizes, the second image being what is read at the place of the
    output; cursors: int64[operators], the next rows; most: rows of the call. One or two inputs are images.
    All else as in `emit_lanes`, for an image alone. Units are shares of the rows of all blocks.
    """
    chain = _chain(recipe, dtypes, [(place != "scalar",) for place in places], results)
    first, *second = (i for i, place in enumerate(places) if place == "same")
    by_lane = [i for i, place in enumerate(places) if place in _BLOCK]
    buffers = {i: f"at(wide, (thread * {len(by_lane)} + {k}) * {PART})" for k, i in enumerate(by_lane)}
    images = {first: "at(x, x_place + start)", **{i: f"at(x{i}, r_place + start)" for i in second}}
    expand = [
        f"            for j in range(0, min({PART}, (lower - upper) * line), {lanes}):\n"
        f"                store({buffer}, j, load(x{i}, plane * {lanes}, {lanes}))"
        for i, buffer in buffers.items()
    ]
    text = _STRIP.format(
        **STRIPS,
        image=first,
        part=PART,
        expand="\n".join(expand),
        reads="".join(f"{(buffers | images)[i]}, " for i in chain.streamed),
        held="".join(f"{h}, " for h in chain.held),
    )
    others = [f"x{i}" for i, place in enumerate(places) if place != "same"]
    sizes = ["blocks", "rows", "line", "rings", "cursors", "most", "buffer"]
    arguments = [f"x{first}", "y0", *others, *sizes, *(f"x{i}" for i in second)]
    kernel = [*chain.outer.get(0, ()), *(row[4:] for row in text.splitlines())]
    return _module(chain, arguments, kernel, "begin, end, thread")


# Which block of an operand by lane is read.
_BLOCK = {"channel": "plane % blocks", "plane": "plane"}


@dataclass(frozen=True, slots=True)
class _Chain:
    """Source of a recipe.

    Attributes:
        element: lines of the function of one element.
        streamed: inputs whose elements it takes.
        held: what else it takes.
        outer: lines before the loop over elements, by level: one more than the last varying axis,
            at most 1.
    """

    element: tuple[str, ...]
    streamed: tuple[int, ...]
    held: tuple[str, ...]
    outer: dict[int, list[str]]


def _module(chain: _Chain, arguments: list[str], kernel: Sequence[str], units: str = "begin, end") -> str:
    return _MODULE.format(
        prelude=prelude(),
        parameters=", ".join([*(f"x{i}" for i in chain.streamed), *chain.held]),
        element="\n".join(chain.element),
        arguments=", ".join(arguments),
        units=units,
        kernel="\n".join(f"    {text}" for text in kernel),
    )


def _chain(
    recipe: Recipe,
    dtypes: tuple[str, ...],
    patterns: Sequence[Pattern],
    results: tuple[tuple[int, str], ...],
) -> _Chain:
    inputs, inner = len(dtypes), len(patterns[0]) - 1
    kinds = result_dtypes(recipe, dtypes)
    levels = _levels(recipe, patterns)
    streamed = [i for i in range(inputs) if levels[i] > inner]
    outer: dict[int, list[str]] = {}
    body = [f"    v{i} = {loaded(dtypes[i], f'x{i}')}" for i in streamed]
    for i in range(inputs):
        if levels[i] <= inner:
            outer.setdefault(min(levels[i], 1), []).append(
                f"v{i} = {loaded(dtypes[i], f'x{i}[{_offset(patterns[i], inner)}]')}"
            )
    for k, instruction in enumerate(recipe):
        text = f"v{inputs + k} = {line(instruction, kinds)}"
        if levels[inputs + k] > inner:
            body.append(f"    {text}")
        else:
            outer.setdefault(min(levels[inputs + k], 1), []).append(text)
    read = {i for k, (_, operands, _) in enumerate(recipe) if levels[inputs + k] > inner for i in operands}
    held = [f"v{i}" for i in sorted(read) if levels[i] <= inner]
    body.append(f"    return ({', '.join(kept(dtype, f'v{value}') for value, dtype in results)},)")
    return _Chain(tuple(body), tuple(streamed), tuple(held), outer)


def _levels(recipe: Recipe, patterns: Sequence[Pattern]) -> list[int]:
    """One more than the innermost axis along which each value varies; 0 where it does along none."""
    levels = [max((axis + 1 for axis, varies in enumerate(p) if varies), default=0) for p in patterns]
    for _, operands, _ in recipe:
        levels.append(max((levels[i] for i in operands), default=0))
    return levels


def _loops(
    patterns: Sequence[Pattern],
    streamed: Sequence[int],
    held: Sequence[str],
    outputs: int,
    outer: dict[int, list[str]],
) -> list[str]:
    inner = len(patterns[0]) - 1

    def call(first: str, last: str, offset: str) -> str:
        reads = [f"at(x{i}, {_offset(patterns[i], inner)})" if inner else f"x{i}" for i in streamed]
        writes = [f"at(y{i}, {offset})" if inner else f"y{i}" for i in range(outputs)]
        groups = (f"({', '.join(names)}{',' if names else ''})" for names in (reads, writes, held))
        return f"map_elements(element, {first}, {last}, {', '.join(groups)})"

    text = list(outer.get(0, ()))
    if not inner:
        return [*text, call("begin", "end", "0")]
    row = [f"start = row * n{inner}"]
    if inner > 1:
        row.append("rest = row")
        for axis in range(inner - 1, 0, -1):
            row += [f"i{axis} = rest % n{axis}", f"rest = rest // n{axis}"]
        row.append("i0 = rest")
    row += outer.get(1, ())
    row.append(call("max(begin - start, 0)", f"min(end - start, n{inner})", "start"))
    text.append(f"for row in range(begin // n{inner}, (end + n{inner} - 1) // n{inner}):")
    return [*text, *(f"    {t}" for t in row)]


def _offset(pattern: Pattern, inner: int) -> str:
    """Source of where a row of an operand starts, in elements."""
    stride = [f"n{inner}"] if pattern[inner] else []
    if all(pattern[:inner]) and inner:
        return " * ".join(["row", *stride])
    terms = []
    for axis in range(inner - 1, -1, -1):
        if pattern[axis]:
            terms.append(" * ".join(["row" if inner == 1 else f"i{axis}", *stride]))
            stride.append(f"n{axis}")
    return " + ".join(terms) or "0"
