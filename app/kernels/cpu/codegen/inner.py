"""Functions that compiled code calls, and nothing else.

numba gives each function that it compiles two more, by which Python and C call it. For a short function that
is the larger part of the work, and kernels are called by their address alone.
"""

from typing import Any

import numba
from numba import extending

from app.kernels.cpu.codegen.pipeline import KernelCompiler

_OPTIONS = {"pipeline_class": KernelCompiler, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def njit(function: Any = None, **options: Any) -> Any:
    """A decorator: `numba.njit` with these options, for functions that Python does not call."""
    decorate = numba.njit(**_OPTIONS, **options)
    return decorate if function is None else decorate(function)


def overload(function: Any, **options: Any) -> Any:
    """A decorator: `numba.extending.overload` likewise, with options of `numba.njit`."""
    return extending.overload(function, jit_options=_OPTIONS | options)
