"""Machine instructions of cubins, counted: what the compiler made of kernels."""

import struct
import subprocess
import sysconfig
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from app.kernels.cuda.compiler import Cubin

NVDISASM = Path(sysconfig.get_paths()["purelib"], "nvidia", "cu13", "bin", "nvdisasm")


def instructions(cubins: Sequence[Cubin], folder: Path) -> list[Counter[str]]:
    """How often each opcode occurs in each cubin, with its modifiers (LDG.E.128).

    The disassembler takes a quarter of a second to start, so all code of a generation is one file.
    """
    found: list[Counter[str]] = [Counter() for _ in cubins]
    for sm in sorted({c.sm for c in cubins}):
        numbers = [i for i, c in enumerate(cubins) if c.sm == sm]
        codes = [machine_code(cubins[i].code) for i in numbers]
        ends = list(accumulate(map(len, codes)))
        path = folder / f"{sm}.bin"
        path.write_bytes(b"".join(codes))
        command = [NVDISASM, "--binary", sm.replace("_", "").upper(), path]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for line in text.splitlines():
            address, _, rest = line.strip().partition("*/")
            words = rest.split()
            if address.startswith("/*") and words:
                word = words[1] if words[0].startswith("@") else words[0]
                found[numbers[bisect_right(ends, int(address[2:], 16))]][word.rstrip(";")] += 1
    return found


def opcodes(found: Counter[str]) -> set[str]:
    """Instructions without their modifiers."""
    return {name.split(".")[0] for name in found}


def machine_code(elf: bytes) -> bytes:
    """The sections of instructions of a cubin, one after another: an ELF file of 64 bits."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    # name, type, flags, address, offset, bytes
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    text = sections[names][4]
    return b"".join(
        elf[offset : offset + nbytes]
        for name, _, _, _, offset, nbytes in sections
        if elf.startswith(b".text.", text + name)
    )
