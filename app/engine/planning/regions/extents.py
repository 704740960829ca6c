"""Extents of a canonical graph in a region: dimensions, constants and attributes as formulas of symbols.

The graph is made at samples of the region. Where its nodes are the same at all of them, the numbers that
differ are formulas, each found from some samples and checked at all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.graph import bodies
from app.engine.planning.regions.varying_constants import (
    Dims,
    Formulas,
    Rows,
    VaryingConstant,
    varying_constant,
)
from app.engine.types.errors import RegionError
from app.engine.types.regions.formula import Formula, constant, fitted
from app.engine.types.regions.region import Point, Region

Operand: TypeAlias = tuple[str, int]
_NUMBERS = (ir.AttributeType.INT, ir.AttributeType.INTS)


@dataclass(frozen=True, slots=True)
class Extents:
    """Everything of a canonical graph that depends on the shape, by name.

    Attributes:
        dims: of every value that is a tensor.
        constants: operands of nodes, by name of the node and position among its inputs.
        attributes: integers, by names of node and attribute.
    """

    region: Region
    dims: Mapping[str, Dims]
    constants: Mapping[Operand, VaryingConstant]
    attributes: Mapping[tuple[str, str], tuple[Formula, ...]]


@dataclass(frozen=True, slots=True)
class _Sample:
    """A canonical graph at one point.

    Attributes:
        nodes: operators and wiring, constants without their names, and attributes without integers.
    """

    point: Point
    nodes: tuple[tuple[object, ...], ...]
    dims: Mapping[str, tuple[int, ...]]
    constants: Mapping[Operand, ir.TensorProtocol]
    attributes: Mapping[tuple[str, str], tuple[int, ...]]


def extents(region: Region, canonical: Callable[[Point], ir.Model]) -> Extents:
    """The extents of a model in a region; `canonical` makes its canonical graph at a point.

    Where the graph is another one at the least sizes of some symbols, as broadcasts of one row are no
    broadcasts, the region is left without them.

    Raises:
        RegionError: a part of the graph is no formula of the symbols, or the graph is another one elsewhere.
    """
    samples: dict[tuple[int, ...], _Sample] = {}

    def sample(point: Point) -> _Sample:
        key = tuple(point.values())
        if key not in samples:
            samples[key] = _sample(point, canonical(point))
        return samples[key]

    while True:
        found = [sample(p) for p in region.samples()]
        other = [s for s in found if s.nodes != found[0].nodes]
        if not other:
            return _unified(region, found)
        region = _without(region, [s.point for s in other], _difference(found[0], other[0]))


def _without(region: Region, points: Sequence[Point], difference: str) -> Region:
    """The region without the least size of the symbols that have it at all of these points.

    Raises:
        RegionError: the points have no least size in common.
    """
    symbols = dict(region.symbols)
    covered = [
        name
        for name, s in symbols.items()
        if len(s.sizes) > 1
        and any(p[name] == s.low for p in points)
        and not any(p[name] == s.low for p in region.samples() if p not in points)
    ]
    if not all(any(p[name] == symbols[name].low for name in covered) for p in points):
        told = ", ".join(f"{n}={v}" for n, v in points[0].items())
        raise RegionError(f"the canonical graph at {told} is not that of the largest shape: {difference}")
    return region.without_least(covered)


def _difference(one: _Sample, other: _Sample) -> str:
    pairs = zip(one.nodes, other.nodes)
    a, b = next(((a, b) for a, b in pairs if a != b), (None, None))
    if a is None or b is None:
        return f"it has {len(other.nodes)} nodes instead of {len(one.nodes)}"
    return f"{b[1]} {b[2]!r} of {b[3]} stands where {a[1]} {a[2]!r} of {a[3]} is"


def _sample(point: Point, model: ir.Model) -> _Sample:
    dims: dict[str, tuple[int, ...]] = {}
    for value in graph.values(model.graph):
        if value.is_graph_output() and graph.is_constant(value):
            raise RegionError(f"output {value.name!r} is a constant", pointer=f"value:{value.name}")
        if value.name and not graph.is_constant(value) and not graph.is_dynamic(value):
            dims[value.name] = graph.static_shape(value)
        elif value.name and not graph.is_constant(value):
            raise _without_bound(value)
    nodes: list[tuple[object, ...]] = []
    attributes: dict[tuple[str, str], tuple[int, ...]] = {}
    constants: dict[Operand, ir.TensorProtocol] = {}
    for node in model.graph:
        if bodies(node):
            raise RegionError(
                f"{node.op_type} {node.name!r} has a graph in its attributes; a region takes none",
                pointer=f"node:{node.name}",
            )
        fixed = []
        for name, attribute in sorted(node.attributes.items()):
            if attribute.type in _NUMBERS:
                value = attribute.value
                numbers = (value,) if attribute.type == ir.AttributeType.INT else tuple(value)
                attributes[node.name or "", name] = tuple(int(v) for v in numbers)
                fixed.append((name, len(numbers)))
            else:
                fixed.append((name, _content(attribute)))  # type: ignore[arg-type]  # any hashable
        constants |= {
            (node.name or "", at): v.const_value
            for at, v in enumerate(node.inputs)
            if v is not None and v.const_value is not None and graph.is_constant(v)
        }
        read = tuple(v and (v.dtype if graph.is_constant(v) else v.name) for v in node.inputs)
        made = tuple(v.name for v in node.outputs)
        nodes.append((node.domain, node.op_type, node.name, read, made, tuple(fixed)))
    return _Sample(point, tuple(nodes), dims, constants, attributes)


def _without_bound(value: ir.Value) -> RegionError:
    """The error of a value whose shape has no bound, with what makes it and what reads it."""
    node, readers = value.producer(), [f"{u.node.op_type} {u.node.name!r}" for u in value.uses()]
    maker = f" of {node.op_type} {node.name!r}" if node is not None else ""
    read = f", which {', '.join(readers[:3])} reads," if readers else ""
    return RegionError(
        f"value {value.name!r}{maker}{read} has a shape that is known only when the graph runs; in a region "
        "NonZero, NonMaxSuppression, Compress and TopK may have such values where all that reads them has a "
        "rule (docs/kernels.md): bind the inputs that decide the shape, or cut the model before it",
        pointer=f"value:{value.name}",
    )


def _content(attribute: ir.Attr) -> object:
    """An attribute without integers as something to compare."""
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.value
        return tensor.dtype, tuple(tensor.shape), tensor.tobytes()
    return tuple(attribute.value) if isinstance(attribute.value, list | tuple) else attribute.value


def _unified(region: Region, samples: Sequence[_Sample]) -> Extents:
    points = [s.point for s in samples]
    first = samples[0]

    formulas = formulas_at(region, points)
    names = [n for n in first.dims if all(n in s.dims for s in samples)]
    dims = {n: formulas([s.dims[n] for s in samples], f"the shape of {n!r}") for n in names}
    attributes = {
        key: formulas([s.attributes[key] for s in samples], f"attribute {key[1]!r} of {key[0]!r}")
        for key, numbers in first.attributes.items()
        if any(s.attributes[key] != numbers for s in samples)
    }
    constants: dict[Operand, VaryingConstant] = {}
    for operand in first.constants:
        tensors = [s.constants[operand] for s in samples]
        found = varying_constant(operand, tensors, formulas)
        if found is not None:
            constants[operand] = found
    return Extents(region, dims, constants, attributes)


def formulas_at(region: Region, points: Sequence[Point]) -> Formulas:
    """A function from rows of numbers, one for every point, to their formulas.

    It raises RegionError where rows have several lengths, or a number is no formula, and names what it is
    of. A None in a row tells nothing about its number.
    """

    def formulas(rows: Rows, what: str) -> tuple[Formula, ...]:
        if len({len(row) for row in rows}) != 1:
            raise RegionError(f"{what} has {sorted({len(r) for r in rows})} numbers, by shape")
        found = []
        for at, numbers in enumerate(zip(*rows)):
            told = [(p, n) for p, n in zip(points, numbers) if n is not None]
            formula = fitted(region, [p for p, _ in told], [n for _, n in told]) if told else constant(0)
            if formula is None:
                shown = ", ".join(f"{dict(p)}: {n}" for p, n in told[:4])
                raise RegionError(
                    f"{what}: number {at} is no formula of {', '.join(region.symbols)} ({shown}, ...); "
                    "a divisor of the symbol, such as %8 or %32, makes more of them"
                )
            found.append(formula)
        return tuple(found)

    return formulas
