"""Strips: kernels that compute the next rows of an image, in rings of rows, and counters of their loops.

A ring holds `R` rows of every block of channels; row i of the image lies in slot i % R. A ring that `moves`
holds what one call writes and the next one reads: the first row of either lies in slot 0. A value that is
whole is a ring of all of its rows.

A kernel of strips reads from a cursor which row comes next, computes those of so many rows that the image
has, and advances the cursor by all. So a loop repeats the same arguments, also before the image begins.
"""

from dataclasses import dataclass

from app.kernels.cpu.codegen.sizes import SizeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSizes(SizeTable):
    """Rings of the input, the output, and an operand that is read at the place of the output."""

    operator: int  # number of the cursor
    work_at: int  # elements from an address to what it is meant for
    x_at: int
    x_ring: int  # rows
    x_moves: int  # whether the first row that a call reads lies in slot 0
    y_at: int
    y_ring: int
    y_moves: int
    r_at: int
    r_ring: int
    r_moves: int
    shares: int  # parts of a call for threads; of more than one a call of its own advances the cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlaces(SizeTable):
    """Rows that lie anywhere: of input, output, and an operand that is read at the place of the output.

    `first`: number of the entry of row 0 in a table, int32, of elements from the address of a value to the
    first plane of each of its rows; `plane`: elements from one plane of a row to the next.
    """

    operator: int  # number of the cursor
    work_at: int  # elements
    x_first: int
    x_plane: int
    y_first: int
    y_plane: int
    r_first: int
    r_plane: int


# Code of a kernel with arguments `cursors`, `most` and the number `rows` of the image, whose rows lie as a
# table says: the rows [first, last) of the call.
NEXT_ROWS = """\
    first = cursors[operator]
    last = min(first + most, rows)
    cursors[operator] += most
    first = max(first, 0)
"""


# Of a kernel with arguments `cursors`, `most` and the number `rows` of the image: the rows [first, last) of
# the call.
SPAN = """\
    x, y = at(x, x_at), at(y, y_at)
    first = cursors[operator]
    last = min(first + most, rows)
    if shares == 1:
        cursors[operator] += most
    first = max(first, 0)
    x_origin = first if x_moves else 0
    y_origin, r_origin = first if y_moves else 0, first if r_moves else 0
"""

# The planes of a piece of which a share has rows: of each the rows [upper, lower).
PLANES = """\
        share, next_share = count * blocks * begin // shares, count * blocks * end // shares
        for plane in range(share // count, (next_share + count - 1) // count):
            upper, lower = max(share - plane * count, 0), min(next_share - plane * count, count)
"""

# Rows from `first` on that are not cut by the end of the rings of outputs: `count` rows from these slots.
PIECE = """\
        y_slot, r_slot = (first - y_origin) % y_ring, (first - r_origin) % r_ring
        count = min(last - first, min(y_ring - y_slot, r_ring - r_slot))
"""

# These for a template with a table of rings.
STRIPS = {"unpack_rings": RingSizes.unpack("rings"), "span": SPAN, "piece": PIECE, "planes": PLANES}


def begin_strips(cursors, starts, count, begin, end):
    """Set the cursors of all operators of a segment to their first rows; types int64*, int64*, int64."""
    for i in range(count):
        cursors[i] = starts[i]


def begin_loop(counter, begin, end):
    """Turn 0 of a loop; type int64*."""
    counter[0] = 0


def end_turn(counter, again, turns, begin, end):
    """Count a turn, and set `again` where another one follows; types int64*, int64*, int64."""
    counter[0] += 1
    again[0] = counter[0] < turns


def advance(cursors, operator, rows, begin, end):
    """Advance the cursor of an operator whose kernel leaves it: threads read it beside each other."""
    cursors[operator] += rows
