"""Knowledge as rows: what operators mean, which implementations there are.

The registry is the union of all tables, built once by `load()`: a new operator or accelerator is a new file.
"""

import importlib
import importlib.metadata
import pkgutil
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import onnx_ir as ir

from app.engine.core.cache import Cache
from app.engine.core.calls import Call, View
from app.engine.core.group import Group
from app.engine.core.patterns import Pattern
from app.engine.core.placement import Held
from app.engine.core.plan import Compilation
from app.engine.core.rewriter import RewriteRule
from app.engine.core.streams.strips import StripRow
from app.engine.types.backend_names import BUILT_IN, ENTRY_POINTS, check
from app.engine.types.core_operator import CoreSet
from app.engine.types.layout import Layout
from app.engine.types.options import MemoryConcessions
from app.engine.types.precision import Computed, resolve, tolerance
from app.engine.types.storage import SparseFormat, StorageKind, StorageRuleOf, StorageType, Symbol
from app.engine.types.target import Peak, Target

T = TypeVar("T")

OpId: TypeAlias = tuple[str, str]  # (domain, operator)


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """Context of a row besides the group itself; values carry their shapes and dtypes.

    Attributes:
        fast_algorithms: whether products may be by Winograd, Strassen, or weights in fixed point.
        tolerance: largest error of an output that the job allows, as a fraction of its maximum.
        timings: measured seconds, see `app.engine.cost.roofline.key`.
        peak: of one thread of this machine, where it was measured: predictions follow it.
        tuning: which of the row's `tunings` is meant; empty for the one that is predicted best.
        concessions: what is given up for a smaller arena.
        precision: of products of float32, see `app.engine.types.precision`.
        exact: nodes that stay float32 whatever the precision: why, by name.
        int16: nodes whose products may be of integers of 16 bits: why, by name.
        direct: nodes that are computed without fast algorithms: why, by name.
        granted: the views of partial rows that may be taken; None, all of them, before memory is shared.
        storage: storage types of values, once they are inferred.
        source: the model as the file has it, inputs bound; for a library that runs all of it.
        failures: what libraries failed on, by node and backend: why.
        cache: that of the compilation: facts about constants, programs of bodies.
    """

    target: Target
    threads: int = 1
    fast_algorithms: bool = True
    tolerance: float = 1e-4
    timings: Mapping[str, float] = field(default_factory=dict)
    peak: Peak | None = None
    tuning: str = ""
    precision: Computed = "f32"
    exact: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)
    int16: Mapping[str, str] = field(default_factory=dict)
    granted: frozenset[View] | None = None
    concessions: MemoryConcessions = field(default_factory=MemoryConcessions)
    storage: Mapping[ir.Value, StorageType] = field(default_factory=dict)
    source: ir.Model | None = field(default=None, repr=False, compare=False)
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)
    cache: Cache = field(default_factory=Cache, repr=False, compare=False)
    key: Hashable = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        facts = self.target, self.peak, self.threads, self.fast_algorithms, self.tolerance, self.precision
        object.__setattr__(self, "key", _key(*facts))

    def sparse(self, value: ir.Value, kind: StorageKind) -> SparseFormat:
        """How a value lies in memory that is stored in this way, as full as was inferred."""
        dtype, shape = value.dtype, value.shape
        assert dtype is not None
        assert shape is not None
        stored = replace(self.storage.get(value, StorageType(kind, dtype.name)), kind=kind)
        dims = tuple(int(d) for d in shape.dims if isinstance(d, int))
        return SparseFormat.of(stored, dims, dtype.numpy().itemsize)

    @classmethod
    def of(
        cls, compilation: Compilation, storage: Mapping[ir.Value, StorageType] | None = None
    ) -> "PlanningContext":
        """Context of the rows of a compilation; without `storage`, all values are dense."""
        options = compilation.options
        return cls(
            compilation.target,
            options.threads,
            options.fast_algorithms,
            tolerance(options, compilation.target),
            compilation.timings,
            compilation.peak,
            concessions=compilation.concessions,
            precision=resolve(options, compilation.target).used,
            exact=options.exact,
            direct=options.direct,
            int16=options.int16,
            storage=storage or {},
            source=compilation.source,
            failures=compilation.failures,
            cache=compilation.cache,
        )


