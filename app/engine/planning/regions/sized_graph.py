"""The graph of a plan with the shapes of one point of its region after the other."""

import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.plan import Compilation
from app.engine.core.rewriter import constant_of
from app.engine.layouts.conversions import DOMAIN
from app.engine.planning.regions.extents import Extents
from app.engine.planning.regions.varying_constants import Dims, VaryingConstant
from app.engine.types.errors import RegionError
from app.engine.types.regions.region import Point


class SizedGraph:
    """A graph, and what of it depends on the point.

    Attributes:
        values: whose shapes do, with the formulas of their dimensions.
        constants: that do, by value.

    Raises:
        RegionError: of a part of the graph no formula is known.
    """

    def __init__(self, model: ir.Graph, extents: Extents) -> None:
        self.constants = _constants(model, extents)
        self.values = _shaped(model, extents)
        nodes = {node.name: node for node in model}
        if lost := [node for node, _ in extents.attributes if node not in nodes]:
            raise RegionError(f"a pass replaced {lost[0]!r}, an attribute of which depends on the shape")
        self._attributes = [(nodes[node], name, found) for (node, name), found in extents.attributes.items()]

    def resize(self, point: Point) -> None:
        """Give the graph the shapes, constants and attributes of a point."""
        for value, dims in self.values:
            value.shape = ir.Shape(tuple(d.at(point) for d in dims))
        for value, varying in self.constants.items():
            array = varying.at(point)
            value.const_value = ir.Tensor(array, name=value.name)
            value.shape = ir.Shape(array.shape)
        for node, name, formulas in self._attributes:
            numbers = [f.at(point) for f in formulas]
            kind = node.attributes[name].type
            node.attributes[name] = ir.Attr(
                name, kind, numbers[0] if kind == ir.AttributeType.INT else numbers
            )


def with_constants_apart(compilation: Compilation, extents: Extents) -> Compilation:
    """Give nodes that share a constant one each, where it depends on the shape in other ways for some.

    At one shape constants may be equal that are not at others: a number of elements and a number of axes.
    """
    nodes = {node.name or "": node for node in compilation.graph}
    for name, position in extents.constants:
        value = nodes[name].inputs[position]
        tensor = None if value is None or value.is_graph_input() else value.const_value
        if value is None or tensor is None:
            continue
        kinds: list[tuple[VaryingConstant | None, ir.Value]] = []
        for node, index in tuple(value.uses()):
            varying = extents.constants.get((node.name or "", index))
            made = next((v for known, v in kinds if _same(known, varying)), None)
            if made is None:
                made = value
                if kinds:
                    made = constant_of(tensor, f"{value.name}.{node.name}.{index}")
                    compilation.graph.register_initializer(made)
                kinds.append((varying, made))
            node.replace_input_with(index, made)
    return compilation


def _same(one: VaryingConstant | None, other: VaryingConstant | None) -> bool:
    """True if constants that are equal at one shape are so at every point; None is one that never varies."""
    return one is other if one is None or other is None else one.same_numbers(other)


def _shaped(model: ir.Graph, extents: Extents) -> tuple[tuple[ir.Value, Dims], ...]:
    """Values of the plan's graph whose shape depends on the point, with the formulas of their dimensions.

    Raises:
        RegionError: of a value that a pass added no formula is known.
    """
    dims = dict(extents.dims)
    for node in model:
        if node.domain == DOMAIN and (source := node.inputs[0]) is not None:
            # A conversion holds the same values; one that makes an output has taken the name of its operand.
            ends = source.name or "", node.outputs[0].name or ""
            known = next((dims[name] for name in ends if name in dims), None)
            if known is not None and source.shape == node.outputs[0].shape:
                dims |= dict.fromkeys((name for name in ends if name not in dims), known)
    found = []
    for value in graph.values(model):
        name = value.name or ""
        if not name:
            continue
        if name in dims:
            if not all(d.is_constant for d in dims[name]):
                found.append((value, dims[name]))
        elif not graph.is_constant(value):
            raise RegionError(f"value {name!r}: a pass added it, and no formula of its shape is known")
    return tuple(found)


def _constants(model: ir.Graph, extents: Extents) -> dict[ir.Value, VaryingConstant]:
    """Constants of the plan's graph that depend on the shape.

    Raises:
        RegionError: several nodes read one constant, which depends on the shape for some of them.
    """
    nodes = {n.name: n for n in model}
    found: dict[ir.Value, VaryingConstant] = {}
    for (name, position), varying in extents.constants.items():
        value = nodes[name].inputs[position] if name in nodes else None
        if value is None or not graph.is_constant(value):
            raise RegionError(f"a pass replaced {name!r} or its constant, which depends on the shape")
        for node, index in value.uses():
            other = extents.constants.get((node.name or "", index))
            if not _same(other, varying):
                raise RegionError(f"{node.name!r} and {name!r} share a constant somewhere: narrow the region")
        found[value] = varying
    return found
