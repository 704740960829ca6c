"""Epilogue of a contraction, applied to a run of sums while they are in the first cache.

A run goes through a small buffer in chunks, one simple loop a stage: the output may then be the
memory of any operand that is read at the same place, and every loop still vectorizes, which it
would not if a run-time check found the output's memory among the operands.
"""

from app.kernels.cpu.codegen.tiles import CLAMP, RESIDUAL, ROW_BIAS
from app.kernels.expressions import HALVES, Recipe, lines, prelude

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
        types="".join(f", types.CPointer(types.{in_memory(kind)})" for _, kind in operands),
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


def in_memory(dtype: str) -> str:
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
