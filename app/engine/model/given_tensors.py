"""Tensors that a caller gives for inputs, as `.npy` files, or csr matrices as `.npz` files."""

import io
import math
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.types.errors import InputError
from app.engine.types.limits import memory_bytes
from app.engine.types.sparse_array import SparseArray

Array = np.ndarray[Any, Any]
_NPY, _ZIP = b"\x93NUMPY", b"PK\x03\x04"
PARTS = ("format", "shape", "data", "indices", "indptr")
# Errors of zipfile for a broken archive; the elements are checked here.
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zlib.error,
    zipfile.BadZipFile,
)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


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


def given(name: str, path: Path) -> Array | SparseArray:
    """The tensor of a file: an array, or a csr matrix of a `.npz` file as scipy.sparse.save_npz writes it.

    Raises:
        InputError: as for `read`; or the parts are no csr matrix.
    """
    return _csr(name, path) if _has_format(path) else read(name, path)


def _has_format(path: Path) -> bool:
    """True if a file is an archive that names the format of a sparse matrix."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "format.npy" in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def shapes(tensors: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Shapes of given tensors by input name.

    Raises:
        InputError: as for `given`.
    """
    return {name: given(name, Path(path)).shape for name, path in tensors.items()}


def _csr(name: str, path: Path) -> SparseArray:
    try:
        with zipfile.ZipFile(path) as archive:
            form, shape, values, indices, indptr = (_member(archive, part) for part in PARTS)
        if form.tobytes().rstrip(b"\0") != b"csr":
            raise ValueError(f"its format is {form.tobytes()[:16]!r}, expected b'csr'")
        if shape.shape != (2,) or shape.dtype.kind != "i" or shape.min() < 0:
            raise ValueError("its shape is not two numbers")
        found = SparseArray("csr", (int(shape[0]), int(shape[1])), values, indices, indptr)
        if (reason := found.fault()) is not None:
            raise ValueError(reason)
    except _UNREADABLE as cause:
        raise InputError(
            f"input {name!r}: the .npz file is no csr matrix: {cause}; scipy.sparse.save_npz writes one, "
            f"with {', '.join(PARTS)}",
            pointer=f"/inputs/{name}",
        ) from cause
    return found


def archived(path: Path) -> dict[str, Array]:
    """The arrays of an `.npz` file, as `numpy.savez` writes it, by name.

    Raises:
        ValueError: it is none, takes more memory than there is, or holds Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            return {name: _member(archive, name) for name in names}
    except _UNREADABLE as cause:
        raise ValueError(f"{cause}; numpy.savez writes one") from cause


def _member(archive: zipfile.ZipFile, part: str) -> Array:
    """An array of an archive, whose sizes are checked before anything of that size is made.

    Raises:
        ValueError: it takes more memory than there is, holds objects, or has another size than stated.
    """
    found = archive.getinfo(f"{part}.npy")
    available = memory_bytes()
    if found.file_size > available:
        raise ValueError(f"{part} takes {found.file_size} byte, the job may use {available}")
    raw = archive.read(found)
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"{part} has version {version}, expected 1.0 or 2.0")
    shape, in_columns, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError(f"{part} holds Python objects")
    begin, expected = stream.tell(), math.prod(shape) * dtype.itemsize
    if len(raw) - begin != expected:
        raise ValueError(f"{part} has {len(raw) - begin} byte, its header says {expected}")
    array = np.frombuffer(raw, dtype, math.prod(shape), begin)
    return array.reshape(shape, order="F" if in_columns else "C")
