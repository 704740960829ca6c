"""Multiple-choice knapsack: one option for each item, least cost, within a budget of weight.

The relaxation that may mix two options of an item is solved exactly along the lower convex hulls of the
options (Sinha and Zoltners, 1979, Operations Research 27(3): 503-515); branch and bound closes the gap, as
far as its limit of nodes lets it, and what remains is told.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

NODES = 20_000  # branches that are looked at; each costs a sum over the items below it
# Relative slack of sums of floats, in which a budget counts as met.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Option:
    """An option of an item; neither number is negative or NaN, a weight may be infinite."""

    cost: float
    weight: float


Items: TypeAlias = Sequence[Sequence[Option]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice.

    Attributes:
        indices: of the option taken, by item.
        cost: of all.
        weight: of all.
        bound: cost below which no choice within the budget stays.
    """

    indices: tuple[int, ...]
    cost: float
    weight: float
    bound: float

    @property
    def gap(self) -> float:
        """Share of the cost that a better choice could save at most."""
        return max(self.cost - self.bound, 0.0) / self.cost if self.cost else 0.0


def choose(items: Items, budget: float, nodes: int = NODES) -> Chosen | None:
    """The choice of least cost whose weight is within the budget; None where there is none.

    Equal costs are decided by the order of options. Deterministic: the limit is of nodes, not of time.
    """
    hulls = [_hull(options) for options in items]
    if any(not hull for hull in hulls):
        return None
    search = _Search(items, hulls, budget * (1 + ROUNDING), nodes)
    if math.fsum(items[i][hull[0]].weight for i, hull in enumerate(hulls)) > search.budget:
        return None
    search.run()
    indices = tuple(search.best)
    cost = math.fsum(items[i][k].cost for i, k in enumerate(indices))
    weight = math.fsum(items[i][k].weight for i, k in enumerate(indices))
    return Chosen(indices, cost, weight, min(search.bound, cost))


def _undominated(options: Sequence[Option]) -> list[int]:
    """Options of which none is both lighter and cheaper, the lightest first."""
    found: list[int] = []
    order = sorted(range(len(options)), key=lambda k: (options[k].weight, options[k].cost, k))
    for k in order:
        if math.isfinite(options[k].weight) and (not found or options[k].cost < options[found[-1]].cost):
            found.append(k)
    return found


def _hull(options: Sequence[Option]) -> list[int]:
    """Options on the lower convex hull of (weight, cost), the lightest first."""
    hull: list[int] = []
    for k in _undominated(options):
        while len(hull) > 1 and _slope(options, hull[-2], k) <= _slope(options, hull[-2], hull[-1]):
            hull.pop()
        hull.append(k)
    return hull


def _slope(options: Sequence[Option], a: int, b: int) -> float:
    """Change of cost by weight, negative."""
    return (options[b].cost - options[a].cost) / (options[b].weight - options[a].weight)


@dataclass(frozen=True, slots=True)
class _Move:
    """A step along a hull: what it saves a unit of weight, and its item and place there."""

    slope: float
    item: int
    place: int
    weight: float
    saved: float


@dataclass(frozen=True, slots=True)
class _Branch:
    """Options of the first `depth` items: their cost and weight, and a bound on the cost of all."""

    bound: float
    depth: int
    weight: float
    cost: float
    option: int  # of the last of them


