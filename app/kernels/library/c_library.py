"""Functions of the C library that compiled models may call, and the versions that they are bound to."""

from collections.abc import Mapping

LIBC, LIBPTHREAD, LIBM = "libc.so.6", "libpthread.so.0", "libm.so.6"
BASE = "GLIBC_2.2.5"  # the first version on x86-64
FIRST_VERSIONS: Mapping[str, str] = {"aarch64": "GLIBC_2.17"}  # of architectures on which all are that old
# Library and version of each function that an object may call, the latter on x86-64. Versions are the oldest
# that have the present interface; the loader of a newer glibc finds them too.
IMPORTS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            *("calloc", "malloc", "free", "memcpy", "memset", "memmove", "bcmp", "memcmp", "getpid"),
            *("mmap", "munmap", "madvise", "mprotect", "sched_yield", "syscall", "snprintf"),
        ),
        (LIBC, BASE),
    ),
    "getauxval": (LIBC, "GLIBC_2.16"),
    "sched_getaffinity": (LIBC, "GLIBC_2.3.4"),
    "sched_getcpu": (LIBC, "GLIBC_2.6"),
    **dict.fromkeys(
        (
            *("pthread_create", "pthread_join", "pthread_mutex_init", "pthread_mutex_lock"),
            "pthread_mutex_unlock",
        ),
        (LIBPTHREAD, BASE),
    ),
    **dict.fromkeys(
        ("pthread_cond_init", "pthread_cond_signal", "pthread_cond_wait"), (LIBPTHREAD, "GLIBC_2.3.2")
    ),
    "pthread_setaffinity_np": (LIBPTHREAD, "GLIBC_2.3.4"),
    **dict.fromkeys(
        (
            f"{name}{kind}"
            for kind in ("", "f")
            for name in (
                *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sqrt", "cbrt", "hypot"),
                *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh"),
                *("acosh", "atanh", "erf", "erfc", "lgamma", "tgamma", "fmod", "remainder", "floor"),
                *("ceil", "trunc", "round", "rint", "nearbyint", "fabs", "fma", "fmin", "fmax", "ldexp"),
            )
        ),
        (LIBM, BASE),
    ),
}


def imported(name: str, architecture: str) -> tuple[str, str] | None:
    """Library and version of a function on an architecture; None where no C library is known to have it."""
    found = IMPORTS.get(name)
    return None if found is None else (found[0], FIRST_VERSIONS.get(architecture, found[1]))
