"""Convex sub-graphs: which vertices of a directed acyclic graph can be run as one step, at most gain.

A set of vertices is convex when no path leaves it and comes back; sets that are contracted to a
vertex each must form no cycle. What a set gains is the sum over its vertices, less a cost for each
value that crosses its border. Vertices are numbers in a topological order, gains and costs are
integers. Where a candidate is not convex, or candidates wait for each other, the part of most gain is kept.
"""

import heapq
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.engine.partition.mincut import INFINITE, Network

LARGEST = 512  # vertices of a cycle that is untangled at once; a larger one is cut into such pieces
CUTS = 64  # minimum cuts that are spent on one part; the best that was found counts then
WORK = 20_000  # vertices times minimum cuts for all parts of a graph; levels separate the rest

Vertices: TypeAlias = frozenset[int]


@dataclass(frozen=True, slots=True)
class Crossing:
    """A value: what it costs a set that it leaves, or that it enters, once."""

    writer: int  # -1 where no vertex writes it
    readers: tuple[int, ...]  # -1 among them where something outside reads it
    cost: int


@dataclass(frozen=True, slots=True)
class Dag:
    """A graph with its costs.

    Attributes:
        successors: by vertex; all of them are larger numbers.
        gains: of each vertex in a set.
        crossings: every value that costs something.
    """

    successors: Sequence[Sequence[int]]
    gains: Sequence[int]
    crossings: Sequence[Crossing] = ()

    def value(self, part: Iterable[int]) -> int:
        """Gain of a set, crossings paid."""
        inside = frozenset(part)
        paid = sum(c.cost for c in self.crossings if len({(v in inside) for v in (c.writer, *c.readers)}) > 1)
        return sum(self.gains[v] for v in inside) - paid


def separated(dag: Dag, candidates: Sequence[Vertices]) -> list[Vertices]:
    """Sets within disjoint candidates: convex, free of cycles among them, each of value.

    Wishes that are on no cycle are taken as they are, but for what they are better off without. Of
    those that a cycle joins, the most valuable gives its most valuable convex part, and so on with
    what is left. The result is in order of the least vertex.
    """
    return sorted(_Separation(dag).of(candidates), key=min)


