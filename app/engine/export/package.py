"""Archives of a library: everything that a C program needs, with the digest of each file."""

import gzip
import hashlib
import io
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from app.engine.export.library import Library

COMPRESSED = 32 << 20  # byte; float32 weights lose a tenth of theirs, at 20 to 60 MB a second
EXAMPLE = (Path(__file__).parent / "example.c").read_text(encoding="utf-8")
READ_ME = """{name}: a model that Stowplan compiled for {processor}, {threads} thread(s)

    cc example.c -L. -l:model.so -Wl,-rpath,'$ORIGIN' -o example      shared library
    cc example.c model.o weights.o -lm -lpthread -o example           in the program itself

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


def archive(library: Library) -> bytes:
    """A `.tar.gz` with one folder; the same library gives the same bytes."""
    files = {
        "model.so": library.shared,
        "model.o": library.code,
        "weights.o": library.weights,
        "model.h": library.header.encode(),
        "example.c": EXAMPLE.encode(),
        "README": read_me(READ_ME, library.metadata).encode(),
    }
    return packed(archive_name(library.metadata), files, library.metadata)


def packed(folder: str, files: Mapping[str, bytes], metadata: Mapping[str, object]) -> bytes:
    """A `.tar.gz` of files in a folder, with `metadata.json`, and their digests in `manifest.json`."""
    files = {**files, "metadata.json": _json(metadata)}
    files["manifest.json"] = _json({n: hashlib.sha256(c).hexdigest() for n, c in files.items()})
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), 0o755 if name.endswith(".so") else 0o644
            tar.addfile(entry, io.BytesIO(content))
    content = raw.getvalue()
    return gzip.compress(content, level(content), mtime=0)  # no time stamp


def level(content: bytes) -> int:
    """Level of compression: the fastest one, and none of what is large, for most of that are weights."""
    return 1 if len(content) <= COMPRESSED else 0


def _json(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()


def read_me(form: str, told: Mapping[str, object], **further: object) -> str:
    """A text that names the inputs and outputs and other facts of the metadata."""

    def lines(kind: str) -> str:
        values = told[kind]
        assert isinstance(values, list)
        return "\n".join(f"    {n}  {v['dtype']}{v['shape']}  {v['name']}" for n, v in enumerate(values))

    return form.format_map({**told, **further, "inputs": lines("inputs"), "outputs": lines("outputs")})
