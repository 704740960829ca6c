"""Seeded faults of emitted addresses, each of which a checker must reject: `python -m tests.engine.memory.rows.faults`.

Every fault breaks something by its construction: it is built around a row that is certainly needed.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from app.engine.memory.rows.emit import emit
from app.engine.memory.rows.geometry import Segment
from app.engine.memory.rows.replay import Access, EmittedCall, ReplayError
from app.engine.memory.rows.replay import replay as check
from app.engine.memory.rows.workspace import Workspace
from tests.engine.memory.rows.networks import addressed, random_segment

Calls = tuple[EmittedCall, ...]


@dataclass(frozen=True)
class Case:
    """A segment with right addresses."""

    segment: Segment
    placed: Workspace
    calls: Calls
    whole: dict[str, int]
    nbytes: int

    def readers(self, access: Access) -> list[int]:
        """Calls that read the row, plane by plane."""
        return [i for i, c in enumerate(self.calls) if access[:3] in {r[:3] for r in c.reads}]


def short_ring(case: Case, random: Random) -> Calls | None:
    """All rows of one ring in a ring that is a row shorter."""
    rings = [i for i, r in enumerate(case.placed.schedule.rings) if r.rows > 1 and not r.transient]
    if not rings:
        return None
    at = random.choice(rings)
    shorter = list(case.placed.schedule.rings)
    shorter[at] = replace(shorter[at], rows=shorter[at].rows - 1)
    schedule = replace(case.placed.schedule, rings=tuple(shorter))
    return tuple(emit(replace(case.placed, schedule=schedule), case.whole))


def wrong_slot(case: Case, random: Random) -> Calls | None:
    """One operand read one slot further on."""
    at = random.randrange(len(case.calls))
    call = case.calls[at]
    if not call.reads:
        return None
    reads = list(call.reads)
    k = random.randrange(len(reads))
    reads[k] = reads[k]._replace(offset=reads[k].offset + random.choice((-1, 1)) * reads[k].nbytes)
    return _with(case.calls, at, call._replace(reads=tuple(reads)))


def wrong_write(case: Case, random: Random) -> Calls | None:
    """One row that something reads, written a slot away from where it is read."""
    at = random.randrange(len(case.calls))
    call = case.calls[at]
    k = random.randrange(len(call.writes))
    row = call.writes[k]
    if case.segment.by_name[row.value].accumulated or not case.readers(row):
        return None
    writes = list(call.writes)
    writes[k] = row._replace(offset=row.offset + random.choice((-1, 1)) * row.nbytes)
    return _with(case.calls, at, call._replace(writes=tuple(writes)))


def early_free(case: Case, random: Random) -> Calls | None:
    """A row written over another that is read later, and read from there: as if that one had been freed early."""
    at = random.randrange(len(case.calls))
    call = case.calls[at]
    new = random.choice(call.writes)
    if case.segment.by_name[new.value].accumulated or new.value in case.segment.outputs:
        return None
    later = {
        r for c in case.calls[at + 1 :] for r in c.reads if not case.segment.by_name[r.value].accumulated
    }
    earlier = {w[:3] for c in case.calls[:at] for w in c.writes}
    alive = sorted(r for r in later if r[:3] in earlier and r.nbytes == new.nbytes and r[:3] != new[:3])
    if not alive:
        return None
    offset = random.choice(alive).offset
    return tuple(_moved(c, new, offset) for c in case.calls)


def lost_halo(case: Case, random: Random) -> Calls | None:
    """A call without one of the rows that it must read."""
    at = random.randrange(len(case.calls))
    call = case.calls[at]
    if not call.reads:
        return None
    k = random.randrange(len(call.reads))
    return _with(case.calls, at, call._replace(reads=call.reads[:k] + call.reads[k + 1 :]))


def late_halo(case: Case, random: Random) -> Calls | None:
    """A call before the one that computes a row for it."""
    pairs = [
        i
        for i, (a, b) in enumerate(zip(case.calls, case.calls[1:], strict=False))
        if {w[:3] for w in a.writes} & {r[:3] for r in b.reads}
    ]
    if not pairs:
        return None
    i = random.choice(pairs)
    return (*case.calls[:i], case.calls[i + 1], case.calls[i], *case.calls[i + 2 :])


def residual_slot(case: Case, random: Random) -> Calls | None:
    """A sum over an operand's row of another number: one that the same call, or a later one, reads."""
    sums = [i for i, c in enumerate(case.calls) if case.segment.operators[c.operator].takes is not None]
    if not sums:
        return None
    at = random.choice(sums)
    call = case.calls[at]
    taken = case.segment.operators[call.operator].takes
    y = next(w for w in call.writes if w.value == case.segment.operators[call.operator].outputs[0])
    later = {r for c in case.calls[at:] for r in c.reads if r.value == taken and r.row != y.row}
    here = {w[:3] for c in case.calls[:at] for w in c.writes}
    wrong = sorted(
        r for r in later if (r[:3] in here or taken in case.segment.inputs) and r.nbytes == y.nbytes
    )
    if not wrong:
        return None
    return tuple(_moved(c, y, random.choice(wrong).offset) if c is call else c for c in case.calls)


def lost_row(case: Case, random: Random) -> Calls | None:
    """A call that is left out."""
    at = random.randrange(len(case.calls))
    rest = case.calls[at + 1 :]
    needed = {a[:3] for c in rest for a in c.reads} | {
        w[:3] for w in case.calls[at].writes if w.value in case.segment.outputs
    }
    same = any(c.operator == case.calls[at].operator for c in rest)
    if not same and not needed & {w[:3] for w in case.calls[at].writes}:
        return None
    return case.calls[:at] + rest


FAULTS: tuple[Callable[[Case, Random], Calls | None], ...] = (
    short_ring,
    wrong_slot,
    wrong_write,
    early_free,
    lost_halo,
    late_halo,
    residual_slot,
    lost_row,
)


def _with(calls: Calls, at: int, call: EmittedCall) -> Calls:
    return (*calls[:at], call, *calls[at + 1 :])


def _moved(call: EmittedCall, row: Access, offset: int) -> EmittedCall:
    """The call with every access to a plane of a row elsewhere."""

    def moved(accesses: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(a._replace(offset=offset) if a[:3] == row[:3] else a for a in accesses)

    return call._replace(reads=moved(call.reads), writes=moved(call.writes))


def survivors(count: int) -> tuple[Counter[str], list[str]]:
    """Faults tried by kind, and those that the checker accepted; seeds are 0, 1, ... until `count` are tried."""
    tried: Counter[str] = Counter()
    accepted = []
    seed = 0
    while sum(tried.values()) < count:
        segment = random_segment(seed)
        case = Case(segment, *addressed(segment))
        check(segment, case.calls, case.whole, case.nbytes)
        random = Random(seed)
        for fault in FAULTS:
            broken = fault(case, random)
            if broken is None:
                continue
            tried[fault.__name__] += 1
            try:
                check(segment, broken, case.whole, case.nbytes)
            except ReplayError:
                continue
            accepted.append(f"{fault.__name__}, seed {seed}")
        seed += 1
    return tried, accepted


if __name__ == "__main__":
    tried, accepted = survivors(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    for kind, number in sorted(tried.items()):
        print(f"{kind:14} {number}")
    print(f"{sum(tried.values())} faults, accepted: {accepted or 'none'}")
    sys.exit(bool(accepted))
