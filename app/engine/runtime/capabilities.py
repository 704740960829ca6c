"""Targets that this machine can run: itself, and the GPU that is in it."""

import ctypes
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence

from app.engine.types.target import PRESETS, Target, host, is_host

DRIVER = "libcuda.so.1"
PATIENCE = 60.0  # seconds that a driver has to answer


def absence(target: Target) -> str | None:
    """Reason why programs for a target cannot run on this machine, or None.

    Asks the driver, for a GPU; NVIDIA's packages are imported for that only.
    """
    if target.device == "cuda":
        from app.engine.runtime.cuda.driver import absent, sm_of

        return absent(sm_of(target))
    return None if is_host(target, host()) else "its processor is another"


def ask_apart(sm: str) -> bool:
    """True if a GPU of this generation answers, asked by another process.

    A process that has spoken to the driver cannot be forked any more, and holds memory of the GPU. One is
    started only where the driver's library is: to load that says nothing to the driver.
    """
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    if importlib.util.find_spec("cuda") is None:
        return False
    question = (
        f"import sys; from app.engine.runtime.cuda.driver import absent; sys.exit(absent({sm!r}) is not None)"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {question}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def present(
    targets: Sequence[Target] = PRESETS, answers: Callable[[str], bool] = ask_apart
) -> tuple[Target, ...]:
    """The targets that this machine is: itself, and those whose GPU answers."""
    from app.engine.runtime.cuda.driver import sm_of

    return (host(), *(t for t in targets if t.device == "cuda" and answers(sm_of(t))))
