"""Counts what is in an upload, from the wire format alone, before anything parses it.

A parser needs up to a hundred bytes of memory for two bytes of protobuf. So tags and lengths are
walked here, in the order in which a parser would, and nothing is allocated; what is too much is
refused before a process is started for it. Where the bytes stop being protobuf, the walk stops: so
does the parser, which then says what is wrong.

Source: protobuf.dev/programming-guides/encoding; field numbers from onnx.proto (ONNX 1.23).
"""

import mmap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from app.engine.model.mxnet.symbol_file import LARGEST, is_symbol
from app.engine.types.errors import ModelTooLargeError

Bytes: TypeAlias = "bytes | mmap.mmap"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that an upload may have. `dense_*`: beyond so many, they must have so many bytes each.

    `fields` are those that are no single numbers: a parser keeps a number in 8 bytes, and forests have
    millions of them, of 2 bytes in the file.
    """

    nodes: int = 100_000
    messages: int = 400_000
    fields: int = 2_000_000
    numbers: int = 8_000_000
    depth: int = 64
    dims: int = 64
    attributes: int = 4096  # of one node
    tensor_bytes: int = 2**40
    dense_messages: tuple[int, int] = (50_000, 3)  # number, byte
    dense_fields: tuple[int, int] = (100_000, 3)  # number, byte


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of an upload; `locations` are the files of external data that its tensors name."""

    nodes: int
    messages: int
    fields: int
    locations: tuple[str, ...] = ()


# Message types, and which of their fields hold messages: {field: type}.
_ANY, _MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _FUNCTION, _TRAINING = range(9)
_VALUE, _TYPE, _INNER_TYPE, _MAP_TYPE, _TENSOR_TYPE, _SHAPE, _ANNOTATION, _EXTERNAL = range(9, 17)
_MOST_LOCATIONS = 4096  # that are told
_FIELDS: tuple[Mapping[int, int], ...] = (
    {},
    {7: _GRAPH, 8: _ANY, 14: _ANY, 20: _TRAINING, 25: _FUNCTION, 26: _ANY},
    {
        1: _NODE,
        5: _TENSOR,
        11: _VALUE,
        12: _VALUE,
        13: _VALUE,
        14: _ANNOTATION,
        15: _SPARSE,
        16: _ANY,
    },
    {5: _ATTRIBUTE, 9: _ANY, 10: _ANY},
    {
        5: _TENSOR,
        6: _GRAPH,
        10: _TENSOR,
        11: _GRAPH,
        14: _TYPE,
        15: _TYPE,
        22: _SPARSE,
        23: _SPARSE,
    },
    {3: _ANY, 13: _EXTERNAL, 16: _ANY},
    {1: _TENSOR, 2: _TENSOR},
    {7: _NODE, 9: _ANY, 11: _ATTRIBUTE, 12: _VALUE, 14: _ANY},
    {1: _GRAPH, 2: _GRAPH, 3: _ANY, 4: _ANY},
    {2: _TYPE, 4: _ANY},
    {1: _TENSOR_TYPE, 4: _INNER_TYPE, 5: _MAP_TYPE, 8: _TENSOR_TYPE, 9: _INNER_TYPE},
    {1: _TYPE},
    {2: _TYPE},
    {2: _SHAPE},
    {1: _ANY},
    {2: _ANY},
    {},
)
# Bytes of one element by `data_type`; half a byte rounds up, text is not counted.
_WIDTHS = {1: 4, 6: 4, 7: 8, 11: 8, 12: 4, 13: 8, 14: 8, 15: 16, 4: 2, 5: 2, 10: 2, 16: 2}
_VARINT, _FIXED64, _BYTES, _GROUP, _END, _FIXED32 = range(6)


