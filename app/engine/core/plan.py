"""The plan: every decision about a graph, as immutable columns beside it.

The graph (onnx-ir) always speaks logical ONNX; a pass reads columns and returns a new
compilation with more of them. Columns are keyed by `ir.Value`, `ir.Node` or `Group`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, overload

import onnx_ir as ir

from app.engine.core.cache import Cache
from app.engine.core.calls import Call, View
from app.engine.core.group import Group, shortened
from app.engine.core.placement import OrderedBuffers, Placement
from app.engine.types.core_operator import OutsideNode
from app.engine.types.layout import Layout
from app.engine.types.options import Bindings, MemoryConcessions, Options, Streamed
from app.engine.types.storage import DispatchMode, StorageType
from app.engine.types.target import Peak, Target

if TYPE_CHECKING:
    from app.engine.core.registry import Implementation, Registry


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A convex part of the graph that one backend runs."""

    index: int
    backend: str


# Contents of the lanes that fill up a block: there are none; 0; a finite number; anything.
Lanes = Literal["none", "zero", "f(0)", "undefined"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Implementation chosen for a group, its calls, and the memory that its values may share.

    `tuning` is that of the planning context which it was lowered in.
    """

    implementation: "Implementation"
    calls: tuple[Call, ...]
    inplace: tuple[tuple[ir.Value, ir.Value], ...] = ()  # (input, output) that may share memory
    seconds: float = 0.0  # predicted
    views: tuple[View, ...] = ()  # values that are not moved
    tuning: str = ""

    def __repr__(self) -> str:
        """Name of the implementation."""
        return f"Choice({self.implementation.name}, {len(self.calls)} calls)"


@dataclass(frozen=True, slots=True)
class Decision:
    """Reason for the implementation of a group; a row of decisions.json."""

    subject: str
    op: str
    chosen: str
    reason: str
    alternatives: tuple[Mapping[str, object], ...] = ()  # {name, backend, seconds, measured, reason}
    measured: bool = False  # whether the time that decided was
    error: float | None = None  # relative rms, of an implementation that rounds more than a plain sum


@dataclass(frozen=True, slots=True)
class Record:
    """Duration and notes of one run of a pass."""

    name: str
    seconds: float
    nodes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Columns. None means that no pass has written the column yet; a written one is total.

    Attributes:
        passed_over: by name of a node and of a backend, the reason why the backend does not run it; nodes
            that no backend was passed over for are left out.
        buffers: those of the order, which it was chosen by.
    """

    partition: Mapping[ir.Node, Subgraph] | None = None
    passed_over: Mapping[str, Mapping[str, str]] | None = None
    fusion: Mapping[ir.Node, Group] | None = None
    storage: Mapping[ir.Value, StorageType] | None = None
    dispatch: Mapping[ir.Node, DispatchMode] | None = None
    layout: Mapping[ir.Value, Layout] | None = None
    padding: Mapping[ir.Value, Lanes] | None = None
    implementation: Mapping[Group, Choice] | None = None
    order: tuple[Group, ...] | None = None
    buffers: OrderedBuffers | None = None
    placement: Placement | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, in order of their first node in the graph."""
        return tuple(dict.fromkeys(self.require("fusion").values()))

    @overload
    def require(self, column: Literal["partition"]) -> Mapping[ir.Node, Subgraph]: ...

    @overload
    def require(self, column: Literal["passed_over"]) -> Mapping[str, Mapping[str, str]]: ...

    @overload
    def require(self, column: Literal["fusion"]) -> Mapping[ir.Node, Group]: ...

    @overload
    def require(self, column: Literal["storage"]) -> Mapping[ir.Value, StorageType]: ...

    @overload
    def require(self, column: Literal["dispatch"]) -> Mapping[ir.Node, DispatchMode]: ...

    @overload
    def require(self, column: Literal["layout"]) -> Mapping[ir.Value, Layout]: ...

    @overload
    def require(self, column: Literal["padding"]) -> Mapping[ir.Value, Lanes]: ...

    @overload
    def require(self, column: Literal["implementation"]) -> Mapping[Group, Choice]: ...

    @overload
    def require(self, column: Literal["order"]) -> tuple[Group, ...]: ...

    @overload
    def require(self, column: Literal["buffers"]) -> OrderedBuffers: ...

    @overload
    def require(self, column: Literal["placement"]) -> Placement: ...

    def require(self, column: str) -> object:
        """A column, which must have been written.

        Raises:
            ValueError: no pass has written it yet.
        """
        found: object = getattr(self, column)
        if found is None:
            raise ValueError(f"column {column!r} has not been written yet")
        return found

    def replaced(self, **columns: object) -> "Plan":
        """The plan with other columns."""
        return replace(self, **columns)  # type: ignore[arg-type]  # names are checked by replace

    def __repr__(self) -> str:
        """Names of the columns that are written, and how many groups there are."""
        written = [c for c in COLUMNS if getattr(self, c) is not None]
        groups = f"; {len(self.groups)} groups" if "fusion" in written else ""
        return f"Plan({', '.join(written) or 'empty'}{groups})"


COLUMNS = tuple(Plan.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Compilation:
    """A graph on its way through the passes."""

    model: ir.Model
    target: Target
    registry: "Registry"
    options: Options = field(default_factory=Options)
    bindings: Bindings = field(default_factory=Bindings)
    plan: Plan = field(default_factory=Plan)
    records: tuple[Record, ...] = ()
    decisions: tuple[Decision, ...] = ()
    notes: tuple[str, ...] = ()
    timings: Mapping[str, float] = field(default_factory=dict)  # measured, see `cost.key`
    peak: Peak | None = None  # of one thread of this machine; None where it was not measured
    outside_core: tuple[OutsideNode, ...] = ()  # nodes of the canonical graph that are not expressed
    concessions: MemoryConcessions = field(default_factory=MemoryConcessions)
    symbol: ir.Graph | None = None  # the nodes of the symbol of MXNet that the model was read from
    # Bytes below which no rows for the groups stay, in any order; None where it was not computed.
    row_bound: int | None = None
    assignment: Mapping[str, str] = field(default_factory=dict)  # by node: `backend#part`, as measured
    # The model as the file has it, inputs bound: for a library that runs all of it.
    source: ir.Model | None = field(default=None, repr=False, compare=False)
    streams: tuple[Streamed, ...] = ()  # measured to be faster than their groups one by one
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by node and backend: why
    carried: tuple[tuple[int, int], ...] = ()  # of a body: positions of states, and of their next ones
    # Facts about constants, by tensor, and programs of bodies, by node.
    cache: Cache = field(default_factory=Cache, repr=False, compare=False)

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    def with_plan(self, **columns: object) -> "Compilation":
        """The same compilation with these columns replaced."""
        return replace(self, plan=self.plan.replaced(**columns))

    def __repr__(self) -> str:
        """Name and size of the graph, target and written columns."""
        name = shortened(self.graph.name)
        return f"Compilation({name!r}, {len(self.graph)} nodes, target {self.target.name!r}, {self.plan!r})"
