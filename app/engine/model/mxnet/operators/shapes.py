"""MXNet's operators that move elements, as ONNX nodes: reshape, slice, concat, and what makes constants."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators.elementwise import Translation, Values, plain

_FAR = 2**31 - 1  # past the end of any axis
_MOST = 2**24  # elements of a constant that a symbol may ask for


def _dims(c: Call, x: ir.Value, start: int, end: int | None = None) -> ir.Value:
    """A part of the shape of a value, as a list."""
    return c.one("Shape", x, start=start, end=end)


def _special_codes(c: Call, x: ir.Value, codes: tuple[int, ...]) -> list[ir.Value]:
    """Parts of the new shape, read from the front.

    0 keeps a dimension, -1 is what is left, -2 keeps the rest, -3 joins two, -4 splits one by the next two.
    """
    parts: list[ir.Value] = []
    at, i = 0, 0
    while i < len(codes):
        code = codes[i]
        if code > 0 or code == -1:
            parts.append(c.ints(code))
            at += 1
        elif code == 0:
            parts.append(_dims(c, x, at, at + 1))
            at += 1
        elif code == -2:
            parts.append(_dims(c, x, at))
            at = c.rank(x) if i + 1 < len(codes) else at
        elif code == -3:
            parts.append(c.one("Mul", _dims(c, x, at, at + 1), _dims(c, x, at + 1, at + 2)))
            at += 2
        elif code == -4 and i + 2 < len(codes):
            parts += _split_dimension(c, x, at, codes[i + 1 : i + 3])
            at, i = at + 1, i + 2
        else:
            raise c.attributes.error("shape", "dimensions, 0, -1, -2, -3, or -4 before two factors")
        i += 1
    return parts


def _split_dimension(c: Call, x: ir.Value, at: int, factors: tuple[int, ...]) -> list[ir.Value]:
    """The two factors of a dimension, of which one may be -1."""
    if factors.count(-1) > 1 or any(f < -1 or f == 0 for f in factors):
        raise c.attributes.error("shape", "two factors after -4, at most one of them -1")
    if -1 not in factors:
        return [c.ints(f) for f in factors]
    known = c.ints(-factors[0] * factors[1])
    other = c.one("Div", _dims(c, x, at, at + 1), known)
    return [other if f == -1 else known for f in factors]


def _reversed_codes(c: Call, x: ir.Value, codes: tuple[int, ...]) -> list[ir.Value]:
    """The same read from the back, for shapes of the codes 0, -1 and numbers."""
    if any(code < -1 for code in codes):
        raise c.error("reverse=True with the codes -2, -3, -4 is not supported; expected 0, -1 and numbers")
    rank = c.rank(x)
    first = rank - len(codes)
    return [
        _dims(c, x, first + i, first + i + 1) if code == 0 else c.ints(code) for i, code in enumerate(codes)
    ]


def _reshape(c: Call) -> ir.Value:
    x = c.inputs[0]
    codes = c.attributes.integers("shape", ()) or c.attributes.integers("target_shape", ())
    c.attributes.flag("keep_highest")
    if not codes:
        raise c.attributes.error("shape", "a shape")
    is_reversed = c.attributes.flag("reverse")
    if min(codes) >= -1 and not is_reversed:
        return c.one("Reshape", x, c.ints(*codes))
    parts = (_reversed_codes if is_reversed else _special_codes)(c, x, codes)
    return c.one("Reshape", x, c.one("Concat", *parts, axis=0))


def _reshape_like(c: Call) -> ir.Value:
    for name in ("lhs_begin", "lhs_end", "rhs_begin", "rhs_end"):
        if c.attributes.given(name):
            raise c.error(f"{name} is not supported; expected a whole shape")
    return c.one("Reshape", c.inputs[0], c.one("Shape", c.inputs[1]))


def _transpose(c: Call) -> ir.Value:
    axes = c.attributes.integers("axes", ())
    return c.one("Transpose", c.inputs[0], perm=axes or None)


def _swap_axes(c: Call) -> ir.Value:
    x = c.inputs[0]
    rank = c.rank(x)
    order = list(range(rank))
    a, b = c.axis("dim1", rank, 0), c.axis("dim2", rank, 0)
    order[a], order[b] = order[b], order[a]
    return c.one("Transpose", x, perm=order)


def _squeeze(c: Call) -> ir.Value:
    """Without axes of one; a single element is a list, for MXNet has no scalars."""
    x, axes = c.inputs[0], c.attributes.integers("axis", ())
    dims = c.dims(x)
    if dims is not None and (set(dims) == {1} if not axes else len(axes) == len(dims)):
        return c.one("Reshape", x, c.ints(1))
    return c.one("Squeeze", x, *([c.ints(*axes)] if axes else []))


def _slice(c: Call) -> ir.Value:
    """begin, end and step of the first axes; None stands for the end of the axis that the step comes from."""
    begin, end = c.attributes.some_integers("begin"), c.attributes.some_integers("end")
    step = c.attributes.some_integers("step", ()) or (None,) * len(begin)
    if not len(begin) == len(end) == len(step):
        raise c.error(f"begin {begin}, end {end} and step {step}; expected as many numbers in each")
    steps = [1 if s is None else s for s in step]
    if 0 in steps:
        raise c.attributes.error("step", "numbers other than 0")
    starts = [(_FAR if s < 0 else 0) if b is None else b for b, s in zip(begin, steps)]
    ends = [(-_FAR if s < 0 else _FAR) if e is None else e for e, s in zip(end, steps)]
    lists = (starts, ends, list(range(len(begin))), steps)
    return c.one("Slice", c.inputs[0], *(c.ints(*numbers) for numbers in lists))


def _slice_axis(c: Call) -> ir.Value:
    axis, begin, end = (
        c.attributes.integer("axis"),
        c.attributes.integer("begin"),
        c.attributes.optional("end"),
    )
    return c.one("Slice", c.inputs[0], c.ints(begin), c.ints(_FAR if end is None else end), c.ints(axis))


def _slice_like(c: Call) -> ir.Value:
    x, like = c.inputs
    axes = c.attributes.integers("axes", ()) or tuple(range(c.rank(like)))
    zeros = c.ints(*[0] * len(axes))
    ends = c.one("Gather", c.one("Shape", like), c.ints(*axes), axis=0)
    return c.one("Slice", x, zeros, ends, c.ints(*axes))


def _concat(c: Call) -> ir.Value:
    return c.one("Concat", *c.inputs, axis=c.attributes.integer("dim", 1))


def _stack(c: Call) -> ir.Value:
    axis = c.attributes.integer("axis", 0)
    return c.one("Concat", *(c.one("Unsqueeze", x, c.ints(axis)) for x in c.inputs), axis=axis)


def _split(c: Call) -> Values:
    count, axis = c.attributes.integer("num_outputs"), c.attributes.integer("axis", 1)
    if not 1 <= count <= 4096:
        raise c.attributes.error("num_outputs", "1 to 4096")
    parts = c.many("Split", c.inputs[0], count=count, axis=axis, num_outputs=count)
    if c.attributes.flag("squeeze_axis"):
        parts = tuple(c.one("Squeeze", part, c.ints(axis)) for part in parts)
    return parts


def _split_v2(c: Call) -> Values:
    """At indices, of which the first is 0, or in equal sections."""
    x, axis, sections = c.inputs[0], c.attributes.integer("axis", 1), c.attributes.integer("sections", 0)
    starts = c.attributes.integers("indices", ())
    if sections:
        if not 1 <= sections <= 4096:
            raise c.attributes.error("sections", "1 to 4096")
        parts = c.many("Split", x, count=sections, axis=axis, num_outputs=sections)
    else:
        ends = (*starts[1:], _FAR)
        parts = tuple(c.one("Slice", x, c.ints(a), c.ints(b), c.ints(axis)) for a, b in zip(starts, ends))
    if c.attributes.flag("squeeze_axis"):
        parts = tuple(c.one("Squeeze", part, c.ints(axis)) for part in parts)
    return parts


def _expand_dims(c: Call) -> ir.Value:
    return c.one("Unsqueeze", c.inputs[0], c.ints(c.attributes.integer("axis")))


def _tile(c: Call) -> ir.Value:
    """The repeats of the last axes; more repeats than axes make axes."""
    x, repeats = c.inputs[0], c.attributes.integers("reps")
    rank = c.rank(x)
    if len(repeats) > rank:
        x = c.one("Unsqueeze", x, c.ints(*range(len(repeats) - rank)))
    return c.one("Tile", x, c.ints(*[1] * (rank - len(repeats)), *repeats))


def _repeat(c: Call) -> ir.Value:
    """Each element so many times, along an axis or of the flattened tensor."""
    x, repeats = c.inputs[0], c.attributes.integer("repeats")
    if not c.attributes.given("axis"):
        x, axis = c.one("Reshape", x, c.ints(-1)), 0
    else:
        axis = c.axis("axis", c.rank(x))
    rank = c.rank(x)
    head, tail = _dims(c, x, 0, axis), _dims(c, x, axis + 1, rank)
    tiled = c.one("Unsqueeze", x, c.ints(axis + 1))
    tiled = c.one("Tile", tiled, c.ints(*[repeats if i == axis + 1 else 1 for i in range(rank + 1)]))
    return c.one("Reshape", tiled, c.one("Concat", head, c.ints(-1), tail, axis=0))


def _flip(c: Call) -> ir.Value:
    axes = c.attributes.integers("axis")
    lists = ([-1] * len(axes), [-_FAR] * len(axes), list(axes), [-1] * len(axes))
    return c.one("Slice", c.inputs[0], *(c.ints(*numbers) for numbers in lists))


def _broadcast_to(c: Call) -> ir.Value:
    """0 keeps a dimension; ONNX has 1 for that."""
    return c.one("Expand", c.inputs[0], c.ints(*(d or 1 for d in c.attributes.integers("shape"))))


def _broadcast_axis(c: Call) -> ir.Value:
    x, axes, sizes = c.inputs[0], c.attributes.integers("axis", ()), c.attributes.integers("size", ())
    wanted = dict(zip((a % c.rank(x) for a in axes), sizes))
    return c.one("Expand", x, c.ints(*(wanted.get(i, 1) for i in range(c.rank(x)))))


def _broadcast_like(c: Call) -> ir.Value:
    if c.attributes.given("lhs_axes") or c.attributes.given("rhs_axes"):
        raise c.error("lhs_axes and rhs_axes are not supported; expected a whole shape")
    return c.one("Expand", c.inputs[0], c.one("Shape", c.inputs[1]))


def _space(op: str, **attributes: str) -> Translation:
    return lambda c: c.one(op, c.inputs[0], blocksize=c.attributes.integer("block_size"), **attributes)


def _size(c: Call) -> ir.Value:
    return c.one("Reshape", c.one("Size", c.inputs[0]), c.ints(1))


def _filled(value: float | None) -> Translation:
    """A constant tensor; None is the attribute `value`.

    A dimension of 0 is free: first states of recurrent cells have it for the batch. It is 1 here, and
    operators broadcast it.
    """

    def translated(c: Call) -> ir.Value:
        shape, dtype = c.attributes.integers("shape"), c.attributes.dtype("dtype", "float32")
        filled = c.attributes.number("value") if value is None else value
        if any(d < 0 for d in shape):
            raise c.attributes.error("shape", "dimensions")
        return c.one("Expand", c.const(filled, dtype or np.dtype("f4")), c.ints(*(d or 1 for d in shape)))

    return translated


def _arange(c: Call) -> ir.Value:
    a = c.attributes
    start, step, repeat = a.number("start", 0.0), a.number("step", 1.0), a.integer("repeat", 1)
    stop = a.number("stop") if a.given("stop") else None
    if stop is None:
        start, stop = 0.0, start
    if step == 0 or not 0 <= (stop - start) / step * repeat <= _MOST or repeat < 1:
        raise c.error(f"{start} to {stop} by {step}, {repeat} times; expected at most {_MOST} elements")
    dtype = a.dtype("dtype", "float32") or np.dtype("f4")
    return c.const(np.repeat(np.arange(start, stop, step), repeat), dtype)


def _arange_like(c: Call) -> ir.Value:
    """start, start + step, ... along an axis of the operand, or over its whole shape."""
    a, x = c.attributes, c.inputs[0]
    start, step = a.number("start", 0.0), a.number("step", 1.0)
    if a.integer("repeat", 1) != 1:
        raise c.error("repeat is not supported; expected 1")
    axis = a.optional("axis")
    size = (
        c.one("Size", x) if axis is None else c.one("Squeeze", _dims(c, x, axis, axis + 1 or None), c.ints(0))
    )
    count = c.one("Range", c.const(0, np.dtype("i8")), size, c.const(1, np.dtype("i8")))
    scaled = c.one("Mul", c.cast(count, c.dtype(x)), c.const(step, x))
    found = c.one("Add", scaled, c.const(start, x))
    return c.one("Reshape", found, c.one("Shape", x)) if axis is None else found


ROWS: Mapping[str, Translation] = {
    **dict.fromkeys(("Reshape", "reshape"), _reshape),
    "reshape_like": _reshape_like,
    **dict.fromkeys(("Flatten", "flatten"), plain("Flatten", axis=1)),
    "transpose": _transpose,
    **dict.fromkeys(("SwapAxis", "swapaxes"), _swap_axes),
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    **dict.fromkeys(("slice", "crop"), _slice),
    "slice_axis": _slice_axis,
    "slice_like": _slice_like,
    **dict.fromkeys(("Concat", "concat", "_rnn_param_concat"), _concat),
    "stack": _stack,
    **dict.fromkeys(("SliceChannel", "split"), _split),
    "_split_v2": _split_v2,
    "tile": _tile,
    "repeat": _repeat,
    **dict.fromkeys(("flip", "reverse"), _flip),
    "broadcast_to": _broadcast_to,
    **dict.fromkeys(("broadcast_axis", "broadcast_axes"), _broadcast_axis),
    "broadcast_like": _broadcast_like,
    "depth_to_space": _space("DepthToSpace", mode="DCR"),
    "space_to_depth": _space("SpaceToDepth"),
    "shape_array": plain("Shape"),
    "size_array": _size,
    "_zeros": _filled(0),
    "_ones": _filled(1),
    "_full": _filled(None),
    "_arange": _arange,
    "_contrib_arange_like": _arange_like,
}
