"""Files of an exported program in memory."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path


def written(write: Callable[..., object], *given: object) -> io.BytesIO:
    """A file with what a function writes into it; the function takes it last."""
    file = io.BytesIO()
    write(*given, file)
    file.seek(0)
    return file


def unpacked_in(folder: Path, write: Callable[..., object], made: object) -> Path:
    """The folder of an archive that a function writes, unpacked."""
    with tarfile.open(fileobj=written(write, made)) as tar:
        tar.extractall(folder)  # it is our own; Python before 3.11.4 has no filters
        return folder / tar.getnames()[0].partition("/")[0]