def scan_file(path: Path, bounds: Bounds | None = None) -> Counts:
    """`scan` for a file of any size."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return Counts(0, 0, 0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return scan_symbol(data, bounds) if is_symbol(path) else scan(data, bounds)


def scan_symbol(data: Bytes, bounds: Bounds | None = None) -> Counts:
    """Count nodes and values of a symbol in JSON, each of which follows a comma or a bracket.

    Raises:
        ModelTooLargeError: there is more of something than the bounds allow.
    """
    bounds = bounds or Bounds()
    if len(data) > LARGEST:
        raise _too_large("its symbol has", f"{len(data)} byte, more than {LARGEST}")
    text = bytes(data)
    counts = Counts(
        text.count(b'"op"'), text.count(b"{") + text.count(b"["), text.count(b",") + text.count(b":")
    )
    for what, count, most in (
        ("nodes", counts.nodes, bounds.nodes),
        ("objects", counts.messages, bounds.fields),
        ("values", counts.fields, 4 * bounds.fields),
    ):
        if count > most:
            raise _too_large("it has", f"more than {most} {what}")
    return counts


def scan(data: Bytes, bounds: Bounds | None = None) -> Counts:
    """Count nodes, messages and fields of a serialized ModelProto.

    Raises:
        ModelTooLargeError: there is more of something than the bounds allow.
    """
    walk = _Walk(data, bounds or Bounds())
    with suppress(IndexError):  # cut short, inside of a tag or a length
        walk.run()
    walk.check_counts()
    return Counts(walk.nodes, walk.messages, walk.fields, tuple(walk.locations))


class _Walk:
    """One pass over the bytes, with an explicit stack of open messages."""

    def __init__(self, data: Bytes, bounds: Bounds) -> None:
        self._data = data
        self._bounds = bounds
        self.nodes = self.messages = self.fields = self.numbers = 0
        self.locations: dict[str, None] = {}  # in the order of their first tensors
        self._key = b""  # of the entry that is being walked over
        self._message = _Message(_MODEL, len(data))
        self._stack: list[_Message] = []  # around it

    def run(self) -> None:
        """Walk until the end, or until the bytes are no protobuf.

        Raises:
            IndexError: they end inside of a tag, a length or a message.
        """
        data, checked, position = self._data, 0, 0
        while self._close_ended(position):
            tag = data[position]
            position += 1
            if tag > 127:
                tag, position = self._rest(tag, position)
            if self.fields + self.numbers >= checked:
                checked = self.fields + self.numbers + 4096
                self._check(position)
            wire, field = tag & 7, tag >> 3
            if wire == _BYTES:
                self.fields += 1
                position = self._bytes(field, position)
            elif wire == _VARINT:
                self.numbers += 1
                value = data[position]
                position += 1
                if value > 127:
                    value, position = self._rest(value, position)
                if self._message.tensor is not None:
                    self._message.tensor.number(field, value, self._bounds)
            elif wire in (_FIXED32, _FIXED64):
                self.numbers += 1
                position += 4 if wire == _FIXED32 else 8
            elif wire == _GROUP:
                self.fields += 1
                self.messages += 1
                self._open(_Message(_ANY, self._message.end, is_group=True))
            elif wire == _END and self._message.is_group:
                self._message = self._stack.pop()
            else:
                return

    def _close_ended(self, position: int) -> bool:
        """Leave the messages that end here; False at the end of all, or where a message is cut short."""
        while position >= self._message.end:
            message = self._message
            if position > message.end or message.is_group or not self._stack:
                return False
            if message.tensor is not None:
                message.tensor.check(self._bounds)
            self._message = self._stack.pop()
        return True

    def _bytes(self, field: int, position: int) -> int:
        """Enter a message, or pass over other bytes; returns the position of the next field."""
        size = self._data[position]
        position += 1
        if size > 127:
            size, position = self._rest(size, position)
        message = self._message
        kind = _FIELDS[message.kind].get(field)
        if kind is None:
            if message.kind == _EXTERNAL:
                self._entry(field, self._data[position : min(position + min(size, 4096), message.end)])
            elif message.tensor is not None:
                message.tensor.packed(
                    field, self._data, position, min(position + size, message.end), self._bounds
                )
            return position + size
        self._count(kind)
        if size:
            if position + size > message.end:
                raise IndexError
            self._open(_Message(kind, position + size, _Tensor() if kind == _TENSOR else None))
        return position

    def _count(self, kind: int) -> None:
        self.messages += 1
        if kind == _NODE:
            self.nodes += 1
        elif kind == _ATTRIBUTE and self._message.kind == _NODE:
            self._message.attributes += 1
            if self._message.attributes > self._bounds.attributes:
                raise _too_large("a node has", f"more than {self._bounds.attributes} attributes")

    def _open(self, message: "_Message") -> None:
        if len(self._stack) >= self._bounds.depth:
            raise _too_large("its messages lie", f"more than {self._bounds.depth} deep in each other")
        self._stack.append(self._message)
        self._message = message

    def _entry(self, field: int, text: bytes) -> None:
        """A key or a value of a tensor's external data."""
        if field == 1:
            self._key = text
        elif field == 2 and self._key == b"location" and len(self.locations) < _MOST_LOCATIONS:
            self.locations[text.decode(errors="replace")] = None

    def _rest(self, first: int, position: int) -> tuple[int, int]:
        """The value of a number of several bytes, and where it ends."""
        value, shift = first & 127, 7
        while True:
            byte = self._data[position]
            position += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value, position
            shift += 7
            if shift > 63:
                raise IndexError

    def check_counts(self) -> None:
        """Refuse what is more than the bounds allow."""
        bounds = self._bounds
        for what, count, most in (
            ("nodes", self.nodes, bounds.nodes),
            ("messages", self.messages, bounds.messages),
            ("fields", self.fields, bounds.fields),
            ("numbers", self.numbers, bounds.numbers),
        ):
            if count > most:
                raise _too_large("it has", f"more than {most} {what}")

    def _check(self, position: int) -> None:
        self.check_counts()
        bounds = self._bounds
        for what, count, (many, least) in (
            ("messages", self.messages, bounds.dense_messages),
            ("fields", self.fields, bounds.dense_fields),
        ):
            if count > many and position < count * least:
                raise _too_large("it has", f"{count} {what} in {position} byte, as no model has")


