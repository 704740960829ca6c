"""Wheels of a library: a Python module of one model that needs numpy alone.

Source: PyPA specifications, binary distribution format; names as in PEP 503 and PEP 427.
"""

import base64
import hashlib
import io
import keyword
import re
import zipfile
from pathlib import Path

from app.engine.export.library import Library

MODULE = (Path(__file__).parent / "wheel_module.py").read_text(encoding="utf-8")
VERSION = "1"
EPOCH = (1980, 1, 1, 0, 0, 0)  # the first time that a zip file can tell


def module_name(library: Library) -> str:
    """The model's name as a Python identifier."""
    name = re.sub(r"\W+", "_", str(library.metadata["name"]), flags=re.ASCII).strip("_").lower() or "model"
    return f"model_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def wheel_name(library: Library) -> str:
    """The file name by which installers know a wheel."""
    return f"{module_name(library)}-{VERSION}-{_tag(library)}.whl"


def wheel(library: Library, plan: str) -> bytes:
    """A wheel; the same library gives the same bytes.

    Args:
        library: the model.
        plan: text that its `explain()` answers.
    """
    name = module_name(library)
    title = " ".join(str(library.metadata["name"]).split())  # a line of its own would be another field
    info = f"{name}-{VERSION}.dist-info"
    files = {
        f"{name}/__init__.py": MODULE.encode(),
        f"{name}/py.typed": b"",
        f"{name}/model.so": library.shared,
        f"{name}/plan.txt": plan.encode(),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n"
            f"Summary: {title}, compiled by Stowplan for {library.metadata['processor']}\n"
            "Requires-Python: >=3.9\nRequires-Dist: numpy\n"
        ).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: stowplan\nRoot-Is-Purelib: false\nTag: {_tag(library)}\n"
        ).encode(),
    }
    record = f"{info}/RECORD"
    rows = [f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in files.items()]
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return raw.getvalue()


def _tag(library: Library) -> str:
    return f"py3-none-linux_{library.metadata['architecture']}"


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
