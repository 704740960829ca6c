"""Tensors that a caller gives for inputs, as `.npy` files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.types.errors import InputError

Array = np.ndarray[Any, Any]
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"


def read(name: str, path: Path) -> Array:
    """The array of a file, mapped: its elements are read when they are looked at.

    Raises:
        InputError: the file is not what `numpy.save` writes, or holds Python objects.
    """
    pointer = f"/inputs/{name}"
    try:
        with path.open("rb") as file:
            magic = file.read(len(_NPY))
        if magic != _NPY:
            found = "an archive (.npz)" if magic.startswith(_ZIP) else f"a file that begins with {magic!r}"
            raise InputError(
                f"input {name!r}: expected a .npy file, found {found}; numpy.save writes one", pointer=pointer
            )
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as cause:
        raise InputError(
            f"input {name!r}: the .npy file cannot be read: {cause}; numpy.save writes one", pointer=pointer
        ) from cause
    return array


def shapes(tensors: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Shapes of given tensors by input name.

    Raises:
        InputError: as for `read`.
    """
    return {name: read(name, Path(path)).shape for name, path in tensors.items()}
