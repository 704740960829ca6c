"""Regions of input shapes: dimensions that are symbols with bounds and a divisor."""

import functools
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from app.engine.types.errors import InputError

Dims = tuple[int | str, ...]  # of one input: a number, the name of a symbol, or a sum such as 'P+1'
Point = Mapping[str, int]  # a size for every symbol

_SPELLING = re.compile(
    r"(?P<name>[A-Za-z_]\w*)(?:<=(?P<most>\d+)|:(?P<low>\d+)\.\.(?P<high>\d+))?(?:%(?P<step>\d+))?"
)
_TERM = re.compile(r"(?P<sign>[+-])(?:(?P<factor>\d{1,9})\*)?(?P<of>[A-Za-z_]\w*|\d{1,12})")
_EXPECTED = "expected a number, 'N', 'N<=8', 'N<=64%8', 'N:8..64%8', or a sum such as 'P+1' or '2*N'"
LARGEST = 2**40  # a bound of a symbol
CORNERS = 3  # symbols of which all corners are looked at


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dimension whose size is known when a program runs: the multiples of `step` from `low` to `high`.

    Attributes:
        low: least size, inclusive, a multiple of `step`.
        high: largest size, inclusive, a multiple of `step`.
    """

    name: str
    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if self.low % self.step or self.high % self.step or not 1 <= self.low <= self.high:
            raise ValueError(
                f"symbol {self.name!r}: {self.low}..{self.high} are no bounds in multiples of {self.step}"
            )

    @property
    def sizes(self) -> range:
        """Every size."""
        return range(self.low, self.high + 1, self.step)

    def __str__(self) -> str:
        """The spelling that a request has."""
        return f"{self.name}:{self.low}..{self.high}" + f"%{self.step}" * (self.step > 1)


class WeightedPoint(NamedTuple):
    """Sizes that are expected, and how often relative to others."""

    point: Point
    weight: float


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a region that one plan serves.

    Attributes:
        symbols: bounds of its sizes.
        anchor: point whose rows and layouts the plan has.
    """

    symbols: Mapping[str, Symbol]
    anchor: Point


