"""Machine instructions of a cubin, counted: what the compiler made of a kernel."""

import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

from app.kernels.cuda.compiler import Cubin

NVDISASM = Path(sysconfig.get_paths()["purelib"], "nvidia", "cu13", "bin", "nvdisasm")


def instructions(cubin: Cubin, folder: Path, *, modifiers: bool = False) -> Counter[str]:
    """How often each opcode occurs, without its modifiers (HMMA, LDGSTS ...) or with them (LDG.E.128)."""
    path = folder / f"{cubin.name}.cubin"
    path.write_bytes(cubin.code)
    text = subprocess.run([NVDISASM, path], capture_output=True, text=True, check=True).stdout
    found: Counter[str] = Counter()
    for line in text.splitlines():
        address, _, rest = line.strip().partition("*/")
        words = rest.split()
        if address.startswith("/*") and words:
            word = words[1] if words[0].startswith("@") else words[0]
            found[(word if modifiers else word.split(".")[0]).rstrip(";")] += 1
    return found
