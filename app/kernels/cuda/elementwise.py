"""One kernel for a chain of elementwise operators, and with it every copy between strided tensors.

A thread computes neighbours on the innermost axis, 16 bytes of the narrowest operand. What a recipe is
tells `app.kernels.expressions`; a copy, a cast, a slice and a broadcast are recipes too.
"""

import math
from collections.abc import Sequence

from app.kernels.cuda import functions, vectors
from app.kernels.cuda.geometry import (
    BITS,
    Strided,
    check_spans,
    collapsed,
    indented,
    place,
    unpacked,
    vector_width,
)
from app.kernels.cuda.kernel import Kernel, Launches
from app.kernels.expressions import Recipe, computed, converted, result_dtypes

THREADS = 256


def elementwise(
    recipe: Recipe,
    extents: Sequence[int],
    inputs: Sequence[Strided],
    outputs: Sequence[tuple[int, Strided]],
    name: str = "elementwise",
) -> Launches:
    """Results of a recipe for every index of a box.

    Roles: x0, x1, ... the inputs; y0, y1, ... the outputs. An output may be an input that has its
    strides, its start and its element size (an index is read, then written, by one thread), if the
    input is read at no other index; several pairs at once.

    Args:
        recipe: of scalars; its inputs are `inputs`.
        extents: of the box, outermost first.
        inputs: strides 0 along an axis broadcast; negative ones walk backwards.
        outputs: number of a value of the recipe, and where it goes.
        name: of the kernel.

    Raises:
        ValueError: float64, or more elements than uint32 counts.
    """
    reason = functions.unsupported(recipe, [i.dtype for i in inputs])
    if reason is not None:
        raise ValueError(reason)
    operands = (*inputs, *(o for _, o in outputs))
    check_spans(name, extents, operands)
    box, walked = collapsed(extents, operands)
    width = vector_width(box, walked)
    if any(o.strides[-1] not in (0, 1) for o in walked):
        width = 1
    sources, targets = walked[: len(inputs)], walked[len(inputs) :]
    text = _source(recipe, box, sources, [(v, o) for (v, _), o in zip(outputs, targets)], width)
    roles = [*(f"x{i}" for i in range(len(inputs))), *(f"y{i}" for i in range(len(outputs)))]
    kernel = Kernel(name, text, (*(vectors.pointer(o.dtype) for o in operands), "uint32"), THREADS)
    units = -(-box[-1] // width) * math.prod(box[:-1])
    return Launches.of(kernel, -(-units // THREADS), roles, box[0] if len(box) == 1 else units)


def copy(extents: Sequence[int], source: Strided, target: Strided, name: str = "copy") -> Launches:
    """A box of elements to other places, cast if the types differ.

    Roles x0, y0. Slices, concatenations, broadcasts, tiles and heads taken apart are such copies.
    y0 may be x0 as `elementwise` allows.
    """
    if source.dtype == target.dtype:
        check_spans(name, extents, (source, target))
        box, (source, target) = _words(*collapsed(extents, (source, target)))
        return elementwise((), box, (source,), ((0, target),), name)
    recipe: Recipe = (("Cast", (0,), (target.dtype,)),)
    return elementwise(recipe, extents, (source,), ((1, target),), name)


def _words(
    extents: tuple[int, ...], operands: Sequence[Strided]
) -> tuple[tuple[int, ...], tuple[Strided, ...]]:
    """A copy of bits: of 4-byte words where all lies at multiples of them."""
    size = operands[0].nbytes
    per_word = 4 // size
    if per_word and all(
        o.strides[-1] == 1 and not any(n % per_word for n in (extents[-1], o.start, *o.strides[:-1]))
        for o in operands
    ):
        words = (
            Strided("uint32", (*(s // per_word for s in o.strides[:-1]), 1), o.start // per_word)
            for o in operands
        )
        return (*extents[:-1], extents[-1] // per_word), tuple(words)
    return extents, tuple(Strided(BITS[size], o.strides, o.start) for o in operands)


def _source(
    recipe: Recipe,
    box: Sequence[int],
    sources: Sequence[Strided],
    targets: Sequence[tuple[int, Strided]],
    width: int,
) -> str:
    given = [s.dtype for s in sources]
    kinds = [computed(k) for k in result_dtypes(recipe, given)]
    element = functions.body(recipe, given)
    results = ", ".join(converted(f"v{value}", kinds[value], computed(o.dtype)) for value, o in targets)
    arguments = ", ".join(f"v{i}" for i in range(len(sources)))
    lines = vectors.device(f"element({arguments})", *element, f"return ({results.replace('np.', '')},)")
    for i, s in enumerate(sources):
        lines += vectors.load(f"load{i}", s.dtype, width if s.strides[-1] == 1 else 1)
        if width > 1 and len(box) == 1:
            lines += vectors.load(f"load{i}_one", s.dtype, 1)
    for i, (_, o) in enumerate(targets):
        lines += vectors.store(f"store{i}", o.dtype, width)
        if width > 1 and len(box) == 1:
            lines += vectors.store(f"store{i}_one", o.dtype, 1)
    parameters = [*(f"x{i}" for i in range(len(sources))), *(f"y{i}" for i in range(len(targets)))]
    names = [f"i{a}" for a in range(len(box))]
    kernel = [f"u = uint32(block_x() * uint32({THREADS}) + thread())"]
    if len(box) == 1:
        kernel.append(f"i0 = uint32(u * uint32({width}))" if width > 1 else "i0 = u")
        whole = _group(names, sources, targets, width, "")
        if width > 1:
            kernel += [f"if i0 < bound and bound - i0 >= uint32({width}):", *indented(whole)]
            rest = _group(["j"], sources, targets, 1, "_one")
            kernel += [
                "elif i0 < bound:",
                "    for k in range(i0, bound):",
                *indented(["j = uint32(k)", *rest], 2),
            ]
        else:
            kernel += ["if i0 < bound:", *indented(whole)]
    else:
        units = [*box[:-1], box[-1] // width]
        inner = names[-1]
        kernel += ["if u < bound:", *indented(unpacked("u", units, names))]
        kernel += [f"    {inner} = uint32({inner} * uint32({width}))"] if width > 1 else []
        kernel += indented(_group(names, sources, targets, width, ""))
    lines += [f"def kernel({', '.join((*parameters, 'bound'))}):", *indented(kernel), ""]
    return "\n".join([*functions.library(element), *lines])


def _group(
    names: Sequence[str],
    sources: Sequence[Strided],
    targets: Sequence[tuple[int, Strided]],
    width: int,
    suffix: str,
) -> list[str]:
    """Lines that compute `width` neighbours."""
    lines = [
        f"a{i} = load{i}{suffix}(x{i}, {place(names, s.strides, s.start)})" for i, s in enumerate(sources)
    ]
    for k in range(width):
        picked = ", ".join(f"a{i}[{k if s.strides[-1] == 1 else 0}]" for i, s in enumerate(sources))
        lines.append(f"r{k} = element({picked})")
    for i, (_, o) in enumerate(targets):
        values = ", ".join(f"r{k}[{i}]" for k in range(width))
        lines.append(f"store{i}{suffix}(y{i}, {place(names, o.strides, o.start)}, ({values},))")
    return lines