@lru_cache
def _key(*_facts: Hashable) -> object:
    """An object that stands for these facts: it compares as they do and hashes at once."""
    return object()


Rejection: TypeAlias = Callable[[Group, PlanningContext], str | None]
Lower: TypeAlias = Callable[[Group, PlanningContext], tuple[Call, ...]]
Cost: TypeAlias = Callable[[Group, PlanningContext], float]
Inplace: TypeAlias = Callable[[Group, PlanningContext], tuple[tuple[ir.Value, ir.Value], ...]]
Views: TypeAlias = Callable[[Group, PlanningContext], tuple[View, ...]]
Layouts: TypeAlias = Callable[[Group, PlanningContext], Mapping[ir.Value, Layout]]
Storages: TypeAlias = Callable[[Group, PlanningContext], Mapping[ir.Value, StorageKind]]
Memories: TypeAlias = Callable[[Group, PlanningContext], Mapping[ir.Value, Held]]


@dataclass(frozen=True, slots=True)
class Padding:
    """The contract of an implementation about lanes that fill up the last block of an axis.

    Attributes:
        reads: what it needs in padded lanes of what it reads: `any` where no valid element depends on
            them, `zero` where it counts them.
        leaves: what it leaves in padded lanes of what it writes: `undefined`; `zero`; or `f(0)`, where
            each lane is computed from the same lane of the inputs.
    """

    reads: Literal["any", "zero"] = "any"
    leaves: Literal["undefined", "zero", "f(0)"] = "undefined"


UNDEFINED, LANEWISE = Padding(), Padding(leaves="f(0)")
ZERO_READER, ZERO_WRITER = Padding(reads="zero"), Padding(leaves="zero")
SymbolOf: TypeAlias = Callable[[ir.Node], Symbol]


@dataclass(frozen=True, slots=True)
class Operator:
    """Meaning of an operator to the planner; an operator that no row describes is a barrier.

    Attributes:
        op: operator type.
        elementwise: each output element depends on one element of every input, broadcast.
        per_axis: operands may vary along the axis that an attribute names, and along no other.
        storage: storage types as MXNet infers them, of an operator of domain `mxnet`.
        check: raises GraphError where attributes of a node do not fit, beyond what its schema says.
    """

    op: str
    elementwise: bool = False
    per_axis: bool = False
    storage: StorageRuleOf | None = None
    domain: str = ""
    check: Callable[[ir.Node], None] | None = None


def no_pairs(_group: Group, _context: PlanningContext) -> tuple[tuple[ir.Value, ir.Value], ...]:
    """No output may share memory with an input."""
    return ()


def no_views(_group: Group, _context: PlanningContext) -> tuple[View, ...]:
    """Every value has bytes of its own."""
    return ()


def all_plain(_group: Group, _context: PlanningContext) -> Mapping[ir.Value, Layout]:
    """Every operand is row-major."""
    return {}


def all_dense(_group: Group, _context: PlanningContext) -> Mapping[ir.Value, StorageKind]:
    """Every operand is dense."""
    return {}


def main_memory(_group: Group, _context: PlanningContext) -> Mapping[ir.Value, Held]:
    """Operands are read and written in the first memory, or where the planner moves them for want of room."""
    return {}


def no_detail(_group: Group, _context: PlanningContext) -> str:
    """Nothing but operators, shapes and types matters."""
    return ""


def no_error(_group: Group, _context: PlanningContext) -> float | None:
    """Nothing beyond the rounding of a plain sum."""
    return None