class _Search:
    """Depth-first branch and bound over items in a fixed order; bounds by the relaxation of those left."""

    def __init__(self, items: Items, hulls: list[list[int]], budget: float, nodes: int) -> None:
        self._items, self.budget, self._left = items, budget, nodes
        self._options = [_undominated(options) for options in items]
        # Items that could save most come first: their options decide the most.
        spread = [items[i][hull[0]].cost - items[i][hull[-1]].cost for i, hull in enumerate(hulls)]
        self._order = sorted(range(len(items)), key=lambda i: (-spread[i], i))
        depth = {item: at for at, item in enumerate(self._order)}
        moves = [
            _Move(
                _slope(items[i], a, b), i, at, items[i][b].weight - items[i][a].weight,
                items[i][a].cost - items[i][b].cost,
            )
            for i, hull in enumerate(hulls)
            for at, (a, b) in enumerate(pairwise(hull))
        ]  # fmt: skip
        moves.sort(key=lambda m: (m.slope, m.item, m.place))
        # Of the items from each depth on: sums of the moves, best first, and weight and cost of the lightest.
        self._moves = [[m for m in moves if depth[m.item] >= at] for at in range(len(items) + 1)]
        self._sums = [_running(part) for part in self._moves]
        self._base = [_lightest(items, hulls, self._order[at:]) for at in range(len(items) + 1)]
        self._hulls = hulls
        self._taken = [hull[0] for hull in hulls]
        self.best = list(self._taken)
        self._least = math.inf
        self.bound = math.inf  # cost below which no choice stays

    def run(self) -> None:
        """Find the best choice, or as good a one as the limit of nodes allows."""
        self._greedy()
        unseen = self._explore()
        self.bound = min(unseen, self._least)

    def _greedy(self) -> None:
        """Begin with the moves that fit, best first."""
        places = [0] * len(self._items)
        weight, cost = self._base[0]
        for move in self._moves[0]:
            if places[move.item] == move.place and weight + move.weight <= self.budget:
                weight, cost = weight + move.weight, cost - move.saved
                places[move.item] += 1
        self.best = [hull[place] for hull, place in zip(self._hulls, places, strict=True)]
        self._least = cost

    def _relaxed(self, at: int, weight: float, cost: float) -> float:
        """Cost below which nothing stays that begins so; infinite where nothing fits."""
        light, dear = self._base[at]
        room = self.budget - weight - light
        if room < 0:
            return math.inf
        weights, saved = self._sums[at]
        whole = bisect_right(weights, room)
        gained = saved[whole - 1] if whole else 0.0
        if whole < len(weights):
            begun = weights[whole - 1] if whole else 0.0
            gained += (room - begun) * -self._moves[at][whole].slope
        return cost + dear - gained

    def _explore(self) -> float:
        """Visit branches, depth first and the most promising first; the least bound of those left out."""
        stack = [_Branch(self._relaxed(0, 0.0, 0.0), 0, 0.0, 0.0, -1)]
        unseen = math.inf
        while stack:
            branch = stack.pop()
            at = branch.depth
            if at:
                self._taken[self._order[at - 1]] = branch.option
            if branch.bound >= self._least * (1 - ROUNDING):
                continue
            if at == len(self._order):
                self._least, self.best = branch.cost, list(self._taken)
                continue
            if self._left <= 0:
                unseen = min(unseen, branch.bound)
                continue
            self._left -= 1
            stack += self._branches(branch)
        return unseen

    def _branches(self, branch: _Branch) -> list[_Branch]:
        """The options of the next item, the most promising last."""
        item, at = self._order[branch.depth], branch.depth + 1
        found = []
        for k in self._options[item]:
            weight = branch.weight + self._items[item][k].weight
            cost = branch.cost + self._items[item][k].cost
            found.append(_Branch(self._relaxed(at, weight, cost), at, weight, cost, k))
        return sorted((b for b in found if b.bound < math.inf), key=lambda b: (-b.bound, -b.option))


def _running(moves: Sequence[_Move]) -> tuple[list[float], list[float]]:
    """Running sums of weights and of costs saved."""
    weights, saved, total, gained = [], [], 0.0, 0.0
    for move in moves:
        total, gained = total + move.weight, gained + move.saved
        weights.append(total)
        saved.append(gained)
    return weights, saved


def _lightest(items: Items, hulls: list[list[int]], of: Sequence[int]) -> tuple[float, float]:
    chosen = [items[i][hulls[i][0]] for i in of]
    return math.fsum(o.weight for o in chosen), math.fsum(o.cost for o in chosen)
