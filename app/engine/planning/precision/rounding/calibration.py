"""Levels and rounded weights of the sites of a model, chosen by the noise that they add to each product."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from app.engine.planning.precision.candidates import Candidate
from app.engine.planning.precision.qdq import Quantities
from app.engine.planning.precision.rounding import ranges, second_order
from app.engine.planning.precision.rounding.products import Keeper, Product, batches
from app.engine.planning.precision.rounding.ranges import RULES, Levels, Observed
from app.engine.planning.precision.rounding.weights import Rounded, rounded
from app.engine.planning.precision.simulation import Simulation
from app.engine.planning.precision.sites import Site, activations, results

OBSERVED = 8  # samples that inputs of sites are kept of
OUTLIER = 100.0  # times what 99.9 % of a tensor's elements stay below, that is warned of

Array = np.ndarray[Any, Any]
Offered = Mapping[str, Sequence[Candidate]]  # candidates by site, the more exact first


class Calibration:
    """Numbers that roundings of a model's sites have, from samples.

    Attributes:
        levels: by activation, and by result of a convolution.
        weights: by site and candidate.
        quantities: both.
        rules: names of the rules of the levels, by activation.
        in_turn: sites and candidates whose weights are rounded by second order.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        samples: Sequence[Mapping[str, object]],
        simulation: Simulation,
        unsigned: bool,
    ) -> None:
        self._sites, self._samples, self._simulation = sites, samples, simulation
        self.levels: dict[str, Levels] = {}
        self.weights: dict[tuple[str, str], Rounded] = {}
        self.quantities = Quantities(self.levels, self.weights, unsigned)
        self.rules: dict[str, str] = {}
        self.in_turn: set[tuple[str, str]] = set()
        self.readers = {name: [s for s in sites if s.activation == name] for name in activations(sites)}
        self._observed = {name: Observed() for name in self.readers}
        self._results = {name: Observed(kept=0) for name in results(sites)}

    def observe(self) -> None:
        """Take levels of all that is seen."""
        observed = self._observed | self._results
        self._simulation.observe(self._samples, lambda name, x: observed[name].add(x), tuple(observed))
        self.levels.update({name: ranges.min_max(seen) for name, seen in observed.items()})

    def take(self, rows: Offered) -> None:
        """Round weights of these candidates, one by one, and forget those of all others."""
        self.weights.clear()
        for site in self._sites:
            alike: dict[tuple[int, int], Rounded] = {}
            for row in rows.get(site.name, ()):
                kind = row.bits, row.block
                if row.half:
                    continue
                if kind not in alike:
                    alike[kind] = rounded(site, row)
                self.weights[site.name, row.name] = alike[kind]

    def warnings(self) -> Iterator[str]:
        """Remarks on activations whose samples give poor levels."""
        for name, seen in self._observed.items():
            if seen.constant:
                yield f"activation {name!r} is {seen.low:g} on all samples: its levels follow from that alone"
                continue
            told = ranges.outlier(seen, OUTLIER)
            if told is not None:
                yield f"activation {name!r}: {told}"

    def refine(self, offered: Offered, step: Callable[[], None]) -> dict[tuple[str, str], float]:
        """Choose the rule of each activation's levels, and between both ways to round weights.

        `step` is called for each activation.

        Returns:
            Noise of products, by site and candidate, of sites that inputs are kept of.
        """
        samples = self._samples[:OBSERVED]
        readers = {name: [s for s in own if offered[s.name]] for name, own in self.readers.items()}
        noise: dict[tuple[str, str], float] = {}
        for batch in batches({name: own for name, own in readers.items() if own}):
            keeper = Keeper(batch, len(samples))
            self._simulation.observe(samples, keeper.add, tuple(batch))
            products = keeper.products()
            for activation, own in batch.items():
                kept = [products[s.name] for s in own if s.name in products]
                static = [p for p in kept if any(r.activation == "static" for r in offered[p.site.name])]
                if static:
                    self._choose_levels(activation, static)
                for product in kept:
                    rows = offered[product.site.name]
                    noise.update({(product.site.name, r.name): n for r, n in self._updated(product, rows)})
                step()
        return noise

    def _choose_levels(self, activation: str, products: Sequence[Product]) -> None:
        """Levels by the rule that adds least noise to the products that read the activation."""
        tried: dict[Levels, str] = {}
        for rule, levels_of in RULES.items():
            tried.setdefault(levels_of(self._observed[activation]), rule)
        best = min(tried, key=lambda levels: math.fsum(p.noise(levels, None) for p in products))
        self.levels[activation], self.rules[activation] = best, tried[best]

    def _updated(self, product: Product, rows: Sequence[Candidate]) -> Iterator[tuple[Candidate, float]]:
        """Round weights by second order where that adds less noise; candidates with the noise of each."""
        site = product.site
        done: dict[tuple[int, int, bool], tuple[Rounded, float, bool]] = {}
        shares: dict[bool, Array] = {}
        for row in rows:
            if row.half:
                continue
            # The range of a single run is that of all samples at most.
            levels = None if row.activation == "float32" else self.levels[site.activation]
            kind = row.bits, row.block, levels is None
            if kind not in done:
                begun = self.weights[site.name, row.name]
                done[kind] = begun, product.noise(levels, begun), False
                read = product.fitted if levels is None else levels.rounded(product.fitted)
                turned = second_order.tells(site, read.shape[1])
                if turned:
                    if kind[-1] not in shares:
                        shares[kind[-1]] = second_order.shares(read)
                    upper = shares[kind[-1]]
                    found = second_order.updated(site, row, begun, product.fitted, read, upper)
                else:
                    found = second_order.shifted(site, begun, product.fitted, read)
                tried = found, product.noise(levels, found), turned
                done[kind] = min(done[kind], tried, key=itemgetter(1))
            self.weights[site.name, row.name], noise, in_turn = done[kind]
            if in_turn:
                self.in_turn.add((site.name, row.name))
            yield row, noise
