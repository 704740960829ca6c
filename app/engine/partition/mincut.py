"""Minimum s-t cut of a directed graph with integer capacities.

Vertices with two neighbours or fewer are decided by dynamic programming: what such a vertex costs at
its best depends on the sides of its neighbours alone, and is an edge between them. Chains and
series-parallel graphs vanish that way, in linear time. What is left is cut as Dinic does: shortest
augmenting paths by breadth-first distances from the sink, depth-first blocking flows, without recursion.

Sources: Dinic, 1970, "Algorithm for solution of a problem of maximum flow in a network with power
estimation"; Bertele and Brioschi, 1972, "Nonserial dynamic programming".
"""

from collections.abc import Hashable, Iterable, Mapping

INFINITE = 1 << 72


class Network:
    """Vertices are any hashable; parallel edges add up.

    `flow` is the capacity of the cut, once it was asked for. Capacities are counted in halves: a value
    with two readers is three edges of half its capacity.
    """

    def __init__(self) -> None:
        self._halves = 0
        self._index: dict[Hashable, int] = {}
        # By vertex: capacities of edges to its neighbours; each of two neighbours has the other.
        self._edges: list[dict[int, int]] = []

    @property
    def flow(self) -> int:
        """The capacity of the cut that was asked for."""
        return self._halves // 2

    def _vertex(self, name: Hashable) -> int:
        found = self._index.get(name)
        if found is None:
            found = self._index[name] = len(self._edges)
            self._edges.append({})
        return found

    def _connect(self, a: int, b: int, halves: int) -> None:
        if halves > 0 and a != b:
            self._edges[a][b] = self._edges[a].get(b, 0) + halves
            self._edges[b].setdefault(a, 0)

    def add(self, tail: Hashable, head: Hashable, capacity: int) -> None:
        """An edge that costs `capacity` when `tail` is on the source's side and `head` is not."""
        if capacity > 0:
            self._connect(self._vertex(tail), self._vertex(head), 2 * capacity)

    def add_shared(
        self, writer: Hashable, readers: Iterable[Hashable], name: Hashable, capacity: int
    ) -> None:
        """Cost `capacity` once when any reader is on another side than the writer, in each direction.

        `name` is one that no other call has.
        """
        if capacity <= 0:
            return
        different = [self._vertex(v) for v in dict.fromkeys(readers) if v != writer]
        if not different:
            return
        first = self._vertex(writer)
        if len(different) <= 2:  # most values: of three vertices on two sides, two pairs are apart
            halves = 2 * capacity // len(different)
            ends = [first, *different]
            for i, a in enumerate(ends):
                for b in ends[i + 1 :]:
                    self._connect(a, b, halves)
                    self._connect(b, a, halves)
            return
        there, back = self._vertex((name, "there")), self._vertex((name, "back"))
        self._connect(first, there, 2 * capacity)
        self._connect(back, first, 2 * capacity)
        for reader in different:
            self._connect(there, reader, INFINITE)
            self._connect(reader, back, INFINITE)

    def source_side(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The vertices on the source's side of a minimum cut: as few as any has."""
        s, t = self._vertex(source), self._vertex(sink)
        eliminated = self._eliminate(s, t)
        gone = {vertex for vertex, _ in eliminated}
        flow = _Flow(self._edges, gone)
        self._halves += flow.saturate(s, t)
        inside = flow.reached(s)
        for vertex, edges in reversed(eliminated):
            here = sum(amount for head, amount in edges.items() if not inside[head])
            there = sum(self._edges[tail][vertex] for tail in edges if inside[tail])
            inside[vertex] = here < there
        return {name for name, i in self._index.items() if inside[i]}

    def _eliminate(self, s: int, t: int) -> list[tuple[int, Mapping[int, int]]]:
        """Take out vertices with at most two neighbours besides the ends; what each had, in order.

        The edges towards an eliminated vertex stay, those from it are in the result.
        """
        edges = self._edges
        order: list[tuple[int, Mapping[int, int]]] = []
        gone = [False] * len(edges)
        degree = [len(own) - (s in own) - (t in own) for own in edges]
        waiting = [v for v in range(len(edges)) if degree[v] <= 2 and v not in (s, t)]
        waiting.reverse()
        while waiting:
            v = waiting.pop()
            if gone[v] or degree[v] > 2:
                continue
            own = {u: amount for u, amount in edges[v].items() if not gone[u]}
            gone[v] = True
            order.append((v, own))
            near = [u for u in own if u not in (s, t)]
            apart = len(near) == 2 and near[1] not in edges[near[0]]
            self._replace(v, own, near, s, t)
            joined = apart and near[1] in edges[near[0]]
            for u in near:
                degree[u] -= 1 - joined
            waiting += [u for u in near if degree[u] <= 2]
        return order

    def _replace(self, v: int, own: Mapping[int, int], near: list[int], s: int, t: int) -> None:
        """Add what a vertex costs at its best, by the sides of its neighbours."""
        edges = self._edges
        kept, left = own.get(t, 0), edges[s].get(v, 0)  # cost on the source's side, and on the other

        def least(*inside: bool) -> int:
            here, there = kept, left
            for u, on_source in zip(near, inside):
                if on_source:
                    there += edges[u][v]
                else:
                    here += own[u]
            return min(here, there)

        if not near:
            self._halves += least()
        elif len(near) == 1:
            self._unary(near[0], least(True) - (nothing := least(False)), s, t)
            self._halves += nothing
        else:
            a, b = near
            neither, first, second, both = (
                least(False, False), least(True, False), least(False, True), least(True, True)
            )  # fmt: skip
            # f(a, b) = neither + (first - neither) a + (both - first) b + slack (1 - a) b, slack >= 0.
            self._halves += neither
            self._unary(a, first - neither, s, t)
            self._unary(b, both - first, s, t)
            self._connect(b, a, first + second - neither - both)

    def _unary(self, vertex: int, inside: int, s: int, t: int) -> None:
        """Added cost of a vertex on the source's side; a negative one becomes a constant."""
        if inside > 0:
            self._connect(vertex, t, inside)
        elif inside < 0:
            self._connect(s, vertex, -inside)
            self._halves += inside


class _Flow:
    """Dinic's algorithm over the vertices that are left."""

    def __init__(self, edges: list[dict[int, int]], gone: set[int]) -> None:
        self._head: list[int] = []
        self._left: list[int] = []  # capacity; edge i ^ 1 is the reverse of edge i
        self._edges: list[list[int]] = [[] for _ in edges]  # by vertex: numbers of edges that leave it
        for a, own in enumerate(edges):
            if a in gone:
                continue
            for b, amount in own.items():
                if a < b and b not in gone:
                    number = len(self._head)
                    self._head += (b, a)
                    self._left += (amount, edges[b][a])
                    self._edges[a].append(number)
                    self._edges[b].append(number + 1)

    def saturate(self, s: int, t: int) -> int:
        """The largest flow."""
        flow = 0
        while (distance := self._distances(s, t))[s] > 0:
            flow += self._block(s, t, distance)
        return flow

    def reached(self, s: int) -> list[bool]:
        """True if more could flow to each vertex."""
        found = [False] * len(self._edges)
        found[s] = True
        waiting = [s]
        while waiting:
            for edge in self._edges[waiting.pop()]:
                head = self._head[edge]
                if self._left[edge] > 0 and not found[head]:
                    found[head] = True
                    waiting.append(head)
        return found

    def _distances(self, source: int, sink: int) -> list[int]:
        """Edges between each vertex and the sink, of vertices no farther than the source; -1 of others."""
        edges, heads, left = self._edges, self._head, self._left
        distance = [-1] * len(edges)
        distance[sink] = 0
        nearest = [sink]
        while nearest and distance[source] < 0:
            following = []
            for vertex in nearest:
                for edge in edges[vertex]:
                    tail = heads[edge]
                    if distance[tail] < 0 and left[edge ^ 1] > 0:
                        distance[tail] = distance[vertex] + 1
                        following.append(tail)
            nearest = following
        return distance

    def _block(self, source: int, sink: int, distance: list[int]) -> int:
        """Saturate every shortest path; how much flows through them."""
        every, heads, left = self._edges, self._head, self._left
        place = [0] * len(every)
        path: list[int] = []
        vertex, flow = source, 0
        while True:
            if vertex == sink:
                amount = min([left[e] for e in path])
                flow += amount
                for edge in path:
                    left[edge] -= amount
                    left[edge ^ 1] += amount
                first = next(i for i, e in enumerate(path) if left[e] == 0)
                vertex = heads[path[first] ^ 1]
                del path[first:]
                continue
            edges, at, nearer = every[vertex], place[vertex], distance[vertex] - 1
            while at < len(edges) and not (distance[heads[edges[at]]] == nearer and left[edges[at]] > 0):
                at += 1
            place[vertex] = at
            if at < len(edges):
                path.append(edges[at])
                vertex = heads[edges[at]]
            elif path:
                distance[vertex] = -1
                vertex = heads[path.pop() ^ 1]
            else:
                return flow
