"""The service's data folder is its user's alone: models, artifacts and the hashes of keys are in it."""

import logging
import os
import stat
from pathlib import Path

_OTHERS = 0o077
logger = logging.getLogger("stowplan.data")


def prepare(folder: Path) -> None:
    """Make the folder, or close it to others, and let this process make files that others cannot read.

    What is in a folder that was open is closed with it; a folder of another user stays open, with a warning.
    """
    os.umask(_OTHERS)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & _OTHERS:
        return
    try:
        folder.chmod(0o700)
    except PermissionError:
        logger.warning(
            "the data folder %s is open to other users (mode %04o): let its owner close it, chmod 700",
            *(folder.absolute(), mode),
        )
        return
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _close(os.path.join(parent, name))  # noqa: PTH118  thousands of blobs
    logger.warning(
        "the data folder %s was open to other users (mode %04o): it is 0700 now, what is in it 0700 or 0600",
        *(folder.absolute(), mode),
    )


def _close(path: str) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode) or not mode & _OTHERS:
        return
    try:
        os.chmod(path, stat.S_IMODE(mode) & ~_OTHERS)  # noqa: PTH101  as above
    except FileNotFoundError:  # another process is at work
        return
    except PermissionError:
        logger.warning("%s is open to other users, and belongs to another one", path)