def unknown_cost(_group: Group, _context: PlanningContext) -> float:
    """No prediction."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute a group on a backend.

    Attributes:
        name: unique: `conv.implicit_gemm`.
        op: operator type of the group's anchor, `Elementwise`, or `*` for any.
        backend: which backend offers it.
        rejection: the reason why it does not apply to this group, or None; sees shapes, dtypes,
            attributes, elements of constants and the target (FInferStorageTypeEx of apache/mxnet issue
            13598). Like `cost` it depends on nothing outside the group, and is asked once for each.
        lower: the calls that compute the group, workspace among their arguments.
        cost: predicted seconds.
        inplace: (input, output) values that may share memory if the input dies here; read after
            the implementation is chosen.
        updates: running it again over its own results changes nothing, so an output may lie in a graph input.
        views: values that lie in others; such a group may have no calls.
        partial: `lower` copies the views that `context.granted` lacks; else a row that is refused one
            view does not apply.
        layouts: the layouts that it asks of the group's inputs and gives its outputs; values that
            are not named are row-major.
        padding: what it needs in padded lanes of these, and what it leaves there.
        storage: the storage types that it asks of the group's inputs and gives its outputs; values that
            are not named are dense. A constant is stored anew for each reader.
        makes_sparse: its result is sparse though its operands are dense.
        memories: operands that must be in a memory of the target; others are where they are.
        pattern: operators of every group that it computes; None where its rows tell.
        detail: what its time depends on beside operators, shapes and types, without spaces.
        error: relative rms error, measured on the weights, of a row that rounds more than a plain sum
            does; None of others.
        tunings: names of the ways to cut the work that are worth measuring, see `PlanningContext.tuning`.
        precision: of its products of float32; their sums are float32 in any.
        rank: of two that apply and cost the same, the lower wins.
        version: of the library that it calls; what was measured with another one does not count.
    """

    name: str
    op: str
    backend: str
    rejection: Rejection
    lower: Lower
    cost: Cost = unknown_cost
    inplace: Inplace = no_pairs
    updates: bool = False
    views: Views = no_views
    partial: bool = False
    layouts: Layouts = all_plain
    padding: Padding = UNDEFINED
    storage: Storages = all_dense
    makes_sparse: bool = False
    memories: Memories = main_memory
    pattern: Pattern | None = None
    detail: Callable[[Group, PlanningContext], str] = no_detail
    error: Callable[[Group, PlanningContext], float | None] = no_error
    tunings: tuple[str, ...] = ("",)
    precision: Computed = "f32"
    rank: int = 0
    domain: str = ""
    version: str = ""

    def __hash__(self) -> int:
        return hash(self.name)  # rows are keys of many small tables

    def rejection_reason(self, group: Group, context: PlanningContext) -> str | None:
        """Reason why the row does not compute a group whose values are stored as `context` tells; else None.

        `rejection` is asked once for each group; before storage types are inferred, all values are dense.
        """
        return self.inapplicable(group, context) or misstored(self, group, context)

    def inapplicable(self, group: Group, context: PlanningContext) -> str | None:
        """Reason why the row does not compute a group, however its values are stored; else None."""
        return self.inexact(group, context) or _cached(self, group, "rejection", self.rejection, context)

    @property
    def fast(self) -> bool:
        """True if it is a fast algorithm, which errs more than a plain sum does."""
        return self.error is not no_error

    def inexact(self, group: Group, context: PlanningContext) -> str | None:
        """Reason why a group is planned without the rounding or the fast algorithm of the row; else None."""
        if self.precision == "int16":
            chosen = any(node.name in context.int16 for node in group.nodes)
            return None if chosen else "no error budget chose integers of 16 bits for it"
        for held, concerned in ((context.exact, self.precision != "f32"), (context.direct, self.fast)):
            if held and concerned:
                reason = next((held[name] for n in group.nodes if (name := n.name or "") in held), None)
                if reason is not None:
                    return reason
        return None

    def predicted(self, group: Group, context: PlanningContext) -> float:
        """`cost`, asked once for each group."""
        granted = context.granted if self.partial else None
        return _cached(self, group, ("cost", context.tuning, granted), self.cost, context)

    def required_layouts(self, group: Group, context: PlanningContext) -> Mapping[ir.Value, Layout]:
        """`layouts`, asked once for each group."""
        return _cached(self, group, "layouts", self.layouts, context)


def _cached(
    row: Implementation,
    group: Group,
    kind: Hashable,
    function: Callable[[Group, PlanningContext], T],
    context: PlanningContext,
) -> T:
    return group.cache.result((row.name, kind, context.key), lambda: function(group, context))


