"""Weights of programs in files of a folder, which all processes of a machine map: equal ones once.

A segment is a file of arrays that one program brought and no segment had: arrays on cache lines, then a
table of them in JSON, and the bytes of that table as an unsigned integer of 64 bits. It is written under a
lock, gets its name when it is complete, and never changes. Who maps it holds a shared lock on it.
"""

import bisect
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import IO, Any, NoReturn, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.cache import Cache
from app.engine.core.calls import Constant, HostCall, KernelCall, SubgraphCall, planned_bodies
from app.engine.core.program import Program
from app.engine.runtime.cpu.memory import ALIGNMENT, HUGE, MARGIN, SMALL_BLOCK, Array, Weights
from app.engine.types.errors import KernelError

MIN_STORED = 4096  # byte of an array from which on it goes to a file
UNUSED_SECONDS = 3600.0  # since a segment was mapped last, after which it may be removed
SUFFIX = ".weights"
# Byte that are written at once, from a multiple of as many on: pages of a file that were are huge where the
# file system has such.
_WRITTEN = 8 * HUGE
_LENGTH = Struct("<Q")
_DIGEST = 32  # byte
logger = logging.getLogger("stowplan.weights")

Table: TypeAlias = dict[bytes, tuple[int, int]]  # offset and bytes by digest
Settle: TypeAlias = Callable[[Array], None]  # lets what holds an array hold an equal one instead


class MappedWeights(Weights):
    """Weights of one program: the mapped ones stay mapped as long as it is here, small ones are its own."""

    def __init__(self, segments: Iterable["_Segment"]) -> None:
        super().__init__(block=SMALL_BLOCK)
        self._segments = sorted(segments, key=lambda s: s.start)
        self._starts = [s.start for s in self._segments]

    def keep(self, array: Array) -> Array:
        """The bytes of an array, where they are mapped; else in memory of this process."""
        address = array.ctypes.data
        at = bisect.bisect_right(self._starts, address) - 1
        if at >= 0 and address < self._segments[at].start + self._segments[at].array.size:
            return array.reshape(-1).view(np.uint8)
        return super().keep(array)


class WeightStore:
    """Weights of the programs of one process, shared with others that have the same folder.

    Mapped pages are the same for all of them, can be given back to the system at any time, and are no
    data of the process that a limit counts. Large files lie in huge pages where the file system has them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._tables: dict[str, Table] = {}  # by name of the segment
        self._mapped: WeakValueDictionary[str, _Segment] = WeakValueDictionary()

    def take(self, program: Program) -> tuple[Program, MappedWeights]:
        """The program, its constants in mapped memory in place of what it held or made them from.

        Weights of its graph that no call reads are given back, as is the record of its planning. A library
        makes copies of its own from the graph when it is bound: such a program keeps all.

        Raises:
            KernelError: the folder does not take the weights.
        """
        try:
            with _locked(self._folder):
                used = self._move(program)
        except OSError as cause:
            raise KernelError(f"weights cannot be written to {self._folder}: {cause.strerror}") from cause
        return program if program.has_library else _without_weights(program), MappedWeights(used)

    def _move(self, program: Program) -> list["_Segment"]:
        self._read_tables()
        places = {digest: (name, place) for name, t in self._tables.items() for digest, place in t.items()}
        used: dict[str, _Segment] = {}
        writer = _SegmentWriter(self._folder)
        written: list[tuple[bytes, np.dtype[Any], tuple[int, ...], Settle]] = []
        try:
            for array, settle in _constants(program):
                raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                digest = hashlib.blake2b(raw.data, digest_size=_DIGEST).digest()
                known = None
                if digest in places and digest not in writer.table:
                    name, place = places[digest]
                    known = self._bytes_of(name, place, used)
                # Bytes that another process has written are compared, not believed.
                if known is not None and np.array_equal(known, raw):
                    settle(known.view(array.dtype).reshape(array.shape))
                    continue
                writer.write(digest, raw)
                written.append((digest, array.dtype, array.shape, settle))
            name = writer.publish()
        finally:
            writer.close()
        if name:
            remove_unused(self._folder)
        for digest, kind, shape, settle in written:
            made = self._bytes_of(name, writer.table[digest], used)
            if made is None:
                raise FileNotFoundError(None, f"segment {name} is gone")
            settle(made.view(kind).reshape(shape))
        return list(used.values())

    def _read_tables(self) -> None:
        names = {path.name for path in self._folder.glob(f"*{SUFFIX}")}
        self._tables = {name: table for name, table in self._tables.items() if name in names}
        for name in sorted(names - self._tables.keys()):
            segment = _Segment.mapped(self._folder / name)
            self._tables[name] = {} if segment is None else segment.table

    def _bytes_of(self, name: str, place: tuple[int, int], used: dict[str, "_Segment"]) -> Array | None:
        """The bytes at a place of a segment, which is kept in `used`; None where the segment has gone."""
        if name not in used:
            segment = self._mapped.get(name) or _Segment.mapped(self._folder / name)
            if segment is None:
                return None
            used[name] = self._mapped[name] = segment
        offset, nbytes = place
        return used[name].array[offset : offset + nbytes]


@dataclass(frozen=True, eq=False)
class _Segment:
    """A file that is mapped, and locked as long as it is.

    Attributes:
        table: offset and bytes of each array, by its digest.
    """

    array: Array
    table: Table

    @property
    def start(self) -> int:
        """Address of its first byte."""
        return int(self.array.ctypes.data)

    @classmethod
    def mapped(cls, path: Path) -> "_Segment | None":
        """A segment; None where it has gone meanwhile, or is not one."""
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                if os.fstat(file.fileno()).st_nlink == 0:
                    return None
                with contextlib.suppress(PermissionError):  # another user's
                    os.utime(file.fileno())
                # The mapping has a descriptor of its own of the same open file, which holds the lock.
                array = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
            return cls(array, _table_of(array))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as cause:
            logger.warning("%s is no segment of weights: %s", path, cause)
            return None


def _table_of(array: Array) -> Table:
    """The table of a segment.

    Raises:
        ValueError: there is none, or an array would lie outside of the segment.
    """
    end = array.size - _LENGTH.size
    if end < 0:
        raise ValueError("it is too short")
    (length,) = _LENGTH.unpack(array[end:].tobytes())
    if length > end:
        raise ValueError("its table is longer than the file")
    given = json.loads(array[end - length : end].tobytes())
    table = {bytes.fromhex(digest): (int(offset), int(nbytes)) for digest, (offset, nbytes) in given.items()}
    if any(offset < 0 or nbytes < 0 or offset + nbytes > end for offset, nbytes in table.values()):
        raise ValueError("an array lies outside of it")
    return table


class _SegmentWriter:
    """A segment under another name until it is complete; no file without arrays."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"{os.getpid()}.part"
        self._file: IO[bytes] | None = None
        self.table: Table = {}

    def write(self, digest: bytes, raw: Array) -> None:
        """Append an array."""
        if self._file is None:
            self._file = self._path.open("wb", buffering=_WRITTEN)
            self._file.write(bytes(MARGIN))
        self.table[digest] = self._file.tell(), raw.size
        self._file.write(raw.data)
        self._file.write(bytes(-raw.size % ALIGNMENT))

    def publish(self) -> str:
        """Name of the finished file; empty where nothing was written."""
        if self._file is None:
            return ""
        text = json.dumps({digest.hex(): place for digest, place in self.table.items()}).encode()
        for piece in (bytes(MARGIN), text, _LENGTH.pack(len(text))):
            self._file.write(piece)
        self._file.close()
        unique = hashlib.blake2b(text + _LENGTH.pack(time.time_ns()), digest_size=16).hexdigest()
        return self._path.rename(self._folder / f"{unique}{SUFFIX}").name

    def close(self) -> None:
        """Remove what is not finished."""
        if self._file is not None and not self._file.closed:
            self._file.close()
            self._path.unlink(missing_ok=True)


