"""Epilogue of a contraction, applied to a run of sums while they are in the first cache.

A run goes through a small buffer in chunks, one simple loop a stage: the output may then be the
memory of any operand that is read at the same place, and every loop still vectorizes, which it
would not if a run-time check found the output's memory among the operands.
"""

from app.kernels.cpu.codegen.tiles import CLAMP, RESIDUAL, ROW_BIAS
from app.kernels.cpu.requantize import is_requantization
from app.kernels.expressions import HALVES, Recipe, kept, lines, prelude

# How an operand advances along a run: with the output, or not at all.
# In blocked layouts also by lane: one vector for all pixels.
ALONG, FIXED, LANES = "along", "fixed", "lanes"
ROWS = "rows"  # along a run, and from row to row, as the output
# The same by the place an operand of a blocked image is read at.
ADVANCE = {"same": ALONG, "channel": LANES, "plane": LANES, "scalar": FIXED}
CHUNK = 256  # elements of the buffer

_RUN = """\
{prelude}
from numba import types

from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.{dtype}), types.int64


@shared(types.void(T, N, T, N, N, types.{dtype}, T, T, N, T{types}))
def run(v, v_step, y, y_step, n, bias, residual, scalars, flags, buffer{operands}):
    # y[j * y_step] = f(v[j * v_step] + bias + residual[j * y_step]), j < n.
{fixed}{direct}
    for first in range(0, n, {chunk}):
        count = min({chunk}, n - first)
        if v_step == 1:
            for j in range(count):
                buffer[j] = v[first + j]
        else:
            for j in range(count):
                buffer[j] = v[(first + j) * v_step]
        if flags & {row_bias}:
            for j in range(count):
                buffer[j] += bias
        if flags & {residual}:
            for j in range(count):
                buffer[j] += residual[(first + j) * y_step]
        if flags & {clamp}:
            low, high = scalars[2], scalars[3]
            for j in range(count):
                u = low if buffer[j] < low else buffer[j]
                buffer[j] = high if u > high else u
{expression}
        if y_step == 1:
            for j in range(count):
                y[first + j] = buffer[j]
        else:
            for j in range(count):
                y[(first + j) * y_step] = buffer[j]
"""


def run_library(dtype: str, recipe: Recipe, operands: tuple[tuple[str, str], ...]) -> str:
    """Defines `run`.

    Args:
        dtype: of sums and output.
        recipe: what follows the residual and the limits; its input 0 is the sum so far.
        operands: (ALONG or FIXED, element type) of its other inputs, which `run` takes last, as
            addresses where the run begins.
    """
    fixed, names = [], ["buffer[j]"]
    for i, (advance, _) in enumerate(operands):
        if advance == FIXED:
            fixed.append(f"    w{i} = o{i}[0]")
        names.append(f"w{i}")
    expression = direct = ""
    if recipe and not any(advance == ALONG for advance, _ in operands):
        # Nothing but the sums is read. Where they lie in y, a test for that would lead to a loop of scalars.
        text = lines(recipe, ["read(v, j)", *names[1:]], (dtype, *(kind for _, kind in operands)))
        text.append(f"write(y, j, v{len(names) + len(recipe) - 1})")
        direct = "\n".join(
            (
                "\n    if flags == 0 and v_step == 1 and y_step == 1:",
                "        for j in range(n):",
                *(f"            {line}" for line in text),
                "        return",
            )
        )
    if recipe:
        loops = [
            _loop(names, dtype, recipe, operands, index) for index in ("first + j", "(first + j) * y_step")
        ]
        expression = f"        if y_step == 1:\n{loops[0]}\n        else:\n{loops[1]}"
        if not any(advance == ALONG for advance, _ in operands):
            expression = f"        if True:\n{loops[0]}"
    return _RUN.format(
        prelude=prelude() if recipe else "",
        dtype=dtype,
        types="".join(f", types.CPointer(types.{_bytes(kind)})" for _, kind in operands),
        operands="".join(f", o{i}" for i in range(len(operands))),
        fixed="\n".join(fixed),
        direct=direct,
        chunk=CHUNK,
        row_bias=ROW_BIAS,
        residual=RESIDUAL,
        clamp=CLAMP,
        expression=expression,
    )


_LANES_RUN = """\
{prelude}
from numba import types

from app.kernels.cpu.codegen.linking import shared

T, N = types.CPointer(types.{dtype}), types.int64


@shared(types.void(T, N, T{types}))
def run(y, n, buffer{operands}):
    # y[j] = f(y[j], ...), j < n.
{fixed}
    for first in range(0, n, {chunk}):
        for j in range(min({chunk}, n - first)):
{body}
"""


def lanes_run_library(dtype: str, lanes: int, recipe: Recipe, operands: tuple[tuple[str, str], ...]) -> str:
    """Defines `run(y, n, buffer, *operands)`: a recipe in place over pixels of one block of channels.

    Args:
        dtype: of y and of all operands.
        lanes: channels in a block.
        recipe: its input 0 is y.
        operands: (ALONG, LANES or FIXED, dtype) of its other inputs, as addresses where the run begins.

    The buffer holds `CHUNK` elements for each operand that is read by lane. No operand lies in y: the
    test for that, which the compiler adds to the loop, must not fail.
    """
    fixed, names, expanded = [], ["y[first + j]"], 0
    for i, (advance, _) in enumerate(operands):
        names.append(f"o{i}[first + j]" if advance == ALONG else f"w{i}")
        if advance == FIXED:
            fixed.append(f"    w{i} = o{i}[0]")
        elif advance == LANES:
            names[-1] = f"buffer[{CHUNK * expanded} + j]"
            fixed += [
                f"    for j in range(min(n, {CHUNK})):",
                f"        buffer[{CHUNK * expanded} + j] = o{i}[j % {lanes}]",
            ]
            expanded += 1
    text = lines(recipe, names, dtype)
    body = [*text, f"y[first + j] = v{len(names) + len(recipe) - 1}"]
    return _LANES_RUN.format(
        prelude=prelude(),
        dtype=dtype,
        types="".join(f", types.CPointer(types.{kind})" for _, kind in operands),
        operands="".join(f", o{i}" for i in range(len(operands))),
        fixed="\n".join(fixed),
        chunk=CHUNK,
        body="\n".join(f"            {line}" for line in body),
    )


