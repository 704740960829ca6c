"""Archives of a library: everything that a C program needs, with the digest of each file."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from app.engine.export.library import Library

Content = Sequence[bytes | memoryview]  # of a file, in pieces
COMPRESSED = 32 << 20  # byte; float32 weights lose a tenth of theirs, at 20 to 60 MB a second
EXAMPLE = (Path(__file__).parent / "example.c").read_text(encoding="utf-8")
READ_ME = """{name}: a model that Stowplan compiled for {processor}, {threads} thread(s)

    cc example.c -L. -l:model.so -Wl,-rpath,'$ORIGIN' -o example      shared library
    cc example.c model.o weights.s -lm -lpthread -o example           in the program itself

inputs
{inputs}
outputs
{outputs}

model.h describes the interface, metadata.json the model, manifest.json has the SHA-256 of every file.
"""


def archive_name(told: Mapping[str, object]) -> str:
    """`NAME-PROCESSOR` of a description, in characters that every file system takes."""
    return plain(f"{told['name']}-{told['processor']}")


def plain(text: str) -> str:
    """A text in characters that every file system takes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)


def archive(library: Library, into: IO[bytes]) -> None:
    """Write a `.tar.gz` with one folder; the same library gives the same bytes."""
    files: dict[str, Content] = {
        "model.so": library.shared.parts,
        "model.o": [library.code],
        "weights.s": [library.weights.encode()],
        "model.h": [library.header.encode()],
        "example.c": [EXAMPLE.encode()],
        "README": [read_me(READ_ME, library.metadata).encode()],
    }
    write_archive(archive_name(library.metadata), files, library.metadata, into)


def write_archive(
    folder: str, files: Mapping[str, Content], metadata: Mapping[str, object], into: IO[bytes]
) -> None:
    """Write a `.tar.gz` of files in a folder, with `metadata.json`, and their digests in `manifest.json`."""
    files = {**files, "metadata.json": [_json(metadata)]}
    files["manifest.json"] = [_json({n: digest(c).hex() for n, c in files.items()})]
    compression = level(sum(map(nbytes, files.values())))
    with (
        gzip.GzipFile("", "wb", compression, into, mtime=0) as packed,  # no name, no time stamp
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = nbytes(content), 0o755 if name.endswith(".so") else 0o644
            tar.addfile(entry, io.BufferedReader(_Pieces(content)))


class _Pieces(io.RawIOBase):
    """A file of pieces that lie one after another."""

    def __init__(self, content: Iterable[bytes | memoryview]) -> None:
        self._rest = iter(content)
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: memoryview, /) -> int:  # type: ignore[override]
        while not self._piece:
            found = next(self._rest, None)
            if found is None:
                return 0
            self._piece = memoryview(found)
        count = min(len(target), len(self._piece))
        target[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count


def nbytes(content: Content) -> int:
    """Bytes of a file."""
    return sum(map(len, content))


def digest(content: Content) -> bytes:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    for piece in content:
        found.update(piece)
    return found.digest()


def level(size: int) -> int:
    """Level of compression: the fastest one, and none of what is large, for most of that are weights."""
    return 1 if size <= COMPRESSED else 0


def _json(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def read_me(form: str, told: Mapping[str, object], **further: object) -> str:
    """A text that names the inputs and outputs and other facts of the metadata."""

    def lines(kind: str) -> str:
        values = told[kind]
        assert isinstance(values, list)
        return "\n".join(
            f"    {n}  {v['dtype']}{v['shape']}  {v['name']}"
            + (f"  (axis {v['prefix_axis']}: at most, a run tells)" if "prefix_axis" in v else "")
            for n, v in enumerate(values)
        )

    return form.format_map({**told, **further, "inputs": lines("inputs"), "outputs": lines("outputs")})