class _Separation:
    """Parts that are settled, and the work that may still be spent."""

    def __init__(self, dag: Dag) -> None:
        self.dag = dag
        self.work = WORK
        self.parts: list[Vertices] = []
        self.part: dict[int, int] = {}  # of vertices in settled parts: its number
        self.predecessors: list[list[int]] = [[] for _ in dag.successors]
        for v, after in enumerate(dag.successors):
            for s in after:
                self.predecessors[s].append(v)
        self.crossings: list[list[Crossing]] = [[] for _ in dag.successors]
        for c in dag.crossings:
            for v in {c.writer, *c.readers} - {-1}:
                self.crossings[v].append(c)

    def of(self, candidates: Sequence[Vertices]) -> list[Vertices]:
        """The parts."""
        pending = [(frozenset(range(len(self.dag.successors))), [w for w in candidates if w])]
        while pending:
            vertices, candidates = pending.pop()
            pending.extend(self._round(vertices, candidates))
        return self.parts

    def _round(
        self, vertices: Vertices, candidates: Sequence[Vertices]
    ) -> Iterable[tuple[Vertices, list[Vertices]]]:
        """Settle the candidates that no cycle joins to others; what is left to do, by cycle."""
        if not candidates:
            return
        # A candidate is a negative number.
        name = {v: ~i for i, candidate in enumerate(candidates) for v in candidate}
        inner, members = self._contracted(vertices, name)
        for component in _components(inner):
            joined = [candidates[~c] for c in component if c < 0]
            if len(component) == 1:
                for candidate in joined:
                    yield from self._taken(candidate)
            elif joined:
                inside = frozenset(v for c in component for v in members[c])
                yield inside, self._untangled(inside, joined)

    def _contracted(
        self, vertices: Iterable[int], name: Mapping[int, int]
    ) -> tuple[dict[int, set[int]], dict[int, list[int]]]:
        """The graph of some vertices with settled parts, and what has a name, as one vertex each."""
        offset = len(self.dag.successors)
        known: dict[int, int] = {}
        members: dict[int, list[int]] = {}
        for v in sorted(vertices):
            known[v] = name.get(v, self.part[v] + offset if v in self.part else v)
            members.setdefault(known[v], []).append(v)
        inner: dict[int, set[int]] = {c: set() for c in members}
        for v, c in known.items():
            inner[c].update(known[s] for s in self.dag.successors[v] if s in known)
        return inner, members

    def _taken(self, candidate: Vertices) -> Iterable[tuple[Vertices, list[Vertices]]]:
        """Settle a candidate that is convex, without what it is better off without."""
        gains = self.dag.gains
        if all(gains[v] >= sum(c.cost for c in self.crossings[v]) for v in candidate):
            self._settle(candidate)
            return
        pieces = self._cut(sorted(candidate), [candidate]) if len(candidate) > LARGEST else [candidate]
        for piece in pieces:
            part = self._best(piece, piece)
            if part:
                self._settle(part)
                rest = piece - part
                yield rest | part, self._connected(rest)

    def _untangled(self, inside: Vertices, joined: Sequence[Vertices]) -> list[Vertices]:
        """Settle the best part of one of the candidates that a cycle joins; what the others are then."""
        count = len({self.part.get(v, ~v) for v in inside})
        if count > LARGEST:
            return self._cut(self._ordered(inside), joined)
        if self.work <= 0:
            return self._by_level(inside, joined)
        first = max(joined, key=lambda w: (sum(self.dag.gains[v] for v in w), -min(w)))
        part = self._best(inside, first)
        others = [w for w in joined if w is not first]
        if not part:
            return others
        self._settle(part)
        return [*self._connected(first - part), *others]

    def _best(self, inside: Vertices, candidate: Vertices) -> Vertices:
        """The best convex part of a candidate among some vertices, those of settled parts as one."""
        inner, members = self._contracted(inside, {})
        order = _topological(inner)
        number = {v: i for i, c in enumerate(order) for v in members[c]}
        place = {c: i for i, c in enumerate(order)}
        gains = [self.dag.gains[c] if c in candidate else 0 for c in order]
        seen = {id(c): c for v in candidate for c in self.crossings[v]}
        crossings = [
            Crossing(number.get(c.writer, -1), tuple(number.get(r, -1) for r in c.readers), c.cost)
            for c in seen.values()
        ]
        successors = [[place[s] for s in inner[c] if s != c] for c in order]
        search = _Search(Dag(successors, gains, crossings), [place[v] for v in candidate])
        part, _, cuts = search.best(CUTS)
        self.work -= cuts * len(order)
        return frozenset(order[i] for i in part)

    def _settle(self, part: Vertices) -> None:
        seen = {id(c): c for v in part for c in self.crossings[v]}
        paid = sum(c.cost for c in seen.values() if len({v in part for v in (c.writer, *c.readers)}) > 1)
        if sum(self.dag.gains[v] for v in part) > paid:
            self.part.update(dict.fromkeys(part, len(self.parts)))
            self.parts.append(part)

    def _connected(self, vertices: Vertices) -> list[Vertices]:
        """The connected pieces of a set, in order of their least vertex."""
        left, found = set(vertices), []
        for start in sorted(vertices):
            if start not in left:
                continue
            left.discard(start)
            piece, stack = {start}, [start]
            while stack:
                v = stack.pop()
                for other in (*self.dag.successors[v], *self.predecessors[v]):
                    if other in left:
                        left.discard(other)
                        piece.add(other)
                        stack.append(other)
            found.append(frozenset(piece))
        return found

    def _ordered(self, inside: Vertices) -> list[int]:
        inner, members = self._contracted(inside, {})
        return [v for c in _topological(inner) for v in members[c]]

    def _cut(self, order: Sequence[int], candidates: Sequence[Vertices]) -> list[Vertices]:
        """Wishes cut into pieces of so many vertices in a topological order, which no cycle can join."""
        pieces = []
        size = LARGEST // 2
        for first in range(0, len(order), size):
            window = frozenset(order[first : first + size])
            pieces += [p for w in candidates for p in self._connected(w & window)]
        return pieces

    def _by_level(self, inside: Vertices, candidates: Sequence[Vertices]) -> list[Vertices]:
        """Wishes cut where any path changes into or out of a candidate: cheap, never on a cycle."""
        name = {v: i for i, w in enumerate(candidates) for v in w}
        inner, members = self._contracted(inside, {})
        kind = {c: name.get(members[c][0], -1) for c in inner}
        level = dict.fromkeys(inner, 0)
        for c in _topological(inner):
            for s in inner[c]:
                if s != c:
                    level[s] = max(level[s], level[c] + (kind[s] != kind[c]))
        pieces: dict[tuple[int, int], set[int]] = {}
        for c, found in members.items():
            if kind[c] >= 0:
                pieces.setdefault((kind[c], level[c]), set()).update(found)
        return [p for _, piece in sorted(pieces.items()) for p in self._connected(frozenset(piece))]


