"""Noise that rounding adds to one product, on inputs that were kept of it: no run of the model is needed.

Noise is measured on inputs of the last sample, weights are rounded by second order on those of the others:
they fit what they were rounded on better than anything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from app.engine.planning.precision.rounding import second_order
from app.engine.planning.precision.rounding.ranges import Levels
from app.engine.planning.precision.rounding.weights import Rounded, restored
from app.engine.planning.precision.sites import Site

Array = np.ndarray[Any, Any]

TOGETHER = 1 << 26  # elements of inputs that are kept at once, of as many activations as they suffice for


@dataclass(eq=False)
class Product:
    """A site and inputs that were kept of it.

    Attributes:
        fitted: inputs for rounding weights, float32[groups, rows, reduction].
        measured: inputs that noise is measured on, the same.
    """

    site: Site
    fitted: Array
    measured: Array

    @cached_property
    def _exact(self) -> Array:
        return _products(self.measured, second_order.lying(self.site, self.site.array))

    @cached_property
    def _power(self) -> float:
        return float(np.square(self._exact, dtype=np.float64).sum())

    def noise(self, levels: Levels | None, weights: Rounded | None) -> float:
        """Share of the products' power that roundings move; None leaves an operand in float32."""
        x = self.measured if levels is None else levels.rounded(self.measured)
        array = self.site.array if weights is None else restored(self.site, weights)
        moved = _products(x, second_order.lying(self.site, array)) - self._exact
        if weights is not None and weights.shift is not None:
            moved += weights.shift.reshape(len(moved), 1, -1)
        return float(np.square(moved, dtype=np.float64).sum()) / (self._power or 1.0)


def _products(x: Array, weights: Array) -> Array:
    """[groups, rows, channels] of [groups, rows, reduction] and [groups, channels, reduction]."""
    found: Array = x @ weights.transpose(0, 2, 1)
    return found


class Keeper:
    """Inputs of sites, kept sample by sample."""

    def __init__(self, readers: Mapping[str, Sequence[Site]], samples: int) -> None:
        self._rows = {s: -(-second_order.kept_rows(s) // samples) for own in readers.values() for s in own}
        self._readers = readers
        self._kept: dict[str, list[Array]] = {s.name: [] for s, rows in self._rows.items() if rows}

    def add(self, activation: str, x: Array) -> None:
        """Keep rows of a sample's activation for each site that reads it."""
        for site in self._readers.get(activation, ()):
            if site.name in self._kept:
                parts = self._kept[site.name]
                parts.append(second_order.inputs(site, x, self._rows[site], len(parts)))

    def products(self) -> dict[str, Product]:
        """The products of sites that inputs were kept of, by site."""
        sites = {s.name: s for s in self._rows}
        return {name: _parted(sites[name], parts) for name, parts in self._kept.items() if parts}


def _parted(site: Site, parts: list[Array]) -> Product:
    """The product with the last sample's inputs for measuring; those of one sample alone are both."""
    return Product(site, np.concatenate(parts[:-1] or parts, axis=1), parts[-1])


def batches(readers: Mapping[str, Sequence[Site]]) -> Iterator[dict[str, Sequence[Site]]]:
    """Activations with their sites, as many at a time as inputs may be kept of."""
    batch: dict[str, Sequence[Site]] = {}
    held = 0
    for activation, own in readers.items():
        elements = sum(second_order.kept_rows(s) * s.reduction * s.groups for s in own)
        if batch and held + elements > TOGETHER:
            yield batch
            batch, held = {}, 0
        batch[activation] = own
        held += elements
    if batch:
        yield batch
