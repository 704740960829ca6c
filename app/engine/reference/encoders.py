"""The encoders of ai.onnx.ml that look up names and numbers: CategoryMapper, LabelEncoder.

Source: ONNX operator specifications of ai.onnx.ml 1 to 4.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from app.engine.reference.correction import Correction

Array = np.ndarray[Any, Any]
Ints = Sequence[int]
Strings = Sequence[str]
DOMAIN = "ai.onnx.ml"


def category_mapper(
    x: Array,
    *,
    cats_int64s: Ints,
    cats_strings: Strings,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> list[Array]:
    """Numbers of names, or names of numbers."""
    return _translated(x, cats_strings, cats_int64s, default_int64, default_string)


def label_encoder(
    x: Array,
    *,
    classes_strings: Strings | None = None,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    nan_is_found: bool = False,
    **tables: Any,
) -> list[Array]:
    """Value of each element's key, else the default; below version 4 no key is equal to NaN."""
    if classes_strings:
        numbers = range(len(classes_strings))
        return _translated(x, classes_strings, numbers, default_int64, default_string)
    (keys,) = (v for k, v in tables.items() if k.startswith("keys_"))
    ((name, values),) = ((k, v) for k, v in tables.items() if k.startswith("values_"))
    rows: Mapping[str, tuple[object, type]] = {
        "values_strings": (default_string, object),
        "values_int64s": (default_int64, np.int64),
        "values_floats": (default_float, np.float32),
    }
    if name == "values_tensor":
        default, kind = default_tensor.item() if default_tensor is not None else 0, values.dtype
        values = values.reshape(-1).tolist()
    else:
        default, kind = rows[name]
    wide = np.asarray(keys, np.float32) if isinstance(keys[0], float) else np.asarray(keys).reshape(-1)
    return [_looked_up(x, wide.tolist(), values, default, np.dtype(kind), nan_is_found)]


def _translated(
    x: Array, names: Strings, numbers: Ints, default_number: int, default_name: str
) -> list[Array]:
    """Numbers of names, or names of numbers."""
    if x.dtype.kind in "OUS":
        return [_looked_up(x, names, numbers, default_number, np.dtype(np.int64))]
    return [_looked_up(x, numbers, names, default_name, np.dtype(object))]


_NAN = object()  # the key of every NaN, none of which equals another


def _looked_up(
    x: Array,
    keys: Sequence[Any],
    values: Sequence[Any],
    default: object,
    kind: np.dtype[Any],
    nan_is_found: bool = False,
) -> Array:
    """The value of each element's key. The first of equal keys counts."""

    def name(key: Any) -> Any:
        return _NAN if nan_is_found and key != key else key

    table = dict(reversed([(name(k), v) for k, v in zip(keys, values)]))
    found = np.empty(x.size, kind)
    found[:] = [table.get(name(e), default) for e in x.reshape(-1).tolist()]
    return found.reshape(x.shape)


CORRECTIONS = (
    Correction("CategoryMapper", category_mapper, "is absent", domain=DOMAIN),
    Correction("LabelEncoder", label_encoder, "lacks the form of version 1", until=4, domain=DOMAIN),
    Correction("LabelEncoder", partial(label_encoder, nan_is_found=True), "misses NaN", 4, domain=DOMAIN),
)
