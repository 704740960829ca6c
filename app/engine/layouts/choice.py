"""Layouts of all groups: the labelling of least predicted or measured seconds.

There are three levels: channels last, row-major, blocked. Every group is labelled twice, with the level
at which it reads and that at which it writes; a row of an implementation stands for one pair of levels.
A value that is written at one level and read at another is converted by one step for each level between
them, and once for all such readers. So costs of conversions are convex in the levels, and two thresholds
(above channels last, above row-major) cut a graph of twice the size: the energy of a labelling, groups
and conversions, is mostly submodular in pairs, and a minimum cut finds its minimum (Kolmogorov and
Zabih, 2004, "What energy functions can be minimized via graph cuts?"; Ishikawa, 2003, "Exact
optimization for Markov random fields with convex priors"). What is not is bounded from below and decided
by branch and bound: a group that reads at several levels at great cost, or whose rows disagree about what
they read. `options`: the alternatives of a group; `energy`: seconds of labellings and their cuts.
"""

import heapq
import itertools
from collections.abc import Mapping
from typing import Literal

from app.engine.core.group import Group
from app.engine.core.plan import Compilation
from app.engine.core.registry import PlanningContext
from app.engine.layouts.energy import Assignment, Energy, Labelling
from app.engine.layouts.options import BLOCKED, LAST, PLAIN, SECOND, LayoutOption, Levels, layout_options

WORK = 20_000  # groups times minimum cuts that are spent on what one cut cannot decide
LARGE = 150  # groups from which fewer are spent: a second of cuts is much for a graph of a thousand

Policy = Literal["joint", "plain", "blocked", "last", "greedy"]


def choose(compilation: Compilation, context: PlanningContext, policy: Policy = "joint") -> Assignment:
    """The layouts of least predicted cost, conversions included.

    Other policies than `joint` are there to compare with: all row-major, all blocked or all channels
    last that can be, and every group by its own cheapest row.
    """
    alike = policy in ("joint", "greedy")
    every = {
        group: layout_options(group, compilation, context, alike=alike) for group in compilation.plan.groups
    }
    if not any(option.required_layouts for found in every.values() for option in found.options):
        return Assignment({group: {} for group in every})
    energy = Energy(every, compilation, context)
    if policy == "joint":
        return branch_and_bound(energy)
    wanted = {"plain": PLAIN, "blocked": BLOCKED, "last": LAST}.get(policy)

    def preference(option: LayoutOption) -> tuple[float, ...]:
        # What cannot be had at the level that is wanted is row-major.
        return (
            -option.levels.count(wanted),
            -option.levels.count(PLAIN),
            option.seconds,
        ) if wanted is not None else (option.seconds,)  # fmt: skip

    return energy.assignment({g: min(found.options, key=preference) for g, found in every.items()})


def branch_and_bound(energy: Energy) -> Assignment:
    """The labelling of least energy, and a bound that proves it or tells how far it may be.

    The relaxation of least bound is taken first; the group that it counts for too little the most is
    given each of its options in turn.

    Source: Land and Doig, 1960, "An automatic method of solving discrete programming problems".
    """
    groups = len(energy.every)
    allowed = max(int(WORK / groups * min(1.0, LARGE / groups)), 1)
    rounding = (6 * len(energy.every) + 2 * len(energy.conversion)) / SECOND
    order = itertools.count()
    levels: Mapping[Group, Levels]
    levels, bound = energy.relaxed({})
    cuts, least = 1, float("inf")
    best: Labelling = {}
    open_: list[tuple[float, int, Labelling, Mapping[Group, Levels]]] = [(bound, next(order), {}, levels)]
    while open_ and open_[0][0] < least - rounding:
        bound, _, fixed, levels = open_[0]
        nearest = {g: fixed.get(g) or found.nearest(levels[g]) for g, found in energy.every.items()}
        possible = energy.improved(nearest) if energy.several else nearest
        if (seconds := energy.of(possible)) < least:
            best, least = possible, seconds
        doubts = {g: energy.doubt(g, levels[g]) for g in energy.doubtful if g not in fixed}
        group = max(doubts, key=doubts.__getitem__, default=None)
        if bound >= least - rounding or group is None or cuts >= allowed:
            break
        heapq.heappop(open_)
        for option in energy.every[group].options:
            narrower = {**fixed, group: option}
            levels, bound = energy.relaxed(narrower)
            cuts += 1
            heapq.heappush(open_, (bound, next(order), narrower, levels))
    return energy.assignment(best, min(open_[0][0] if open_ else least, least), cuts)
