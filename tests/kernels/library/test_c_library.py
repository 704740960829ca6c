"""Functions of the C library that libraries call: the versions that they are bound to exist, and are old."""

import ctypes
import platform

import pytest

from app.kernels.library.c_library import IMPORTS, imported

NEWEST = (2, 17)  # of glibc, that a library may need

glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or platform.machine() != "x86_64", reason="no glibc of x86-64"
)


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_no_function_is_of_a_newer_version(architecture: str) -> None:
    versions = {name: imported(name, architecture) for name in IMPORTS}
    newer = [
        name
        for name, found in versions.items()
        if found is None or tuple(map(int, found[1].removeprefix("GLIBC_").split("."))) > NEWEST
    ]
    assert newer == []


@glibc
def test_the_loader_finds_each_function_in_the_version_that_it_is_bound_to() -> None:
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)

    def found(name: str, library: str, version: str) -> bool:
        loaded = ctypes.CDLL(library)
        return bool(find(loaded._handle, name.encode(), version.encode()))

    assert [name for name, place in IMPORTS.items() if not found(name, *place)] == []
    assert not found("getauxval", "libc.so.6", "GLIBC_2.15")  # glibc has it from 2.16 on
