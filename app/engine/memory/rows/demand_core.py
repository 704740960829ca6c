"""The compiled core of schedules by demand: planning asks for thousands of segments, too many for Python.

All arrays are int64; tables are `app.engine.memory.rows.demand_tables.Tables`.
"""

from typing import Any, TypeAlias

import numpy as np
from numba import njit

Array: TypeAlias = np.ndarray[Any, Any]

_compiled: Any = njit(cache=True, error_model="numpy", boundscheck=False, nogil=True)


@_compiled
def _low(tables, done, end, value):
    """The first row of a value that calls are still to read; its extent if none is."""
    rows, producer, kept, summed = tables.values[value]
    if kept:
        return np.int64(0)
    low = rows
    for k in range(tables.first_user[value], tables.first_user[value + 1]):
        operator, read = tables.users[k]
        if done[operator] < end[operator]:
            _, step, per, first, _ = tables.reads[read]
            low = min(low, max((done[operator] * step + first) // per, 0))
    if producer >= 0 and summed and 0 < done[producer] < end[producer]:
        low = min(low, done[producer] - 1)  # the next turn adds to it
    return low


@_compiled
def _high(tables, done, end, value):
    """One after the last row of a value that is written; of an input that is freed, that calls read."""
    rows, producer, kept, _ = tables.values[value]
    if producer >= 0:
        return done[producer]
    if kept:
        return rows
    high = np.int64(0)
    for k in range(tables.first_user[value], tables.first_user[value + 1]):
        operator, read = tables.users[k]
        if end[operator]:
            _, step, per, _, last = tables.reads[read]
            high = max(high, min(((end[operator] - 1) * step + last) // per + 1, rows))
    return high


@_compiled
def demand(tables, done, stack, calls):
    """Fill `calls` [n, 3] (operator, first row, rows) in the order of demand, and return their number.

    `done` [o] is zero, `stack` [o, 2] is room. Kept values are completed from the last to the first.
    """
    count = 0
    for target in range(len(done) - 1, -1, -1):
        kept = False
        for k in range(tables.first_out[target], tables.first_out[target + 1]):
            kept = kept or tables.values[tables.outputs[k], 2] == 1
        while kept and done[target] < tables.operators[target, 0]:
            stack[0, 0], stack[0, 1] = target, done[target] + 1
            depth = 1
            while depth:
                number, upto = stack[depth - 1]
                if done[number] >= upto:
                    depth -= 1
                    continue
                rows, strip, aligned, _ = tables.operators[number]
                left = rows - done[number]
                if not aligned and number != target:
                    left = min(upto, rows) - done[number]
                size = min(strip, left)
                waits = False
                for k in range(tables.first_read[number], tables.first_read[number + 1]):
                    value, step, per, first, last = tables.reads[k]
                    extent, source, _, _ = tables.values[value]
                    low = max((done[number] * step + first) // per, 0)
                    high = min(((done[number] + size - 1) * step + last) // per + 1, extent)
                    if source >= 0 and low < high and done[source] < high:
                        stack[depth, 0], stack[depth, 1] = source, high
                        depth += 1
                        waits = True
                        break
                if not waits:
                    calls[count, 0], calls[count, 1], calls[count, 2] = number, done[number], size
                    count += 1
                    done[number] += size
    return count


@_compiled
def owners(tables, calls, end, done, owner, comparable):
    """Fill `owner` [v], the numbers of the values before: a sum takes the slots of its operand.

    `comparable` [o] is 1 where operand and sum have rows of the same bytes and planes, and is left 1 where
    the sum takes them: not where something reads them after the sum has written.
    """
    for i in range(len(calls)):
        operator = calls[i, 0]
        done[operator] += calls[i, 2]
        taken = tables.operators[operator, 3]
        if taken >= 0 and _low(tables, done, end, taken) < done[operator]:
            comparable[operator] = 0
    for operator in range(len(done)):
        if comparable[operator]:
            owner[tables.outputs[tables.first_out[operator]]] = owner[tables.operators[operator, 3]]


@_compiled
def trace(tables, calls, end, done, places, span, state, runs):
    """Slots of each ring, and the calls during which it holds rows; returns the number of runs.

    places [v, 2]: owner, see `owners`, and the next value in the same place or -1. span [v, 2] is room for
    the rows alive of each value, zero. state [v, 2]: the most rows of each ring, zero before, and where its
    open run began, -1 before. runs [m, 3]: owner, first and last call of each sequence of calls during which
    a ring holds rows.
    """
    count = 0
    for i in range(len(calls)):
        operator, begin, size = calls[i]
        touched = tables.touched[tables.first_touched[operator] : tables.first_touched[operator + 1]]
        # What is read is held until the call ends; what is written has a place even if nothing reads it.
        for value in touched:
            span[value, 0] = _low(tables, done, end, value)
            if tables.values[value, 1] == operator:
                span[value, 0] = min(span[value, 0], begin)
        done[operator] += size
        for value in touched:
            span[value, 1] = _high(tables, done, end, value)
        for value in touched:
            own = places[value, 0]
            rows = _rows_alive(places, span, own)
            state[own, 0] = max(state[own, 0], min(rows, 1) if tables.values[own, 3] else rows)
            if rows > 0 and state[own, 1] < 0:
                state[own, 1] = i
        for value in touched:
            span[value, 0] = _low(tables, done, end, value)
        for value in touched:
            own = places[value, 0]
            if state[own, 1] >= 0 and _rows_alive(places, span, own) == 0:
                runs[count, 0], runs[count, 1], runs[count, 2] = own, state[own, 1], i
                count += 1
                state[own, 1] = -1
    return count


@_compiled
def _rows_alive(places, span, own):
    """Rows between the first and the last alive of the values of one ring."""
    low, high = np.int64(1) << 60, np.int64(0)
    value = own
    while value >= 0:
        if span[value, 0] < span[value, 1]:
            low, high = min(low, span[value, 0]), max(high, span[value, 1])
        value = places[value, 1]
    return max(high - low, 0)


@_compiled
def most_live(tables, calls, end, done, row_bytes, scratch, comparable):
    """Most bytes of rows alive during one call, whole values as far as they are written and not freed.

    row_bytes [v] is 0 for what does not count; scratch [o]; comparable [o] as `owners` leaves it: a sum
    lies where its operand lay.
    """
    live, peak = np.int64(0), np.int64(0)
    for value in range(len(row_bytes)):
        if tables.values[value, 1] < 0:
            live += row_bytes[value] * _alive(tables, done, end, value)
    for i in range(len(calls)):
        operator, begin, size = calls[i]
        touched = tables.touched[tables.first_touched[operator] : tables.first_touched[operator + 1]]
        for value in touched:
            live -= _alive(tables, done, end, value) * row_bytes[value]
        during = np.int64(0)
        for value in touched:
            low = _low(tables, done, end, value)
            if tables.values[value, 1] == operator:
                rows = begin + size - min(low, begin)
                if tables.values[value, 3]:
                    rows = np.int64(1)
                taken = tables.operators[operator, 3] >= 0 and comparable[operator]
                if taken and value == tables.outputs[tables.first_out[operator]]:
                    rows -= size
            else:
                rows = _alive(tables, done, end, value)
            during += rows * row_bytes[value]
        peak = max(peak, live + during + scratch[operator])
        done[operator] += size
        for value in touched:
            live += _alive(tables, done, end, value) * row_bytes[value]
    return peak


@_compiled
def _alive(tables, done, end, value):
    """Rows of a value alive between calls."""
    rows = max(_high(tables, done, end, value) - _low(tables, done, end, value), 0)
    return min(rows, 1) if tables.values[value, 3] else rows
