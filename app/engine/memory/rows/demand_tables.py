"""Tables of a segment for compiled code.

All arrays are int64. Tables of a segment, by number of operator or value, in the order of the segment:

operators  [o, 4]  rows, strip, 1 if aligned, value taken or -1
first_read [o + 1] where the reads of each operator begin
reads      [k, 5]  value, step, per, first, last
values     [v, 4]  rows, producer or -1, 1 if kept (an output, an input that is not freed), 1 if accumulated
first_user [v + 1] where the readers of each value begin
users      [k, 2]  operator, number of its read
first_out, first_touched [o + 1]; outputs, touched [k]: values that each operator writes, and touches at all
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class Tables(NamedTuple):
    """A segment as arrays, see the module."""

    operators: Array
    first_read: Array
    reads: Array
    values: Array
    first_user: Array
    users: Array
    first_out: Array
    outputs: Array
    first_touched: Array
    touched: Array