def misstored(row: Implementation, group: Group, context: PlanningContext) -> str | None:
    """Reason why a row that applies does not read and write the storage types that were inferred; or None."""
    required_layouts = row.storage(group, context)
    for value in (*group.inputs, *group.outputs):
        if value.is_initializer() or not value.name:
            continue
        kind = context.storage[value].kind if value in context.storage else "default"
        wanted = required_layouts.get(value, "default")
        if wanted != kind:
            return f"asks for {value.name!r} {wanted}, which is {kind} here"
    return None


def never(_node: ir.Node, _context: PlanningContext) -> str | None:
    """No objection."""
    return None


def everything(nodes: tuple[ir.Node, ...], _context: PlanningContext) -> tuple[ir.Node, ...]:
    """All of them."""
    return nodes


@dataclass(frozen=True, slots=True)
class Selector:
    """Which nodes a library takes into one sub-graph; each function tells why not, or None.

    Attributes:
        start: whether a sub-graph may begin with a node.
        to_input: whether it may grow to the producer of a member's input.
        to_output: whether it may grow to a reader of a member's output.
        keep: of the nodes that were found, those that are kept; what stays may fall into pieces.

    Source: apache/mxnet src/operator/subgraph/subgraph_property.h, SubgraphSelector.
    """

    start: Callable[[ir.Node, PlanningContext], str | None]
    to_input: Callable[[ir.Node, PlanningContext], str | None] = never
    to_output: Callable[[ir.Node, PlanningContext], str | None] = never
    keep: Callable[[tuple[ir.Node, ...], PlanningContext], tuple[ir.Node, ...]] = everything


def installed() -> str | None:
    """Nothing is missing."""
    return None


@dataclass(frozen=True, slots=True)
class Backend:
    """A code path that implementations belong to.

    Attributes:
        devices: those it can run on.
        runs_here: False for a model-only backend.
        selector: of a library that runs whole sub-graphs; None where each node is chosen alone.
        missing: why it cannot be used on this machine, or None.
        call_seconds: what one step of a library takes beyond its work.
    """

    name: str
    devices: tuple[str, ...]
    runs_here: bool = True
    selector: Selector | None = None
    missing: Callable[[], str | None] = installed
    call_seconds: float = 10e-6


# Rows and rules of what a target describes as data.
Described: TypeAlias = tuple[tuple[Implementation, ...], tuple[RewriteRule, ...]]
Describer: TypeAlias = Callable[[Target], Described]


