"""Wheels of libraries: a Python module of one model, for one or several processors, that needs numpy alone.

Source: PyPA specifications, binary distribution format; names as in PEP 503 and PEP 427.
"""

import base64
import json
import keyword
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from app.engine.export.library import Library
from app.engine.export.package import COMPRESSED, Content, digest, nbytes, plain

MODULE = (Path(__file__).parent / "wheel_module.py").read_text(encoding="utf-8")
VERSION = "1"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip file can tell
PROCESSORS = "processors.json"  # the description of a wheel, beside its module


@dataclass(frozen=True, slots=True)
class _Variant:
    """Files of a wheel for one processor.

    Attributes:
        folder: name of the processor.
        architecture: of it.
        features: how many instruction sets it must have; variants with more are tried first.
        files: by name.
    """

    folder: str
    architecture: str
    features: int
    files: Mapping[str, Content]


def module_name(library: Library) -> str:
    """The model's name as a Python identifier."""
    name = re.sub(r"\W+", "_", str(library.metadata["name"]), flags=re.ASCII).strip("_").lower() or "model"
    return f"model_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def wheel_name(library: Library) -> str:
    """The file name by which installers know a wheel."""
    return _file_name(module_name(library), [str(library.metadata["architecture"])])


def wheel(library: Library, plan: str, into: IO[bytes]) -> None:
    """Write a wheel; the same library gives the same bytes.

    Args:
        library: the model.
        plan: text that its `explain()` answers.
        into: a file that can be sought in.
    """
    told = library.metadata
    features = [f for f in str(told["features"]).split(",") if f.startswith("+")]
    files: dict[str, Content] = {"model.so": library.shared.parts, "plan.txt": [plan.encode()]}
    variant = _Variant(plain(str(told["processor"])), str(told["architecture"]), len(features), files)
    about = {"title": str(told["name"]), "inputs": told["inputs"], "outputs": told["outputs"]}
    _write(module_name(library), about, [variant], into)


def joined(wheels: Sequence[IO[bytes]], into: IO[bytes]) -> str:
    """Write one wheel of several of a model, each for other processors; returns its file name.

    The module takes the first that the processor can run; those that need more instruction sets come first.

    Raises:
        ValueError: one is no wheel of a library, or they do not belong together; the message says why.
    """
    found = [_unpacked(file) for file in wheels]
    if not found:
        raise ValueError("expected at least one wheel, found none")
    name, about, _ = found[0]
    for other, differently, _ in found[1:]:
        if (other, differently) != (name, about):
            raise ValueError(
                f"wheels of {name!r} and of {other!r} differ in name, inputs or outputs; "
                "expected wheels of one model"
            )
    variants = [variant for _, _, some in found for variant in some]
    folders = [v.folder for v in variants]
    twice = next((f for f in folders if folders.count(f) > 1), None)
    if twice is not None:
        raise ValueError(f"processor {twice!r} is in several of the wheels; expected each once")
    _write(name, about, variants, into)
    return _file_name(name, [v.architecture for v in variants])


def _write(name: str, about: Mapping[str, Any], variants: Sequence[_Variant], into: IO[bytes]) -> None:
    ordered = sorted(variants, key=lambda v: (-v.features, v.folder))
    title = " ".join(about["title"].split())  # a line of its own would be another field
    info = f"{name}-{VERSION}.dist-info"
    rows = [{"folder": v.folder, "architecture": v.architecture, "features": v.features} for v in ordered]
    files: dict[str, Content] = {
        f"{name}/__init__.py": [MODULE.encode()],
        f"{name}/py.typed": [],
        f"{name}/{PROCESSORS}": [json.dumps({**about, "processors": rows}, sort_keys=True).encode()],
        **{f"{name}/{v.folder}/{file}": content for v in ordered for file, content in v.files.items()},
        f"{info}/METADATA": [
            (
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n"
                f"Summary: {title}, compiled by Stowplan for {', '.join(v.folder for v in ordered)}\n"
                "Requires-Python: >=3.9\nRequires-Dist: numpy\n"
            ).encode()
        ],
        f"{info}/WHEEL": [
            (
                "Wheel-Version: 1.0\nGenerator: stowplan\nRoot-Is-Purelib: false\n"
                + "".join(f"Tag: py3-none-linux_{a}\n" for a in sorted({v.architecture for v in ordered}))
            ).encode()
        ],
    }
    record = f"{info}/RECORD"
    lines = [f"{path},sha256={_digest(content)},{nbytes(content)}\n" for path, content in files.items()]
    files[record] = ["".join([*lines, f"{record},,\n"]).encode()]
    with zipfile.ZipFile(into, "w") as archive:
        for path, content in files.items():
            _add(archive, path, content)


def _add(archive: zipfile.ZipFile, path: str, content: Content) -> None:
    """Add a file: compressed at the fastest level, a large one as it is, for most of that are weights."""
    entry = zipfile.ZipInfo(path, EPOCH)
    entry.external_attr, entry.file_size = 0o644 << 16, nbytes(content)
    if entry.file_size <= COMPRESSED:
        archive.writestr(entry, b"".join(content), zipfile.ZIP_DEFLATED, compresslevel=1)
        return
    with archive.open(entry, "w") as target:
        for piece in content:
            target.write(piece)


def _unpacked(file: IO[bytes]) -> tuple[str, dict[str, Any], list[_Variant]]:
    """Module name, description and variants of a wheel."""
    try:
        with zipfile.ZipFile(file) as archive:
            path = next((p for p in archive.namelist() if p.endswith(f"/{PROCESSORS}")), PROCESSORS)
            name = path.removesuffix(f"/{PROCESSORS}")
            about: dict[str, Any] = json.loads(archive.read(path))
            if archive.read(f"{name}/__init__.py") != MODULE.encode():
                raise ValueError(f"the wheel of {name!r} was made by another version; make it anew")
            variants = [
                _Variant(
                    row["folder"],
                    row["architecture"],
                    row["features"],
                    {
                        p.rpartition("/")[2]: [archive.read(p)]
                        for p in archive.namelist()
                        if p.startswith(f"{name}/{row['folder']}/")
                    },
                )
                for row in about.pop("processors")
            ]
    except (zipfile.BadZipFile, KeyError, json.JSONDecodeError) as cause:
        raise ValueError(f"expected a wheel that Stowplan made, found something else ({cause})") from cause
    return name, about, variants


def _file_name(name: str, architectures: Sequence[str]) -> str:
    platforms = ".".join(f"linux_{a}" for a in sorted(set(architectures)))
    return f"{name}-{VERSION}-py3-none-{platforms}.whl"


def _digest(content: Content) -> str:
    return base64.urlsafe_b64encode(digest(content)).rstrip(b"=").decode()
