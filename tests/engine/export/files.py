"""Files of an exported program in memory."""

import io
from collections.abc import Callable


def written(write: Callable[..., object], *given: object) -> io.BytesIO:
    """What a function writes into the file that it takes last."""
    file = io.BytesIO()
    write(*given, file)
    file.seek(0)
    return file
