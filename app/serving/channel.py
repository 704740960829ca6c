"""Messages between the API and an executor process, over a socket and shared memory.

The socket carries messages of a few bytes. Requests and answers lie in the arena: memory of the API,
whose descriptor comes with the first message. The API gives every request a region of it, where the
body is written as it arrives from the network; the executor reads it there, and leaves its answer
in the same region.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import Final

LARGEST = 1 << 17  # byte of a message
SHORT = 256  # byte of a message from the API
ALIGNMENT = 64  # byte; where regions and the binary data in them start

# From the API.
ARENA: Final = Struct("<cQ")  # b"M", bytes; the descriptor comes with it
# b"Q", id, offset, capacity, bytes, bytes of the header, when it began to come, deadline
REQUEST: Final = Struct("<cQQQQqdd")
GRANT: Final = Struct("<cQQQ")  # b"G", id, offset, capacity: where an answer fits
# From the executor.
STATE: Final = b"S"  # and JSON: state, detail, metadata, programs
COMPILING: Final = "a program for these shapes is still being compiled: try again"
STOPPING: Final = "stopping"  # state of a process that ends when every API process has closed its connection
BUILDING: Final = Struct("<cQ")  # b"B", id: it waits for a program of its shapes
NEEDS: Final = Struct("<cQQ")  # b"N", id, bytes: the answer does not fit
# b"A", id, seconds that the request had, status, bytes, bytes of the header, seconds: waited, held, ran,
# until another try (0: it is no use)
ANSWER: Final = Struct("<cQdHQqdddI")


def folder_of(data: Path) -> Path:
    """Where the sockets are."""
    return data / "serving"


def socket_path(data: Path, identifier: str) -> Path:
    """Where an executor listens."""
    return folder_of(data) / f"{identifier}.sock"


def listen(path: Path) -> socket.socket:
    """Listen at a path, in place of whoever did before; nobody but this user may connect."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with _short_name(path) as short:
        listener.bind(short)
    path.chmod(0o600)
    listener.listen(16)
    listener.setblocking(False)
    return listener


def connect(path: Path) -> socket.socket:
    """A connection that does not block.

    Raises:
        OSError: nobody listens.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        with _short_name(path) as short:
            connection.connect(short)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    """A short name of a path: the addresses of sockets take 107 byte."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
