"""Buffers as the CSV of the literature: columns id, lower, upper, size, and alignment if there is one.

Source: the instances of google/minimalloc and cappadokes/idealloc.
"""

import csv
from collections.abc import Sequence

from app.engine.memory.problem import Buffer, Problem

NEEDED = ("id", "lower", "upper", "size")
KNOWN = (*NEEDED, "alignment")
# Steps and bytes beyond it are taken for mistakes: sums and products stay integers of 64 bits.
LARGEST = 2**48


class TableError(ValueError):
    """A table that cannot be read; the message names the line and the column."""


def read(text: str, capacity: int | None = None) -> Problem:
    """The problem that a CSV table tells; without a column `alignment`, offsets may be any byte.

    Raises:
        TableError: a column is missing or unknown, a field is no number in range, a lifespan is empty,
            or an id comes twice.
    """
    rows = csv.reader(text.removeprefix("\ufeff").splitlines())
    header = [name.strip() for name in next(rows, [])]
    if sorted(set(header)) != sorted(header) or not set(NEEDED) <= set(header) <= set(KNOWN):
        raise TableError(
            f"line 1: expected the columns {', '.join(NEEDED)} and perhaps alignment, "
            f"found {', '.join(map(repr, header)) or 'nothing'}"
        )
    buffers: list[Buffer] = []
    seen: dict[str, int] = {}
    for fields in rows:
        line = rows.line_num
        if not any(field.strip() for field in fields):
            continue
        if len(fields) != len(header):
            raise TableError(f"line {line}: expected {len(header)} columns, found {len(fields)}")
        buffer = _buffer(header, fields, line)
        if buffer.id in seen:
            raise TableError(
                f"line {line}, column id: {buffer.id!r} names the buffer of line {seen[buffer.id]}"
            )
        seen[buffer.id] = line
        buffers.append(buffer)
    return Problem(tuple(buffers), capacity)


def _buffer(header: Sequence[str], fields: Sequence[str], line: int) -> Buffer:
    row = dict(zip(header, (field.strip() for field in fields), strict=True))
    if not row["id"]:
        raise TableError(f"line {line}, column id: expected a name, found nothing")
    lower = _integer(row, "lower", -LARGEST, line)
    upper = _integer(row, "upper", -LARGEST, line)
    if lower >= upper:
        raise TableError(
            f"line {line}, column upper: expected more than lower, {lower}, found {upper}; "
            "lifespans are half-open"
        )
    alignment = _integer(row, "alignment", 1, line) if "alignment" in row else 1
    return Buffer(row["id"], lower, upper, _integer(row, "size", 0, line), alignment)


def _integer(row: dict[str, str], name: str, least: int, line: int) -> int:
    text = row[name]
    try:
        value = int(text) if len(text) <= 20 else LARGEST + 1
    except ValueError:
        raise TableError(f"line {line}, column {name}: expected an integer, found {text!r}") from None
    if not least <= value <= LARGEST:
        raise TableError(f"line {line}, column {name}: expected {least} to {LARGEST}, found {text}")
    return value
