"""The memory of a plan as formulas of symbols: a document, and the peak at any shape from it alone."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from app.engine.memory.problem import Buffer, Part, Problem, Solution
from app.engine.memory.stacked import Stacking
from app.engine.types.errors import InputError
from app.engine.types.regions.formula import Formula
from app.engine.types.regions.region import Point, Region, Symbol

Json = dict[str, Any]


class Peak(NamedTuple):
    """Bytes of the arena at one shape; `exact` if that is what its program takes, else they are a bound."""

    nbytes: int
    exact: bool


def formula_json(formula: Formula) -> Json:
    """A formula as JSON: `text`, and `terms` of coefficients and symbols over `divisor`, times `unit`."""
    terms = [[c, list(m)] for m, c in formula.terms.items()]
    return {"text": str(formula), "terms": terms, "divisor": formula.divisor, "unit": formula.unit}


def formula_of(document: Mapping[str, Any]) -> Formula:
    """The formula that `formula_json` wrote."""
    terms = {tuple(m): c for c, m in document["terms"]}
    return Formula(terms, document["divisor"], document.get("unit", 1))  # files of before have none


def region_of(document: Mapping[str, Any]) -> Region:
    """The region of a document."""
    return Region({name: tuple(dims) for name, dims in document["inputs"].items()}, _symbols(document))


def _symbols(document: Mapping[str, Any]) -> dict[str, Symbol]:
    return {name: Symbol(name, *bounds) for name, bounds in document["symbols"].items()}


def region_part(memory: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part `region` of a memory.json.

    Raises:
        InputError: there is none, or no plan serves the region; the message says why.
    """
    region: Mapping[str, Any] | None = memory.get("region")
    if region is None:
        raise InputError(f"no input shape has a symbol; every run takes {memory['peak_bytes']} byte")
    if "rejection" in region:
        raise InputError(f"no plan serves the region: {region['rejection']}")
    return region


def peak_at(document: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Peak:
    """The peak at shapes of the inputs, from the part `region` of a memory.json.

    Raises:
        InputError: the shapes lie outside of the region.
    """
    region = region_of(document)
    point = region.point(shapes)
    if point is None:
        raise InputError(region.rejection(shapes), pointer="/input_shapes")
    pieces = ((piece, Region({}, _symbols(piece))) for piece in document["pieces"])
    piece = next(piece for piece, part in pieces if part.contains(point))
    return Peak(solution_at(piece, point).peak, bool(piece["exact"]))


def solution_at(piece: Mapping[str, Any], point: Point) -> Solution:
    """Offsets and peak at a point of a piece of a document."""
    index = Region({}, _symbols(piece)).index(point)
    tables = {row["id"]: row["table"] for row in piece["buffers"]}
    problem = Problem(tuple(_buffer(row, tables, point, index) for row in piece["buffers"]))
    below = {row["id"]: dict(row["below"]) for row in piece["buffers"]}
    return Stacking(tuple(row["id"] for row in piece["buffers"]), below).solution(problem)


def _buffer(row: Mapping[str, Any], tables: Mapping[str, Any], point: Point, index: int) -> Buffer:
    parts = tuple(
        Part(formula_of(p["offset"]).at(point), formula_of(p["bytes"]).at(point), p["lower"], p["upper"])
        for p in row["parts"]
    )
    table = row["table"] if isinstance(row["table"], list) else tables[row["table"]]  # that of another buffer
    size = table[index] if table else formula_of(row["bytes"]).at(point)
    return Buffer(row["id"], row["lower"], row["upper"], size, row["alignment"], parts)
