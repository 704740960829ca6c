"""Rows of operators whose parameters, or the sizes of whose operands, only a run tells.

A step is a call from Python. For the parameters and sizes of a run it makes a node that has them as constants
(`app.engine.operators.specialized`), lowers it as rows for such nodes do, and runs these calls on one thread.
What was made of the last parameters is kept. Kernels are compiled when the program is bound: those of probes,
small operands that between them need every kernel that others need. Results are objects of the host.
"""

import itertools
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.backends.cpu import elementwise, gather, pad, reduce, resize, search, sequence
from app.engine.backends.cpu.rows import group_roofline
from app.engine.backends.cpu.selection import CALL_SECONDS, address
from app.engine.backends.cpu.strided import general_copy
from app.engine.core import graph
from app.engine.core.calls import Argument, Call, Constant, HostCall, KernelCall, Workspace
from app.engine.core.group import ELEMENTWISE, Group
from app.engine.core.registry import Implementation, PlanningContext
from app.engine.operators.movement import COPIES
from app.engine.operators.operands import data, itemsize
from app.engine.operators.resize_geometry import transformation
from app.engine.operators.specialized import PARAMETERS, specialized
from app.engine.operators.strides import StridedCopy, strides_of
from app.engine.types.errors import KernelError, OperandError
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Request, with_numbers

Array: TypeAlias = np.ndarray[Any, Any]
Operands: TypeAlias = list[Array | None]
Probes: TypeAlias = Callable[[ir.Node], Iterator[Operands]]
Rejection: TypeAlias = Callable[[Group], str | None]
Key: TypeAlias = tuple[tuple[tuple[int, ...] | None, ...], tuple[bytes, ...]]  # shapes, parameters

KEPT = 8  # specializations of a step
DEEPEST_REDUCTION = 6  # axes, of which no more than three runs can be reduced between others
# The rows below read nothing of a machine.
_CONTEXT = PlanningContext(find("cpu-avx2"))


@dataclass(frozen=True, slots=True)
class Family:
    """How operators are specialized.

    Attributes:
        rejection: of a group of a specialized node.
        lower: its calls.
        probes: operands that between them need every kernel that a node may need.
        deepest: axes of the first operand; more may be rejected when it runs.
    """

    rejection: Rejection
    lower: Callable[[Group], tuple[Call, ...]]
    probes: Probes
    deepest: int = 64


def _of_rows(rows: Sequence[Implementation], probes: Probes, deepest: int = 64) -> Family:
    """The first of these rows that applies."""

    def chosen(group: Group) -> Implementation | str:
        reasons = []
        for row in rows:
            reason = row.rejection(group, _CONTEXT)
            if reason is None:
                return row
            reasons.append(f"{row.name}: {reason}")
        return "; ".join(reasons)

    def rejection(group: Group) -> str | None:
        row = chosen(group)
        return row if isinstance(row, str) else None

    def lower(group: Group) -> tuple[Call, ...]:
        row = chosen(group)
        assert not isinstance(row, str), row
        return row.lower(group, _CONTEXT)

    return Family(rejection, lower, probes, deepest)


def _copies(
    made: Callable[[ir.Node], tuple[tuple[StridedCopy, Any, ir.Value], ...]], probes: Probes
) -> Family:
    """One call of the general strided copy for each part."""

    def lower(group: Group) -> tuple[Call, ...]:
        return tuple(
            call
            for copy, x, y in made(group.anchor)
            if y in group.outputs
            for call in general_copy(copy, itemsize(y), x, y)
        )

    return Family(lambda _group: None, lower, probes)


def _small(node: ir.Node, extent: int, index: int = 0) -> Array:
    """An operand of the rank of that of the node, all its axes of one extent."""
    value = graph.operand(node, index)
    rank = 1 if value.shape is None else len(value.shape)
    return np.zeros((extent,) * rank, graph.element_type(value))


def _given(node: ir.Node, **operands: Array | Sequence[float] | int) -> Operands:
    """Operands by position (`x0`, `x1`, ...), in the types that the node has them in; None for others."""
    found: Operands = []
    for i, value in enumerate(node.inputs):
        array = operands.get(f"x{i}")
        found.append(None if array is None or value is None else np.asarray(array, graph.element_type(value)))
    return found


