"""Formulas of symbols: integers of a plan as functions of the shape, found from samples."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from app.engine.types.regions.region import Point, Region, Symbol

Monomial = tuple[str, ...]  # names of symbols, a power repeated; empty for the constant term

DEGREE = 2  # of the monomials of several symbols
DIVISORS = tuple(range(2, 65))  # that quotients rounded down are looked for with
FITTED = 48  # samples that coefficients are solved from; all others check them


@dataclass(frozen=True, slots=True)
class Formula:
    """A polynomial of symbols over an integer, rounded down, in units of a number.

    Attributes:
        terms: integer coefficients by monomial.
        divisor: at least 1.
        unit: at least 1.
    """

    terms: Mapping[Monomial, int]
    divisor: int = 1
    unit: int = 1

    def at(self, point: Point) -> int:
        """The number at a point."""
        total = sum(c * math.prod(point[s] for s in m) for m, c in self.terms.items())
        return total // self.divisor * self.unit

    @property
    def is_constant(self) -> bool:
        """True if it is the same everywhere."""
        return not any(self.terms)

    @property
    def is_monotone(self) -> bool:
        """True if larger sizes never make it smaller: no coefficient of a symbol is negative."""
        return all(c >= 0 for m, c in self.terms.items() if m)

    def __str__(self) -> str:
        """The formula as Python, and most other languages, have it."""
        parts = [
            "*".join([*([str(abs(c))] if abs(c) != 1 or not m else []), *m])
            for m, c in self.terms.items()
            if c
        ]
        signs = ["-" if c < 0 else "+" for c in self.terms.values() if c]
        text = (
            "".join(f" {sign} {part}" for sign, part in zip(signs, parts)).removeprefix(" + ").strip() or "0"
        )
        if self.divisor != 1:
            text = f"({text})//{self.divisor}"
        return text if self.unit == 1 else f"({text})*{self.unit}"


def constant(number: int) -> Formula:
    """The formula that is a number."""
    return Formula({(): number})


def fitted(region: Region, points: Sequence[Point], numbers: Sequence[int]) -> Formula | None:
    """The formula that has these numbers at these points of a region; None where none of the forms does.

    Forms are, in this order: a constant; a polynomial in which no symbol has a power above one; one of
    degree 2; the quotient, rounded down, of an affine one of one symbol, in units of what divides all
    numbers. Coefficients are solved exactly from a part of the points, and all points must agree. Quotients
    count only where all that the points leave are the same in the whole region; a divisor of the symbol
    (`%8`) makes polynomials of most.
    """
    if len(set(numbers)) == 1:
        return constant(numbers[0])
    varying = tuple(n for n in region.symbols if len({p[n] for p in points}) > 1)
    read = tuple(n for n in varying if _depends(n, points, numbers)) or varying
    plain = [m for size in range(len(read) + 1) for m in itertools.combinations(read, size)]
    squares = [m for size in range(DEGREE + 1) for m in itertools.combinations_with_replacement(read, size)]
    for monomials in (plain, squares):
        found = _solved(monomials, points, numbers)
        if found is not None and all(found.at(p) == n for p, n in zip(points, numbers)):
            return found
    unit = math.gcd(*numbers)
    quotients = (_quotient(region.symbols[n], points, [v // unit for v in numbers]) for n in read)
    return next((replace(q, unit=unit) for q in quotients if q is not None), None)


def _depends(name: str, points: Sequence[Point], numbers: Sequence[int]) -> bool:
    """True if two points that differ in one symbol alone have different numbers, or none do."""
    found: dict[tuple[int, ...], set[int]] = {}
    for point, number in zip(points, numbers):
        found.setdefault(tuple(v for n, v in point.items() if n != name), set()).add(number)
    return any(len(those) > 1 for those in found.values())


def _solved(monomials: Sequence[Monomial], points: Sequence[Point], numbers: Sequence[int]) -> Formula | None:
    """The polynomial in these monomials, by elimination in rational numbers; None where there is none."""
    rows = [
        [*(Fraction(math.prod(p[s] for s in m)) for m in monomials), Fraction(n)]
        for p, n in zip(points[:FITTED], numbers)
    ]
    pivots: list[int] = []
    done = 0
    for column in range(len(monomials)):
        at = next((i for i in range(done, len(rows)) if rows[i][column]), None)
        if at is None:
            continue
        rows[done], rows[at] = rows[at], rows[done]
        pivot = rows[done][column]
        rows[done] = [v / pivot for v in rows[done]]
        for i, row in enumerate(rows):
            if i != done and (factor := row[column]):
                rows[i] = [a - factor * b for a, b in zip(row, rows[done])]
        pivots.append(column)
        done += 1
    if any(row[-1] for row in rows[done:]):
        return None
    values = {monomials[c]: rows[i][-1] for i, c in enumerate(pivots) if rows[i][-1]}
    divisor = math.lcm(*(v.denominator for v in values.values()))
    return Formula({m: int(v * divisor) for m, v in values.items()} or {(): 0}, divisor)


def _quotient(symbol: Symbol, points: Sequence[Point], numbers: Sequence[int]) -> Formula | None:
    """The quotient (a * s + b) // d of a symbol, where it is the same function whatever a, b and d fit."""
    pairs = sorted({(p[symbol.name], n) for p, n in zip(points, numbers)})
    (first, low), (last, high) = pairs[0], pairs[-1]
    found: tuple[int, int, int] | None = None
    for d in DIVISORS:
        near = round(Fraction((high - low) * d, last - first))
        for a in (near, near + 1, near - 1):
            # a*s + b is in [n*d, n*d + d) at every point.
            least = max(n * d - a * s for s, n in pairs)
            most = min(n * d + d - 1 - a * s for s, n in pairs)
            if least > most:
                continue
            found = found or (a, least, d)
            for b in (least, most):
                if any((a * s + b) // d != (found[0] * s + found[1]) // found[2] for s in symbol.sizes):
                    return None
    return None if found is None else Formula({(symbol.name,): found[0], (): found[1]}, found[2])