def _topological(inner: Mapping[int, Iterable[int]]) -> list[int]:
    """Vertices so that edges lead forward, always the least that may come."""
    waiting = dict.fromkeys(inner, 0)
    for v, after in inner.items():
        for s in after:
            waiting[s] += s != v
    ready = [v for v, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        v = heapq.heappop(ready)
        order.append(v)
        for s in inner[v]:
            if s != v:
                waiting[s] -= 1
                if not waiting[s]:
                    heapq.heappush(ready, s)
    assert len(order) == len(inner), "settled parts form a cycle"
    return order


def _components(inner: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """Strongly connected components.

    Source: Tarjan, 1972, "Depth-first search and linear graph algorithms", without recursion.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    waiting: list[int] = []
    open_: set[int] = set()
    found: list[list[int]] = []
    for start in inner:
        if start in index:
            continue
        index[start] = low[start] = len(index)
        waiting.append(start)
        open_.add(start)
        path = [(start, iter(sorted(inner[start])))]
        while path:
            v, after = path[-1]
            for s in after:
                if s not in index:
                    index[s] = low[s] = len(index)
                    waiting.append(s)
                    open_.add(s)
                    path.append((s, iter(sorted(inner[s]))))
                    break
                if s in open_:
                    low[v] = min(low[v], index[s])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[v])
                if low[v] == index[v]:
                    component = []
                    while True:
                        s = waiting.pop()
                        open_.discard(s)
                        component.append(s)
                        if s == v:
                            break
                    found.append(component)
    return found


class _Search:
    """Branch and bound for the convex subset of a candidate of most value; empty where none has any.

    Without regard to convexity a minimum cut finds the best subset. A vertex between two members and
    outside itself tells what to branch on: what comes before it is left out, or what comes after it,
    or it is taken in. When the minimum cuts that are allowed are spent, the best subset so far counts.

    Source: Land and Doig, 1960, "An automatic method of solving discrete programming problems".
    """

    def __init__(self, dag: Dag, candidate: Iterable[int]) -> None:
        self.dag = dag
        self.candidate = sorted(candidate)
        self.members = frozenset(self.candidate)
        self.after, self.before = _reach(dag.successors)
        self.crossings = [
            c for c in dag.crossings if c.writer in self.members or not self.members.isdisjoint(c.readers)
        ]

    def best(self, allowed: int) -> tuple[Vertices, int, int]:
        """The subset, its value, and how many cuts it took."""
        order = itertools.count()
        least: tuple[Vertices, int] = (frozenset(), 0)
        part, bound = self.relaxed(frozenset(), frozenset())
        cuts = 1
        open_ = [(-bound, next(order), part, frozenset[int](), frozenset[int]())]
        while open_ and -open_[0][0] > least[1]:
            negative, _, part, out, forced = heapq.heappop(open_)
            between = self.between(part)
            if not between:
                least = part, -negative
                break
            rounded = self.rounded(part)
            if (value := self.value(rounded)) > least[1]:
                least = rounded, value
            if cuts >= allowed:
                break
            pivot = next((v for v in between if v not in self.members), between[0])
            branches = [
                (out | (self.members & _numbers(self.before[pivot])), forced),
                (out | (self.members & _numbers(self.after[pivot])), forced),
            ]
            if pivot in self.members and pivot not in out:
                branches.append((out, forced | {pivot}))
            for out_, forced_ in branches:
                if out_ & forced_:
                    continue
                part, bound = self.relaxed(out_, forced_)
                cuts += 1
                if bound > least[1]:
                    heapq.heappush(open_, (-bound, next(order), part, out_, forced_))
        return *least, cuts

    def relaxed(self, out: Vertices, forced: Vertices) -> tuple[Vertices, int]:
        """The best subset, convex or not, without `out` and with `forced`; and its value."""
        network = Network()
        most = 0

        def place(vertex: int) -> object:
            return vertex if vertex in self.members and vertex not in out else "out"

        for vertex in self.candidate:
            if vertex in out:
                continue
            gain = self.dag.gains[vertex]
            most += max(gain, 0)
            network.add("in", vertex, INFINITE if vertex in forced else gain)
            network.add(vertex, "out", -gain)
        for i, c in enumerate(self.crossings):
            network.add_shared(place(c.writer), [place(v) for v in c.readers], ("value", i), c.cost)
        side = network.source_side("in", "out")
        return frozenset(v for v in self.candidate if v in side), most - network.flow

    def between(self, part: Vertices) -> list[int]:
        """Vertices outside on paths from the part to itself."""
        up = down = inside = 0
        for v in part:
            up |= self.after[v]
            down |= self.before[v]
            inside |= 1 << v
        return sorted(_numbers(up & down & ~inside))

    def rounded(self, part: Vertices) -> Vertices:
        """A convex subset: of what is before a vertex between and what is after, the better is kept."""
        while between := self.between(part):
            pivot = between[len(between) // 2]
            sides = (part - _numbers(self.before[pivot]), part - _numbers(self.after[pivot]))
            part = max(sides, key=lambda side: (self.value(side), len(side)))
        return part

    def value(self, part: Vertices) -> int:
        """As `Dag.value`."""
        paid = sum(c.cost for c in self.crossings if len({v in part for v in (c.writer, *c.readers)}) > 1)
        return sum(self.dag.gains[v] for v in part) - paid


def _reach(successors: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """By vertex the sets of those that it reaches, and of those that reach it, as bits."""
    count = len(successors)
    after, before = [0] * count, [0] * count
    for v in reversed(range(count)):
        for s in successors[v]:
            after[v] |= after[s] | 1 << s
    for v in range(count):
        for s in successors[v]:
            before[s] |= before[v] | 1 << v
    return after, before


def _numbers(bits: int) -> frozenset[int]:
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return frozenset(found)