def _reduction_probes(node: ir.Node) -> Iterator[Operands]:
    """Over rows and over columns; over all axes, where none is stated, also of one element."""
    if "axes" in node.attributes:
        raise ValueError("axes are an attribute")
    for extent in (2, 1):
        x = np.zeros((extent, extent), graph.element_type(data(node)))
        yield _given(node, x0=x, x1=[1])
        yield _given(node, x0=x, x1=[0])


def _top_probes(node: ir.Node) -> Iterator[Operands]:
    yield _given(node, x0=_small(node, 2), x1=[1])


def _pad_probes(node: ir.Node) -> Iterator[Operands]:
    x = _small(node, 2)
    axes = [0] if graph.input_at(node, 3) is not None else None
    pads = [1] * (2 * (x.ndim if axes is None else 1))
    yield _given(node, x0=x, x1=pads, x2=0, **({} if axes is None else {"x3": axes}))


def _resize_probes(node: ir.Node) -> Iterator[Operands]:
    """Along an axis with others behind it, along the last one, and along none."""
    if transformation(node) == "align_corners" and _rounds(node):
        raise ValueError("align_corners, where the size is rounded: text and tests of ONNX differ")
    rank = _small(node, 2).ndim
    axes = [a % rank for a in graph.attribute(node, "axes", tuple(range(rank)))]
    kind = graph.element_type(data(node))
    first = min(axes, default=0)
    alone = (*(2,) * (first + 1), *(1,) * (rank - first - 1))
    for shape, factor in (((2,) * rank, 2), (alone, 2), ((2,) * rank, 1)):
        x = np.zeros(shape, kind)
        if node.op_type == "Upsample":
            yield _given(node, x0=x, x1=[factor] * rank)
        elif graph.input_at(node, 3) is not None:
            yield _given(node, x0=x, x3=[shape[a] * factor for a in axes])
        else:
            yield _given(node, x0=x, x2=[factor] * len(axes))


def _rounds(node: ir.Node) -> bool:
    """True if the size of a result may be a rounded one: of scales, or of sizes that keep the aspect."""
    scales = graph.input_at(node, 2)
    fixed = graph.constant(scales)
    given = scales is not None and (fixed is None or fixed.size > 0)
    return given or graph.attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"


def _one_hot_probes(node: ir.Node) -> Iterator[Operands]:
    yield _given(
        node, x0=_small(node, 2), x1=np.full(graph.static_shape(graph.operand(node, 1)), 2), x2=[0, 1]
    )


def _gather_probes(node: ir.Node) -> Iterator[Operands]:
    yield _given(node, x0=_small(node, 2), x1=_small(node, 2, 1))


def _range_probes(node: ir.Node) -> Iterator[Operands]:
    yield _given(node, x0=0, x1=2, x2=1)


# Operands of copies, by operator: one kernel makes any of them.
_COPIED: dict[str, Callable[[ir.Node], Operands]] = {
    "Slice": lambda n: _given(n, x0=_small(n, 2), x1=[0], x2=[1], x3=[0], x4=[1]),
    "Split": lambda n: _given(n, x0=_parts(n), x1=[1] * len(n.outputs)),
    "Reshape": lambda n: _given(n, x0=np.zeros(2), x1=[2]),
    "Squeeze": lambda n: _given(n, x0=_small(n, 1), x1=[0]),
    "Unsqueeze": lambda n: _given(n, x0=_small(n, 2), x1=[0]),
    "Expand": lambda n: _given(n, x0=np.zeros(1), x1=[2]),
    "Tile": lambda n: _given(n, x0=np.zeros(2), x1=[2]),
    "Transpose": lambda n: _given(n, x0=_small(n, 2)),
    "Flatten": lambda n: _given(n, x0=_small(n, 2)),
    "Identity": lambda n: _given(n, x0=_small(n, 2)),
    "Concat": lambda n: [_small(n, 2, i) for i in range(len(n.inputs))],
    "ConstantOfShape": lambda n: _given(n, x0=[2]),
    "Shape": lambda n: _given(n, x0=_small(n, 2)),
}


def _parts(node: ir.Node) -> Array:
    return _small(node, len(node.outputs))


def _copied(op: str) -> Probes:
    def probes(node: ir.Node) -> Iterator[Operands]:
        yield _COPIED[op](node)

    return probes


def _filled(node: ir.Node) -> tuple[tuple[StridedCopy, Constant, ir.Value], ...]:
    y = node.outputs[0]
    return ((StridedCopy((graph.elements(y),), (0,), (1,)), sequence.fill_value(node), y),)


