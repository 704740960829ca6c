"""Generated elementwise kernels: one loop nest per recipe, broadcasting folded into strides.

Axes along which all operands advance alike are merged before a kernel is made, so the usual cases
(same shape, scalar, per channel, last axis) become one or two loops. In the innermost loop an
operand advances by one element, not at all, or (rarely) by a stride known at run time; which of
them is written into the source, so that the loop vectorizes.
"""

from app.kernels.cpu.expressions import PRELUDE, Recipe, lines, load, store

UNIT, FIXED, STRIDED = "unit", "fixed", "strided"  # how an operand advances in the innermost loop


def emit(
    recipe: Recipe,
    inputs: tuple[str, ...],
    outputs: tuple[tuple[int, str], ...],
    patterns: tuple[str, ...],
    rank: int,
) -> str:
    """The module of a kernel over `rank` merged axes.

    Args:
        recipe: what is computed for each element.
        inputs: element types of the operands.
        outputs: (number of the result, element type) of each output, contiguous in the merged shape.
        patterns: UNIT, FIXED or STRIDED for every input.
        rank: merged axes, at least one.

    The kernel's parameters: inputs, outputs, then the sizes of the axes from the outermost, then
    for each input its strides (elements) on the axes, outermost first. Units are elements of the
    innermost axis when rank is 1, else rows (all other axes together). An output may be the
    memory of a UNIT input of the same shape and element size.
    """
    count = len(inputs)
    parameters = [f"x{i}" for i in range(count)] + [f"y{k}" for k in range(len(outputs))]
    parameters += [f"n{a}" for a in range(rank)]
    parameters += [f"s{i}_{a}" for i in range(count) for a in range(rank)]
    index = {
        UNIT: "o{i} + j",
        FIXED: "o{i}",
        STRIDED: f"o{{i}} + j * s{{i}}_{rank - 1}",
    }
    body: list[str] = []
    fixed: list[str] = []
    names = []
    for i, (dtype, pattern) in enumerate(zip(inputs, patterns)):
        text = load(f"x{i}", index[pattern].format(i=i), dtype)
        (fixed if pattern == FIXED else body).append(f"u{i} = {text}")
        names.append(f"u{i}")
    body += lines(recipe, names, inputs)
    results = {i: f"u{i}" for i in range(count)} | {count + i: f"v{count + i}" for i in range(len(recipe))}
    body += [store(f"y{k}", "p + j", results[number], dtype) for k, (number, dtype) in enumerate(outputs)]
    loop = _flat(fixed, body, count) if rank == 1 else _rows(fixed, body, count, rank)
    return f"{PRELUDE}\n\ndef kernel({', '.join(parameters)}, begin, end):\n" + "\n".join(loop) + "\n"


def _flat(fixed: list[str], body: list[str], count: int) -> list[str]:
    starts = [f"    o{i} = 0" for i in range(count)]
    return [
        "    if begin >= end:",
        "        return",
        *starts,
        "    p = 0",
        *(f"    {line}" for line in fixed),
        "    for j in range(begin, end):",
        *(f"        {line}" for line in body),
    ]


def _rows(fixed: list[str], body: list[str], count: int, rank: int) -> list[str]:
    """Rows are told apart by division once each; the innermost loop only adds."""
    found = ["    for row in range(begin, end):", f"        p = row * n{rank - 1}", "        rest = row"]
    for axis in range(rank - 2, 0, -1):
        found += [f"        i{axis} = rest % n{axis}", f"        rest = rest // n{axis}"]
    found.append("        i0 = rest")
    for i in range(count):
        terms = " + ".join(f"i{a} * s{i}_{a}" for a in range(rank - 1))
        found.append(f"        o{i} = {terms}")
    found += [f"        {line}" for line in fixed]
    found.append(f"        for j in range(n{rank - 1}):")
    return found + [f"            {line}" for line in body]
