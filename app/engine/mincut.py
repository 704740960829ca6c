"""Minimum s-t cut of a directed graph with integer capacities.

Source: Dinic, 1970, "Algorithm for solution of a problem of maximum flow in a network with power
estimation". Shortest augmenting paths by breadth-first levels, depth-first blocking flows, without
recursion; the order of edges decides ties, so the cut is deterministic.
"""

from collections import deque
from collections.abc import Hashable, Iterable

INFINITE = 1 << 62


class Network:
    """Vertices are any hashable; parallel edges add up.

    `flow` is the capacity of the cut, once it was asked for.
    """

    def __init__(self) -> None:
        self.flow = 0
        self._index: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # by vertex: numbers of edges that leave it
        self._head: list[int] = []
        self._left: list[int] = []  # capacity; edge i ^ 1 is the reverse of edge i

    def _vertex(self, name: Hashable) -> int:
        if name not in self._index:
            self._index[name] = len(self._edges)
            self._edges.append([])
        return self._index[name]

    def add(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """An edge that costs `capacity` when `tail` is on the source's side and `head` is not."""
        if capacity <= 0:
            return
        a, b = self._vertex(tail), self._vertex(head)
        for start, end, amount in ((a, b, capacity), (b, a, 0)):
            self._edges[start].append(len(self._head))
            self._head.append(end)
            self._left.append(amount)

    def add_shared(
        self, writer: Hashable, readers: Iterable[Hashable], name: Hashable, capacity: int
    ) -> None:
        """Cost `capacity` once when any reader is on another side than the writer, in each direction.

        `name` is one that no other call has.
        """
        different = tuple(dict.fromkeys(readers))
        if len(different) == 1:  # most values have one reader: no vertex of their own
            self.add(writer, different[0], capacity)
            self.add(different[0], writer, capacity)
            return
        there, back = (name, "there"), (name, "back")
        self.add(writer, there, capacity)
        self.add(back, writer, capacity)
        for reader in different:
            self.add(there, reader, INFINITE)
            self.add(reader, back, INFINITE)

    def source_side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The vertices on the source's side of a minimum cut: as few as any has."""
        s, t = self._vertex(source), self._vertex(sink)
        level = self._levels(s)
        while level[t] >= 0:
            self._block(s, t, level)
            level = self._levels(s)
        return {name for name, i in self._index.items() if level[i] >= 0}

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self._edges)
        level[source] = 0
        queue = deque([source])
        while queue:
            vertex = queue.popleft()
            for edge in self._edges[vertex]:
                head = self._head[edge]
                if self._left[edge] > 0 and level[head] < 0:
                    level[head] = level[vertex] + 1
                    queue.append(head)
        return level

    def _block(self, source: int, sink: int, level: list[int]) -> None:
        """Saturate every shortest path."""
        place = [0] * len(self._edges)
        path: list[int] = []
        vertex = source
        while True:
            if vertex == sink:
                amount = min(self._left[e] for e in path)
                self.flow += amount
                for edge in path:
                    self._left[edge] -= amount
                    self._left[edge ^ 1] += amount
                first = next(i for i, e in enumerate(path) if self._left[e] == 0)
                vertex = self._head[path[first] ^ 1]
                del path[first:]
                continue
            edges = self._edges[vertex]
            while place[vertex] < len(edges):
                edge = edges[place[vertex]]
                head = self._head[edge]
                if self._left[edge] > 0 and level[head] == level[vertex] + 1:
                    break
                place[vertex] += 1
            if place[vertex] < len(edges):
                path.append(edges[place[vertex]])
                vertex = self._head[path[-1]]
            elif path:
                level[vertex] = -1
                vertex = self._head[path.pop() ^ 1]
            else:
                return