def _sizes(node: ir.Node) -> tuple[tuple[StridedCopy, Constant, ir.Value], ...]:
    shape = graph.static_shape(data(node))
    taken = shape[graph.attribute(node, "start", 0) : graph.attribute(node, "end", None)]
    copy = StridedCopy((len(taken),), (1,), (1,))
    return ((copy, Constant(np.array(taken, np.int64)), node.outputs[0]),)


def _elementwise_probes(inputs: Sequence[ir.Value], single: Sequence[bool]) -> Iterator[Operands]:
    """One axis, and rank 0 for what has one element in any run; then two axes, of which none has both."""
    first, *others = (((2, 1), (1, 2), (1, 2)) if single.count(False) > 1 else ((2,),))[:2]
    several = iter([first, *others * len(inputs)])
    for shapes in (itertools.repeat((2,)), several):
        yield [
            np.zeros(() if is_single else next(shapes), graph.element_type(v))
            for v, is_single in zip(inputs, single, strict=True)
        ]


def _is_single(value: ir.Value) -> bool:
    """True if a value has one element in any run."""
    return graph.shape(value) is not None and graph.elements(value) == 1


def _elementwise_lower(group: Group, single: Sequence[bool]) -> tuple[Call, ...]:
    """The generated kernel along one axis; operands that are broadcast along others are expanded before."""
    formula, output = elementwise.formula_in(group), group.outputs[0]
    shape, count = graph.static_shape(output), graph.elements(output)
    is_single = dict(zip(group.inputs, single, strict=True))
    memory: list[Argument] = []
    made: list[Call] = []
    for operand in formula.operands:
        x = operand.value
        if is_single[x] or graph.elements(x) == count:
            memory.append(x)
            continue
        wide = (1,) * (len(shape) - len(operand.shape)) + operand.shape
        steps = tuple(0 if n == 1 else s for n, s in zip(wide, strides_of(wide)))
        expanded = Workspace(count * itemsize(x))
        made += general_copy(StridedCopy(shape, steps, strides_of(shape)), itemsize(x), x, expanded)
        memory.append(expanded)
    patterns = tuple((not is_single[operand.value],) for operand in formula.operands)
    return (*made, elementwise.mapped(formula, (*memory, output), (count,), patterns))


def _elementwise(inputs: Sequence[ir.Value]) -> Family:
    """Family of elementwise nodes with these inputs; those that have one element in any run are read once."""
    single = [_is_single(v) for v in inputs]
    return Family(
        lambda group: elementwise.IMPLEMENTATIONS[0].rejection(group, _CONTEXT),
        lambda group: _elementwise_lower(group, single),
        lambda _node: _elementwise_probes(inputs, single),
    )


_BY_NAME = {
    row.name: row
    for module in (gather, pad, reduce, resize, search, sequence)
    for row in module.IMPLEMENTATIONS
}
_MADE = {op: made for _, op, _, made in COPIES} | {"ConstantOfShape": _filled, "Shape": _sizes}
_REDUCTIONS = tuple(op for op in PARAMETERS if op.startswith("Reduce"))
# Operators with the names of rows that compute them, probes, and the axes that any run is accepted with.
_ROWS: tuple[tuple[str, tuple[str, ...], Probes, int], ...] = (
    *((op, (f"reduce.{op}",), _reduction_probes, DEEPEST_REDUCTION) for op in _REDUCTIONS),
    ("TopK", ("search.top_k",), _top_probes, 64),
    ("Pad", ("pad.lookup",), _pad_probes, 64),
    ("Resize", ("resize.nearest", "resize.taps"), _resize_probes, 64),
    ("Upsample", ("upsample.nearest", "upsample.taps"), _resize_probes, 64),
    ("OneHot", ("one_hot.rows",), _one_hot_probes, 64),
    ("Gather", ("gather.rows",), _gather_probes, 64),
    ("Range", ("range.ramp",), _range_probes, 64),
)
_FAMILIES: dict[str, Family] = {
    **{op: _of_rows([_BY_NAME[n] for n in names], probes, deepest) for op, names, probes, deepest in _ROWS},
    **{op: _copies(_MADE[op], _copied(op)) for op in _COPIED},
}