class _Tensor:
    """The dimensions and the type of a tensor that is being walked over."""

    __slots__ = ("_count", "_elements", "_width")

    def __init__(self) -> None:
        self._elements, self._width, self._count = 1, 1, 0

    def number(self, field: int, value: int, bounds: Bounds) -> None:
        """A field that holds a number."""
        if field == 1:
            self._dimension(value, bounds)
        elif field == 2:
            self._width = _WIDTHS.get(value, 1)

    def packed(self, field: int, data: Bytes, begin: int, end: int, bounds: Bounds) -> None:
        """A field that holds many numbers."""
        if field != 1:
            return
        if end - begin > 10 * bounds.dims:
            raise _too_large("a tensor has", f"more than {bounds.dims} dimensions")
        value = shift = 0
        for byte in data[begin:end]:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                self._dimension(value, bounds)
                value = shift = 0

    def _dimension(self, size: int, bounds: Bounds) -> None:
        self._count += 1
        if self._count > bounds.dims:
            raise _too_large("a tensor has", f"more than {bounds.dims} dimensions")
        self._elements = 0 if size == 0 else self._elements * size

    def check(self, bounds: Bounds) -> None:
        """At its end, its size is known."""
        nbytes = self._elements * self._width
        if nbytes > bounds.tensor_bytes:
            raise _too_large(
                f"a tensor of {self._count} dimensions has",
                f"{nbytes} byte, more than the {bounds.tensor_bytes} byte that are allowed",
            )


@dataclass(slots=True)
class _Message:
    """An open message: its type, its end and the attributes counted in it."""

    kind: int
    end: int
    tensor: _Tensor | None = None
    attributes: int = 0
    is_group: bool = False


def _too_large(subject: str, what: str) -> ModelTooLargeError:
    return ModelTooLargeError(f"the model is too large: {subject} {what}", pointer="/model")