@dataclass(frozen=True, slots=True)
class Region:
    """The shapes that one program serves.

    Attributes:
        inputs: dimensions of the inputs that have a symbol, by name.
        symbols: by name, in the order in which they were first spelled.
    """

    inputs: Mapping[str, Dims]
    symbols: Mapping[str, Symbol]

    @property
    def count(self) -> int:
        """Number of points."""
        return math.prod(len(s.sizes) for s in self.symbols.values())

    @property
    def largest(self) -> Point:
        """The point of the largest sizes."""
        return {name: s.high for name, s in self.symbols.items()}

    def points(self) -> Iterator[Point]:
        """Every point, the largest sizes first."""
        return map(self.at, range(self.count))

    def at(self, index: int) -> Point:
        """The point at a position in `points`."""
        found: dict[str, int] = {}
        for name, s in reversed([*self.symbols.items()]):
            index, place = divmod(index, len(s.sizes))
            found[name] = s.high - place * s.step
        return {name: found[name] for name in self.symbols}

    def index(self, point: Point) -> int:
        """The position of a point in `points`."""
        found = 0
        for name, s in self.symbols.items():
            found = found * len(s.sizes) + (s.high - point[name]) // s.step
        return found

    def shapes(self, point: Point) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs with symbols at a point."""
        return {
            name: tuple(_size(d, point) if isinstance(d, str) else d for d in dims)
            for name, dims in self.inputs.items()
        }

    def point(self, shapes: Mapping[str, tuple[int, ...]]) -> Point | None:
        """The point that these shapes are; None where they lie outside. Other inputs are not looked at."""
        given = {name: tuple(shapes.get(name, ())) for name in self.inputs}
        if any(len(given[name]) != len(dims) for name, dims in self.inputs.items()):
            return None
        pairs = [pair for name, dims in self.inputs.items() for pair in zip(dims, given[name])]
        found = {d: size for d, size in pairs if isinstance(d, str)}
        point = {name: found[name] for name in self.symbols}
        return point if self.contains(point) and self.shapes(point) == given else None

    def rejection(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Reason why shapes lie outside of the region; empty where they lie inside."""
        if self.point(shapes) is not None:
            return ""
        told = "; ".join(
            f"{name!r} takes [{self.spelled(name)}], found {list(shapes.get(name, ()))}"
            for name in self.inputs
        )
        return f"outside of the region of shapes: {told}"

    def without_least(self, names: Collection[str]) -> "Region":
        """The region without the least size of these symbols."""
        symbols = {
            n: replace(s, low=s.low + s.step) if n in names else s for n, s in self.symbols.items()
        }  # fmt: skip
        return replace(self, symbols=symbols)

    def spelled(self, name: str) -> str:
        """Dimensions of an input with a symbol, as a request has them."""
        return ", ".join(str(self.symbols.get(str(d), d)) for d in self.inputs[name])

    def cut(self, name: str, size: int) -> tuple["Region", "Region"]:
        """The part whose sizes of a symbol are below `size`, one of them but the least, and the rest."""
        symbol = self.symbols[name]
        below, rest = replace(symbol, high=size - symbol.step), replace(symbol, low=size)
        return tuple(replace(self, symbols={**self.symbols, name: s}) for s in (below, rest))  # type: ignore[return-value]  # two

    def only(self, point: Point) -> "Region":
        """The part that is one point."""
        return replace(
            self, symbols={n: replace(s, low=point[n], high=point[n]) for n, s in self.symbols.items()}
        )

    def corners(self) -> tuple[Point, ...]:
        """Corners and the middle, the largest first; of many symbols, corners with at most one least size."""
        names, ends = tuple(self.symbols), [(s.high, s.low) for s in self.symbols.values()]
        if len(names) <= CORNERS:
            found = [*itertools.product(*ends)]
        else:
            most, least = zip(*ends)
            mixed = ((*most[:i], low, *most[i + 1 :]) for i, low in enumerate(least))
            found = [most, *mixed, least]
        found.append(tuple(s.sizes[len(s.sizes) // 2] for s in self.symbols.values()))
        return tuple(dict(zip(names, sizes)) for sizes in dict.fromkeys(found))

    def grid(self, count: int) -> tuple[Point, ...]:
        """Points at so many sizes of every symbol, ends included, evenly spaced, the largest first."""
        axes = [
            dict.fromkeys(s.sizes[-1 - (len(s.sizes) - 1) * i // (count - 1)] for i in range(count))
            for s in self.symbols.values()
        ]
        return tuple(dict(zip(self.symbols, sizes)) for sizes in itertools.product(*axes))

    def contains(self, point: Point) -> bool:
        """True if it has the sizes of a point."""
        return all(point[name] in s.sizes for name, s in self.symbols.items())

    def overlaps(self, other: "Region") -> bool:
        """True if a point may lie in both, regions of the same symbols."""
        pairs = ((s, other.symbols[name]) for name, s in self.symbols.items())
        return all(a.low <= b.high and b.low <= a.high for a, b in pairs)

    def samples(self) -> tuple[Point, ...]:
        """Points that formulas are found from and checked at: corners, the middle, neighbors and others.

        The largest comes first. The same region has the same samples.
        """
        names, axes = tuple(self.symbols), [_marked(s.sizes) for s in self.symbols.values()]
        corners = itertools.product(*(dict.fromkeys((a[-1], a[0])) for a in axes))
        middle = tuple(a[len(a) // 2] for a in axes)
        along = ((*middle[:i], size, *middle[i + 1 :]) for i, axis in enumerate(axes) for size in axis)
        turned = (
            tuple(axis[(turn * (i + 1) + i) % len(axis)] for i, axis in enumerate(axes))
            for turn in range(1, 6)
        )  # fmt: skip
        found = dict.fromkeys((*corners, middle, *along, *turned))
        return tuple(dict(zip(names, sizes)) for sizes in found)


def _marked(sizes: range) -> tuple[int, ...]:
    """Sizes of one symbol that samples have: both ends, what is next to them, and some between."""
    count = len(sizes)
    places = {
        0,
        1,
        2,
        count // 5,
        count // 3,
        count // 2,
        count // 2 + 1,
        3 * count // 4,
        count - 2,
        count - 1,
    }
    return tuple(sizes[i] for i in sorted(p for p in places if 0 <= p < count))


def region_of(shapes: Mapping[str, Sequence[int | str]]) -> Region | None:
    """The region of shapes as a request spells them; None where all dimensions are numbers.

    A symbol has bounds where it is spelled with them, in one place or more; where it is spelled by its name
    alone it is the same size, and a sum of symbols and numbers has no bounds of its own.

    Raises:
        InputError: a dimension is spelled wrongly, or bounds are absent, contradict each other or are empty.
    """
    symbols: dict[str, Symbol | None] = {}
    inputs: dict[str, Dims] = {}
    for name, spelled in shapes.items():
        if any(isinstance(d, str) for d in spelled):
            inputs[name] = tuple(_dimension(name, d, symbols) for d in spelled)
    known = {n: s for n, s in symbols.items() if s is not None}
    for name, dims in inputs.items():
        for symbol in (s for d in dims if isinstance(d, str) for s in terms(d) if s):
            if symbol not in known:
                raise InputError(
                    f"input {name!r}: symbol {symbol!r} has no bounds; "
                    f"spell them once, as '{symbol}<=64' or '{symbol}:8..64%8'",
                    pointer=f"/input_shapes/{name}",
                )
        for d in (d for d in dims if isinstance(d, str)):
            least = {s: known[s].low if n > 0 else known[s].high for s, n in terms(d).items() if s}
            if _size(d, least) < 1:
                raise InputError(
                    f"input {name!r}: dimension {d!r} is {_size(d, least)} where "
                    f"{', '.join(f'{s} is {n}' for s, n in least.items())}; expected at least 1",
                    pointer=f"/input_shapes/{name}",
                )
    return Region(inputs, known) if inputs else None


def bound(shapes: Mapping[str, Sequence[int | str]]) -> tuple[dict[str, tuple[int, ...]], Region | None]:
    """Shapes as a request spells them: of inputs with symbols the largest, and the region.

    Raises:
        InputError: see `region_of`.
    """
    region = region_of(shapes)
    numbers = {n: tuple(d for d in dims if isinstance(d, int)) for n, dims in shapes.items()}
    return (numbers if region is None else numbers | region.shapes(region.largest)), region


def weighted_points(region: Region | None, spelled: Sequence[Mapping[str, Any]]) -> tuple[WeightedPoint, ...]:
    """Expected shapes as a request spells them: `{sizes, weight}` each, sizes of all symbols by name.

    Raises:
        InputError: there is no region, or an entry lies outside of it, comes twice or weighs nothing.
    """
    found: dict[tuple[int, ...], WeightedPoint] = {}
    for at, entry in enumerate(spelled):
        sizes, weight, pointer = entry["sizes"], float(entry["weight"]), f"/shape_histogram/{at}"
        if region is None:
            raise InputError("a shape histogram needs symbols in the input shapes", pointer=pointer)
        told = ", ".join(f"{name}={size}" for name, size in sizes.items())
        if sizes.keys() != region.symbols.keys() or not region.contains(sizes):
            bounds = ", ".join(map(str, region.symbols.values()))
            raise InputError(f"shape histogram: {told or 'no size'} is no shape of {bounds}", pointer=pointer)
        point = {name: sizes[name] for name in region.symbols}
        key = tuple(point.values())
        if key in found or not (math.isfinite(weight) and weight > 0):
            why = "comes twice" if key in found else f"has weight {weight:g}; expected a number above 0"
            raise InputError(f"shape histogram: {told} {why}", pointer=pointer)
        found[key] = WeightedPoint(point, weight)
    return tuple(found.values())


def piece_json(piece: Piece) -> dict[str, Any]:
    """A piece as JSON."""
    symbols = {n: [s.low, s.high, s.step] for n, s in piece.symbols.items()}
    return {"symbols": symbols, "anchor": dict(piece.anchor)}


def piece_of(document: Mapping[str, Any]) -> Piece:
    """The piece that `piece_json` wrote."""
    symbols = {name: Symbol(name, *bounds) for name, bounds in document["symbols"].items()}
    return Piece(symbols, {name: document["anchor"][name] for name in symbols})


@functools.cache
def terms(text: str) -> Mapping[str, int]:
    """Factors of a sum such as '2*P+N-1' by symbol, its number under ''; empty if the text is no sum."""
    found: dict[str, int] = {}
    signed = text if text[:1] in ("+", "-") else f"+{text}"
    matches = [*_TERM.finditer(signed)]
    if "".join(match[0] for match in matches) != signed:
        return {}
    for match in matches:
        of = "" if match["of"].isdigit() else match["of"]
        factor = int(match["factor"] or 1) * (1 if of else int(match["of"]))
        found[of] = found.get(of, 0) + (factor if match["sign"] == "+" else -factor)
    return found if any(found) else {}


def _size(text: str, point: Point) -> int:
    """The size at a point that a symbol or a sum is."""
    return point[text] if text in point else sum(n * point.get(of, 1) for of, n in terms(text).items())


def _dimension(name: str, spelled: int | str, symbols: dict[str, Symbol | None]) -> int | str:
    """The number or the name of the symbol that a dimension is; its bounds go into `symbols`."""
    if isinstance(spelled, int):
        return spelled
    pointer = f"/input_shapes/{name}"
    text = spelled.replace(" ", "")
    match = _SPELLING.fullmatch(text)
    if match is None:
        if text.isdigit():
            return int(text)
        if summed := terms(text):
            for part in filter(None, summed):
                symbols.setdefault(part, None)
            return text
        raise InputError(f"input {name!r}: dimension {spelled!r} is no size; {_EXPECTED}", pointer=pointer)
    symbol = match["name"]
    symbols.setdefault(symbol, None)
    if match["most"] is None and match["high"] is None:
        if match["step"] is not None:
            raise InputError(
                f"input {name!r}: dimension {spelled!r} has a divisor without bounds; {_EXPECTED}",
                pointer=pointer,
            )
        return symbol
    step = int(match["step"] or 1)
    low, high = int(match["low"] or 1), int(match["most"] or match["high"])
    if not 1 <= step <= high <= LARGEST or low > high:
        raise InputError(
            f"input {name!r}: {spelled!r} has no size: it is a multiple of {step} from {low} to {high}, "
            f"at most {LARGEST}",
            pointer=pointer,
        )
    least, most = max(-(-low // step), 1) * step, high // step * step
    if least > most:
        raise InputError(
            f"input {name!r}: {spelled!r} has no size: no multiple of {step} is in {low}..{high}",
            pointer=pointer,
        )
    found, before = Symbol(symbol, least, most, step), symbols[symbol]
    if before is not None and before != found:
        raise InputError(
            f"input {name!r}: symbol {symbol!r} is {found} here and {before} elsewhere; it is one size",
            pointer=pointer,
        )
    symbols[symbol] = found
    return symbol