@dataclass(frozen=True, slots=True)
class _Site:
    """Nodes that are specialized together: one, or elementwise ones of which the last leaves the result.

    Attributes:
        inputs: those of the one node, None where it omits one; else what the nodes read.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value | None, ...]
    family: Family

    @classmethod
    def of(cls, nodes: tuple[ir.Node, ...]) -> "_Site":
        """The site of these nodes."""
        if len(nodes) == 1 and nodes[0].op_type in _FAMILIES:
            node = _with_own_operands(nodes[0])
            return cls((node,), tuple(node.inputs), _FAMILIES[node.op_type])
        inputs = graph.group(nodes, nodes[-1], ELEMENTWISE, bool).inputs
        return cls(nodes, inputs, _elementwise(inputs))

    def specialized(self, operands: Sequence[Array | None]) -> tuple[Group, Mapping[ir.Value, int]]:
        """The group for these operands, and the position of each input of it among them.

        Raises:
            ValueError: they do not fit.
        """
        pairs = zip(self.inputs, operands, strict=True)
        made = specialized(self.nodes, {v: a for v, a in pairs if v is not None and a is not None})
        root = made.nodes[-1]
        op = root.op_type if root.op_type in _FAMILIES else ELEMENTWISE
        group = graph.group(made.nodes, root, op, lambda v: bool(v.name) and v in root.outputs)
        return group, {v: self.inputs.index(original) for v, original in made.operands.items()}

    def calls(self, group: Group) -> tuple[KernelCall, ...]:
        """Calls of a group that is not rejected."""
        calls = self.family.lower(group)
        assert all(isinstance(c, KernelCall) for c in calls)
        return tuple(c for c in calls if isinstance(c, KernelCall))

    def probed(self) -> Iterator[Group]:
        """Groups of the probes; ValueError where one does not fit."""
        return (self.specialized(operands)[0] for operands in self.family.probes(self.nodes[-1]))

    def requests(self) -> tuple[Request, ...]:
        """Kernels that any run may need."""
        return tuple(dict.fromkeys(c.request for group in self.probed() for c in self.calls(group)))


def _with_own_operands(node: ir.Node) -> ir.Node:
    """The node, or where one value is several operands a copy that has another value for each."""
    named = [v for v in node.inputs if v is not None]
    if len(set(named)) == len(named):
        return node
    given = enumerate(node.inputs)
    inputs = [v and ir.Value(name=f"{v.name}.{i}", type=v.type, shape=v.shape) for i, v in given]
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in node.outputs]
    copy = ir.Node("", node.op_type, inputs, tuple(node.attributes.values()), name=node.name, outputs=outputs)
    imports = {} if node.graph is None else node.graph.opset_imports
    return ir.Graph((), (), nodes=[copy], opset_imports=imports)[0]


def _rejection(group: Group, _context: PlanningContext) -> str | None:
    """Rejection of what is planned without a run, and of what no row computes once it is specialized."""
    node = group.anchor
    if len(group.nodes) > 1 and group.op != ELEMENTWISE:
        return f"{group.op} takes no epilogue, the group has {len(group.nodes)} nodes"
    for value in (*group.inputs, *group.outputs):
        if not graph.is_tensor(value):
            return f"value {value.name!r} is no tensor of fixed-size elements"
    told = [v for i in PARAMETERS.get(node.op_type, ()) if (v := graph.input_at(node, i)) is not None]
    if all(map(graph.is_constant, told)) and not any(map(graph.is_dynamic, (*group.inputs, *group.outputs))):
        return "parameters and sizes are known when it is planned"
    site = _Site.of(group.nodes)
    if group.op != ELEMENTWISE:
        if any(v.shape is None for v in group.inputs):
            return "an operand has an unknown rank"
        if (rank := len(data(node).shape or ())) > site.family.deepest:
            return f"{rank} axes; up to {site.family.deepest} have kernels whatever a run asks for"
    elif group.outputs != (group.nodes[-1].outputs[0],):
        return "a value before the last leaves the group"
    try:
        reasons = [site.family.rejection(probe) for probe in site.probed()]
    except ValueError as mismatch:
        return f"no probe fits: {mismatch}"
    return next((r for r in reasons if r is not None), None)


def _lower(group: Group, _context: PlanningContext) -> tuple[Call, ...]:
    site, results = _Site.of(group.nodes), tuple(v for v in group.nodes[-1].outputs if v.name)
    together, node = group.nodes if len(group.nodes) > 1 else (), group.anchor
    inputs = site.inputs if site.nodes == group.nodes else tuple(node.inputs)
    requests = site.requests()
    return (HostCall(f"{__name__}:prepare", node, inputs, results, kernels=requests, nodes=together),)


def _cost(group: Group, context: PlanningContext) -> float:
    static = sum(graph.nbytes(v) for v in (*group.inputs, *group.outputs) if graph.shape(v) is not None)
    return CALL_SECONDS + group_roofline(group, context, 0.0, 1.0, 2.0 * static)


def prepare(
    node: ir.Node, kernels: Sequence[Callable[..., None]], nodes: tuple[ir.Node, ...] = ()
) -> Callable[[Sequence[object | None]], list[object]]:
    """A function from operands to results of a node, or of several, with the kernels of `_Site.requests`.

    It raises OperandError where parameters do not fit the operator.
    """
    site = _Site.of(nodes or (node,))
    functions = dict(zip(site.requests(), kernels, strict=True))
    positions = [i for i in PARAMETERS.get(node.op_type, ()) if i < len(site.inputs) and not nodes]
    known: OrderedDict[Key, _Lowered] = OrderedDict()

    def specialize(key: Key, arrays: Sequence[Array | None]) -> _Lowered:
        try:
            group, places = site.specialized(arrays)
            reason = site.family.rejection(group)
        except ValueError as mismatch:
            reason = str(mismatch)
        if reason is not None:
            raise OperandError(f"{node.op_type} {node.name!r}: {reason}", pointer=f"node:{node.name}")
        known[key] = _Lowered(group, places, site.calls(group))
        if len(known) > KEPT:
            known.popitem(last=False)
        return known[key]

    bound: _Bound | None = None

    def run(values: Sequence[object | None]) -> list[object]:
        nonlocal bound
        told = [np.asarray(v).tobytes() for i in positions if (v := values[i]) is not None]
        if bound is None or bound.told != told or not all(map(operator.is_, values, bound.arrays)):
            arrays = [None if v is None else np.asarray(v, order="C") for v in values]
            key = tuple(None if a is None else a.shape for a in arrays), tuple(told)
            bound = _Bound.of(told, arrays, known.get(key) or specialize(key, arrays), functions)
        return bound.run()

    return run


@dataclass(frozen=True, slots=True)
class _Lowered:
    """A specialized group and its calls; `places` are positions of its operands among those of the step."""

    group: Group
    places: Mapping[ir.Value, int]
    calls: tuple[KernelCall, ...]


@dataclass(frozen=True, slots=True)
class _Bound:
    """Calls with the addresses of operands and results; `kept` is other memory that they point into."""

    told: Sequence[bytes]  # parameters
    arrays: Sequence[Array | None]
    results: tuple[Array, ...]
    rows: tuple[Callable[[], None], ...]
    kept: Sequence[Array]

    def run(self) -> list[object]:
        for call in self.rows:
            call()
        return list(self.results)

    @classmethod
    def of(
        cls,
        told: Sequence[bytes],
        arrays: Sequence[Array | None],
        lowered: _Lowered,
        functions: Mapping[Request, Callable[..., None]],
    ) -> "_Bound":
        """The calls for these operands, with results that were not used before."""
        outputs = lowered.group.outputs
        results = tuple(np.empty(graph.static_shape(v), graph.element_type(v)) for v in outputs)
        places = {
            id(v): a for v, a in zip(outputs, results, strict=True)
        }  # equal workspaces differ in memory
        for value, position in lowered.places.items():
            if (array := arrays[position]) is not None:
                places[id(value)] = array

        def number(argument: object) -> int:
            if isinstance(argument, int):
                return argument
            if id(argument) not in places:
                if isinstance(argument, Workspace):
                    places[id(argument)] = np.empty(argument.nbytes, np.uint8)
                else:
                    assert isinstance(argument, Constant), argument
                    places[id(argument)] = np.ascontiguousarray(argument.array)
            return address(places[id(argument)])

        rows = []
        for call in lowered.calls:
            numbers = (*map(number, call.arguments), 0, call.units, *(0,) * call.takes_thread)
            if call.request not in functions:
                raise KernelError(f"{lowered.group.name!r} needs {call.kernel}, which no probe has asked for")
            rows.append(with_numbers(functions[call.request], numbers))
        return cls(told, arrays, results, tuple(rows), tuple(places.values()))


IMPLEMENTATIONS = tuple(
    Implementation(f"{op.lower()}.specialized", op, "numba-cpu", _rejection, _lower, _cost, rank=9)
    for op in (*_FAMILIES, ELEMENTWISE)
)
