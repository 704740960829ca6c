"""Run a command as on a machine with AVX2 and without VNNI: `python -m tests.avx2 COMMAND...`.

The command sees a /proc/cpuinfo without later extensions, in a mount namespace of its own (Linux, as root), and numba
compiles for such a processor. Libraries that ask the processor itself, as onnxruntime does, are not deceived.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

from numba.core.codegen import get_host_cpu_features

LATER = "avx512 avx_vnni avxvnni avx_ifma avxifma avx_ne_convert avxneconvert avx10 amx gfni vaes vpclmulqdq"
FAMILY = "znver3"  # for which LLVM schedules; it has AVX2 and neither AVX-512 nor VNNI
INSIDE = 'mount --bind "$0" /proc/cpuinfo && rm "$0" && exec "$@"'


def is_later(flag: str) -> bool:
    """True for a flag of /proc/cpuinfo, or a feature of LLVM, that AVX2 does not imply."""
    return flag.startswith(tuple(LATER.split()))


def cpuinfo(text: str) -> str:
    """The text of /proc/cpuinfo without later flags."""
    return re.sub(r"\w+", lambda word: "" if is_later(word[0]) else word[0], text)


def features(text: str) -> str:
    """LLVM's features, `+avx2,+avx512f,...`, with later ones off."""
    return ",".join(f"-{f[1:]}" if is_later(f[1:].replace("-", "_")) else f for f in text.split(","))


def main() -> None:
    """Become the command."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.NamedTemporaryFile("w", suffix=".cpuinfo", delete=False) as file:
        file.write(cpuinfo(Path("/proc/cpuinfo").read_text()))
    given = {"NUMBA_CPU_NAME": FAMILY, "NUMBA_CPU_FEATURES": features(get_host_cpu_features())}
    command = ["unshare", "--mount", "sh", "-c", INSIDE, file.name, *sys.argv[1:]]
    os.execvpe(command[0], command, {**os.environ, **given})  # noqa: TID251  all that the command had


if __name__ == "__main__":
    main()
