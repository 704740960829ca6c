"""The tensors on which a program is verified and measured."""

import numpy as np

from app.engine import graph
from app.engine.errors import InputError
from app.engine.options import Bindings
from app.engine.passes.infer_types import BOUND
from app.engine.plan import Compilation


def tensors(compilation: Compilation, bindings: Bindings, seed: int) -> dict[str, object]:
    """An array for every input of the model as it was uploaded, bound ones included.

    Given tensors are read; other floats are drawn from a standard normal distribution, other
    integers from the declared range.

    Raises:
        InputError: a given tensor does not fit, or an integer input has neither tensor nor range.
    """
    random = np.random.default_rng(seed)
    found: dict[str, object] = {}
    for value in compilation.graph.inputs:
        name = value.name or ""
        if name in bindings.tensors:
            found[name] = _given(name, bindings.tensors[name])
            continue
        kind = graph.dtype(value)
        if kind is None or graph.is_dynamic(value):
            raise InputError(
                f"input {name!r} is no tensor of numbers: it must be given", pointer=f"/inputs/{name}"
            )
        shape = graph.static_shape(value)
        if kind.kind == "b":
            found[name] = random.integers(0, 2, shape).astype(kind)
        elif kind.kind in "iu":
            if name not in bindings.ranges:
                raise InputError(
                    f"input {name!r} is {kind}: random integers would mean nothing; give a tensor (inputs), "
                    "a range (input_ranges), or bind a scalar (input_values)",
                    pointer=f"/inputs/{name}",
                )
            found[name] = random.integers(*bindings.ranges[name], shape).astype(kind)
        else:
            found[name] = random.standard_normal(shape).astype(kind)
    for _, value, array in compilation.model.meta.get(BOUND, ()):
        found[value.name or ""] = array
    unknown = set(bindings.tensors) - set(found)
    if unknown:
        raise InputError(
            f"input {min(unknown)!r} is unknown; the model has {', '.join(found)}",
            pointer=f"/inputs/{min(unknown)}",
        )
    return found


def _given(name: str, path: str) -> object:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as cause:
        raise InputError(f"input {name!r}: no .npy array ({cause})", pointer=f"/inputs/{name}") from cause
