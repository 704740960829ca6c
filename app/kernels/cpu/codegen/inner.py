"""Functions that compiled code calls, and nothing else.

numba gives each function that it compiles two more, by which Python and C call it. For a short function that
is the larger part of the work, and kernels are called by their address alone.
"""

from typing import Any

import numba

from app.kernels.cpu.codegen.pipeline import KernelCompiler


def njit(function: Any = None, **options: Any) -> Any:
    """A decorator: `numba.njit` with these options, for functions that Python does not call."""
    decorate = numba.njit(
        pipeline_class=KernelCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options
    )
    return decorate if function is None else decorate(function)
