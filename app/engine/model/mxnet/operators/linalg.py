"""MXNet's products and parts of matrices, as ONNX nodes; the last two axes are those of a matrix."""

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from app.engine.model.mxnet.builder import Call
from app.engine.model.mxnet.operators.elementwise import Translation


def _turned(c: Call, x: ir.Value, name: str) -> ir.Value:
    """A stack of matrices, transposed if an attribute says so."""
    if not c.attributes.flag(name):
        return x
    rank = c.rank(x)
    return c.one("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])


def _scaled(c: Call, x: ir.Value, name: str) -> ir.Value:
    factor = c.attributes.number(name, 1.0)
    return x if factor == 1.0 else c.one("Mul", x, c.const(factor, x))


def _last_axes(c: Call) -> None:
    if c.attributes.integer("axis", -2) != -2:
        raise c.attributes.error("axis", "-2")


def _gemm(c: Call) -> ir.Value:
    """Alpha A B + beta C."""
    _last_axes(c)
    a, b, more = c.inputs
    found = c.one("MatMul", _turned(c, a, "transpose_a"), _turned(c, b, "transpose_b"))
    return c.one("Add", _scaled(c, found, "alpha"), _scaled(c, more, "beta"))


def _syrk(c: Call) -> ir.Value:
    """Alpha A A^T, or of the transpose."""
    x = c.inputs[0]
    rank = c.rank(x)
    other = c.one("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])
    pair = (other, x) if c.attributes.flag("transpose") else (x, other)
    return _scaled(c, c.one("MatMul", *pair), "alpha")


def _trmm(c: Call) -> ir.Value:
    """Alpha times a triangle, and a matrix on its right or left."""
    a, b = c.inputs
    triangle = c.one("Trilu", a, upper=int(not c.attributes.flag("lower", True)))
    triangle = _turned(c, triangle, "transpose")
    pair = (b, triangle) if c.attributes.flag("rightside") else (triangle, b)
    return _scaled(c, c.one("MatMul", *pair), "alpha")


def _mask(c: Call, like: ir.Value, size: int, offset: int) -> ir.Value:
    """Ones on a diagonal."""
    c.builder.room.take(nbytes=size * size * 8)
    return c.const(np.eye(size, k=offset), like)


def diagonal(c: Call, x: ir.Value, offset: int) -> ir.Value:
    """A diagonal of the last two axes, by the places of its elements in a list of all."""
    rank, dims = c.rank(x), c.dims(x)
    if dims is None:
        raise c.error(f"the shape of {x.name!r} is not known; bind the shapes of the inputs")
    rows, columns = dims[-2:]
    places = np.arange(max(0, -offset), min(rows, columns - offset))
    if not len(places):
        raise c.error(f"diagonal {offset} of {rows} x {columns}")
    flat = c.one("Reshape", x, c.ints(*[0] * (rank - 2), -1))
    return c.one("Gather", flat, c.ints(*(places * columns + places + offset).tolist()), axis=rank - 2)


def _extract_diagonal(c: Call) -> ir.Value:
    return diagonal(c, c.inputs[0], c.attributes.integer("offset", 0))


def made_diagonal(c: Call, x: ir.Value, offset: int) -> ir.Value:
    """Matrices of zeros but for a diagonal."""
    count = c.extent(x, c.rank(x) - 1)
    if count is None:
        raise c.error(f"the length of {x.name!r} is not known; bind the shapes of the inputs")
    size = count + abs(offset)
    pads = [0] * (2 * c.rank(x))
    pads[-1 if offset < 0 else c.rank(x) - 1] = abs(offset)  # of columns
    wide = c.one("Pad", x, c.ints(*pads)) if offset else x
    return c.one("Mul", c.one("Unsqueeze", wide, c.ints(-2)), _mask(c, x, size, offset))


def _make_diagonal(c: Call) -> ir.Value:
    return made_diagonal(c, c.inputs[0], c.attributes.integer("offset", 0))


def _diag(c: Call) -> ir.Value:
    """A matrix of a list; a diagonal of anything else, over its last two axes."""
    x, offset = c.inputs[0], c.attributes.integer("k", 0)
    if c.rank(x) == 1:
        c.attributes.text("axis1", "0"), c.attributes.text("axis2", "1")
        return made_diagonal(c, x, offset)
    rank = c.rank(x)
    axes = [c.axis("axis1", rank, 0), c.axis("axis2", rank, 1)]
    order = [*(i for i in range(rank) if i not in axes), *axes]
    x = x if order == list(range(rank)) else c.one("Transpose", x, perm=order)
    return diagonal(c, x, offset)


def _log_sum(c: Call) -> ir.Value:
    """The sum of the logarithms of a diagonal."""
    found = c.one("Log", diagonal(c, c.inputs[0], 0))
    rank = c.rank(c.inputs[0])
    return c.one("ReduceSum", found, c.ints(-1), keepdims=int(rank == 2))


_MATRICES: Mapping[str, Translation] = {
    "gemm": _gemm,
    "syrk": _syrk,
    "trmm": _trmm,
    "extractdiag": _extract_diagonal,
    "makediag": _make_diagonal,
    "sumlogdiag": _log_sum,
}
ROWS: Mapping[str, Translation] = {
    **{f"{prefix}linalg_{name}": row for name, row in _MATRICES.items() for prefix in ("_", "")},
    "diag": _diag,
}