def remove_unused(folder: Path, unused_seconds: float = UNUSED_SECONDS) -> None:
    """Remove segments that nobody has mapped for some time, and what ended processes left unfinished.

    Who calls it holds the lock of the folder.
    """
    for path in folder.glob("*.part"):
        path.unlink()
    for path in folder.glob(f"*{SUFFIX}"):
        with path.open("rb") as file, contextlib.suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - os.fstat(file.fileno()).st_mtime > unused_seconds:
                path.unlink()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The lock that who writes or removes segments holds; it ends with the process."""
    with (folder / "lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _constants(program: Program) -> Iterator[tuple[Array, Settle]]:
    """Arrays that calls of a program read and no run changes, each with what settles who holds it."""
    for owner in dict.fromkeys(_owners(program)):
        if isinstance(owner, Constant):
            array: Array | None = owner.array
            settle = owner.settle
        else:
            array, settle = graph.constant(owner), functools.partial(_settle, owner)
        if array is not None and array.nbytes >= MIN_STORED and not array.dtype.hasobject:
            yield array, settle


def _owners(program: Program) -> Iterator[Constant | ir.Value]:
    """Arguments of calls, bodies included: what packs weights, and values or what owns the memory of them."""
    for call in (c for step in program.steps for c in step.calls):
        for body in planned_bodies(call):
            yield from _owners(body.program)
        arguments: Iterable[object] = ()
        if isinstance(call, KernelCall):
            arguments = call.arguments
        elif isinstance(call, HostCall | SubgraphCall):
            arguments = call.inputs
        for argument in arguments:
            if isinstance(argument, Constant):
                yield argument
            elif isinstance(argument, ir.Value):
                place = program.placement.values.get(argument)
                yield argument if place is None or place.root is None else place.root


def _settle(value: ir.Value, array: Array) -> None:
    """Let a constant of the graph be an equal array."""
    value.const_value = ir.Tensor(array, value.dtype, name=value.name)


def _without_weights(program: Program) -> Program:
    """A program of which nothing holds weights but its calls and the constants that they read."""
    compilation = dataclasses.replace(
        program.compilation, source=None, decisions=(), records=(), timings={}, cache=Cache()
    )
    read = set(_owners(program))
    for value in compilation.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= MIN_STORED and value not in read:
            value.const_value = ir.LazyTensor(
                functools.partial(_given_back, value.name),
                tensor.dtype,
                ir.Shape(tensor.shape.numpy()),
                name=value.name,
            )
    for step in program.steps:
        step.group.cache.clear()
    return dataclasses.replace(program, compilation=compilation)


def _given_back(name: str | None) -> NoReturn:
    raise KernelError(f"weights {name!r} were given back when their program was bound: no call reads them")