@dataclass(frozen=True, slots=True)
class Registry:
    """The union of all tables."""

    operators: Mapping[OpId, Operator]
    implementations: Mapping[str, tuple[Implementation, ...]]  # by operator; `*` applies to all
    backends: Mapping[str, Backend] = field(default_factory=dict)
    rewrites: tuple[RewriteRule, ...] = ()
    symbols: Mapping[str, SymbolOf] = field(default_factory=dict)  # by operators of ONNX
    strips: Mapping[str, StripRow] = field(default_factory=dict)  # by implementations
    heads: Mapping[str, StripRow] = field(default_factory=dict)  # the same of strips that are heads
    core: CoreSet = field(default_factory=CoreSet)
    describers: tuple[Describer, ...] = ()
    _candidates: dict[tuple[str, tuple[str, ...]], tuple[Implementation, ...]] = field(  # see `candidates`
        default_factory=dict, init=False, repr=False, compare=False
    )

    def rewrites_for(self, target: Target, leaves: bool) -> tuple[RewriteRule, ...]:
        """The rules of the target's backends, in the order of these, for a program that leaves or stays."""
        rules = (rule for name in target.backends for rule in self.rewrites if name in rule.backends)
        return tuple(rule for rule in dict.fromkeys(rules) if leaves or not rule.for_libraries)

    def libraries(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the named backends that run whole sub-graphs and are installed."""
        rows = (self.backends[name] for name in names if name in self.backends)
        return tuple(row.name for row in rows if row.selector is not None and row.missing() is None)

    def operator(self, node: ir.Node) -> Operator | None:
        """The row of a node's operator, if there is one."""
        return self.operators.get(("" if node.domain == "ai.onnx" else node.domain, node.op_type))

    def check(self, backends: Sequence[str]) -> None:
        """See `app.engine.types.backend_names.check`."""
        check(backends, self.backends)

    def candidates(self, op: str, backends: tuple[str, ...]) -> tuple[Implementation, ...]:
        """Implementations of an operator on these backends, in the order of the backends."""
        found = self._candidates.get((op, backends))
        if found is None:
            rows = (*self.implementations.get(op, ()), *self.implementations.get("*", ()))
            found = self._candidates[op, backends] = tuple(
                row
                for backend in backends
                for row in sorted((r for r in rows if r.backend == backend), key=lambda r: r.rank)
            )
        return found


def _modules(package: str) -> list[tuple[str, Any]]:
    """A package and the modules in it with their names, in the order of these."""
    root = importlib.import_module(package)
    found = [(package, root)]
    for module in sorted(pkgutil.iter_modules(root.__path__), key=lambda m: m.name):
        name = f"{package}.{module.name}"
        found += _modules(name) if module.ispkg else [(name, importlib.import_module(name))]
    return found


def _rows(modules: Iterable[tuple[str, Any]], kind: str) -> list[tuple[str, Any]]:
    """Rows of the tables of one name, each with the name of its module."""
    return [(name, row) for name, module in modules for row in getattr(module, kind, ())]


def _unique(kind: str, rows: Iterable[tuple[str, Any]], key: Callable[[Any], Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, row in rows:
        if (named := key(row)) in found:
            raise ValueError(f"{kind} {named!r} has two rows, the second in {name}")
        found[named] = row
    return found


def load() -> Registry:
    """Tables of operators, of our backends and of those of installed packages.

    Modules of operators hold OPERATORS, SYMBOLS, CORE, EXPRESSED and OUTSIDE, those of backends BACKENDS,
    IMPLEMENTATIONS, STRIP_ROWS, HEAD_STRIP_ROWS, REWRITES and DESCRIBERS.

    Raises:
        ValueError: two rows claim the same operator, backend or implementation, or a rule has no backend.
    """
    tables, reference = _modules("app.engine.operators.tables"), "app.engine.reference"
    ours = [*_modules("app.engine.backends"), (reference, importlib.import_module(reference))]
    offered = sorted(importlib.metadata.entry_points(group=ENTRY_POINTS), key=lambda e: e.name)
    modules = [*ours, *((f"entry point {e.name!r}", e.load()) for e in offered)]
    operators = _unique("operator", _rows(tables, "OPERATORS"), lambda row: (row.domain, row.op))
    backends = _unique("backend", _rows(modules, "BACKENDS"), lambda row: row.name)
    implementations: dict[str, tuple[Implementation, ...]] = {}
    for row in _unique("implementation", _rows(modules, "IMPLEMENTATIONS"), lambda row: row.name).values():
        implementations[row.op] = (*implementations.get(row.op, ()), row)
    for name, rule in _rows(modules, "REWRITES"):
        if not rule.backends:
            raise ValueError(f"rewrite {rule.name!r} in {name} states no backend")
    if (names := {row.name for _, row in _rows(ours, "BACKENDS")}) != set(BUILT_IN):
        raise ValueError(f"`backend_names.BUILT_IN` must list {sorted(names)}, it lists {sorted(BUILT_IN)}")
    return Registry(
        operators,
        implementations,
        backends,
        tuple(rule for _, rule in _rows(modules, "REWRITES")),
        {op: symbol for _, module in tables for op, symbol in getattr(module, "SYMBOLS", {}).items()},
        _unique("strips", _rows(modules, "STRIP_ROWS"), lambda row: row.name),
        _unique("strips of heads", _rows(modules, "HEAD_STRIP_ROWS"), lambda row: row.name),
        CoreSet(*(tuple(row for _, row in _rows(tables, k)) for k in ("CORE", "EXPRESSED", "OUTSIDE"))),
        tuple(describe for _, describe in _rows(modules, "DESCRIBERS")),
    )