_CONVERTED_RUN = """\
{prelude}
from numba import types

from app.kernels.cpu.access import read, write
from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared

N = types.int64


@shared(types.void(types.CPointer(types.{dtype}), types.CPointer(types.{stored}), N{types}))
def run(v, y, n{operands}):
    # y[j] = f(v[j], ...), j < n.
{fixed}
    for j in range(n):
{body}


@shared(types.void(types.CPointer(types.{dtype}), N, N, N, types.CPointer(types.{stored}), N{types}))
def run_rows(v_rows, row, m, n, y_rows, y_row{operands}):
{fixed}
    for i in range(m):
        v, y = at(v_rows, i * row), at(y_rows, i * y_row)
{rows}
        for j in range(n):
{row_body}
"""


_REQUANTIZING_RUN = """\
from numba import types

from app.kernels.cpu.codegen.generator import at
from app.kernels.cpu.codegen.linking import shared
from app.kernels.cpu.requantize import requantizer, rows_requantizer

N = types.int64
requantize = requantizer("{result}", {lanes}, {along})
requantize_rows = rows_requantizer("{result}", {lanes}, {along})


@shared(types.void(types.CPointer(types.{dtype}), types.CPointer(types.{result}), N{types}))
def run(v, y, n, factor, addend, zero):
    requantize(v, y, n, factor, addend, types.float32(zero[0]))


@shared(types.void(types.CPointer(types.{dtype}), N, N, N, types.CPointer(types.{result}), N{types}))
def run_rows(v, row, m, n, y, y_row, factor, addend, zero):
    if n < {lanes}:
        for i in range(m):
            run(at(v, i * row), at(y, i * y_row), n, factor, addend, zero)
    else:
        requantize_rows(v, row, m, n, y, y_row, factor, addend, types.float32(zero[0]))
"""


def converted_run_library(
    dtype: str, result: str, recipe: Recipe, operands: tuple[tuple[str, str], ...], lanes: int
) -> str:
    """Defines `run(v, y, n, *operands)`: a recipe whose result may be of another type than its input 0.

    And `run_rows(v, row, m, n, y, y_row, *operands)`: m rows of n elements, `row` apart in v, `y_row` in y
    and in operands that are read by ROWS, with the same other operands.

    Args:
        dtype: of v, input 0.
        result: dtype of y, which may be an operand that is read ALONG but not v.
        recipe: not empty.
        operands: (ALONG, ROWS or FIXED, dtype) of its other inputs, as addresses where the run begins.
        lanes: float32 in a register.
    """
    pointers = "".join(f", types.CPointer(types.{_bytes(kind)})" for _, kind in operands)
    if dtype == "int32" and is_requantization(recipe) and operands[2][0] == FIXED:
        along = tuple(advance == ALONG for advance, _ in operands[:2])
        return _REQUANTIZING_RUN.format(dtype=dtype, result=result, lanes=lanes, along=along, types=pointers)
    fixed, moved, names = [], [], ["read(v, j)"]
    for i, (advance, _) in enumerate(operands):
        names.append(f"w{i}" if advance == FIXED else f"read(o{i}, j)")
        if advance == FIXED:
            fixed.append(f"    w{i} = o{i}[0]")
        if advance == ROWS:
            moved.append(f"        r{i} = at(o{i}, i * y_row)")
    dtypes = (dtype, *(kind for _, kind in operands))
    value = kept(result, f"v{len(names) + len(recipe) - 1}")

    def body(names: list[str], indent: int) -> str:
        text = (*lines(recipe, names, dtypes), f"write(y, j, {value})")
        return "\n".join(" " * indent + line for line in text)

    in_rows = [
        f"read(r{i}, j)" if way == ROWS else name
        for i, (name, (way, _)) in enumerate(zip(names[1:], operands))
    ]
    return _CONVERTED_RUN.format(
        prelude=prelude(),
        dtype=dtype,
        stored=_bytes(result),
        types=pointers,
        operands="".join(f", o{i}" for i in range(len(operands))),
        fixed="\n".join(fixed),
        body=body(names, 8),
        rows="\n".join(moved),
        row_body=body([names[0], *in_rows], 12),
    )


def _bytes(dtype: str) -> str:
    """The type of an element in memory."""
    return "uint8" if dtype == "bool" else "uint16" if dtype in HALVES else dtype


def _loop(
    names: list[str], dtype: str, recipe: Recipe, operands: tuple[tuple[str, str], ...], index: str
) -> str:
    loads = [f"w{i} = o{i}[{index}]" for i, (way, _) in enumerate(operands) if way == ALONG]
    text = lines(recipe, names, (dtype, *(kind for _, kind in operands)))
    result = f"v{len(names) + len(recipe) - 1}"
    body = [*loads, *text, f"buffer[j] = {result}"]
    return "\n".join(["            for j in range(count):", *(f"                {line}" for line in body)])
