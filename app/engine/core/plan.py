"""The plan: every decision about a graph, as immutable columns beside it.

The graph (onnx-ir) always speaks logical ONNX; a pass reads columns and returns a new
compilation with more of them. Columns are keyed by `ir.Value`, `ir.Node` or `Group`.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
)

import onnx_ir as ir

from app.engine.core import signature
from app.engine.types.layout import Layout
from app.engine.types.options import Bindings, MemoryConcessions, Options
from app.engine.types.storage import DispatchMode, StorageType
from app.engine.types.target import Target

if TYPE_CHECKING:
    import numpy as np

    from app.engine.buffers.placement import Placed

    Array: TypeAlias = np.ndarray[Any, Any]

    from app.engine.core.program import Program
    from app.engine.core.registry import Implementation, Registry
    from app.engine.memory.problem import Solution
    from app.kernels.cpu.runtime.parallel import Request
    from app.kernels.cuda.kernel import Launch

P = ParamSpec("P")
T = TypeVar("T")

CACHE_LINE = 64  # byte
ELEMENTWISE = "Elementwise"  # the operator of a group made of elementwise nodes only
SUBGRAPH = "Subgraph"  # the operator of a group that a library runs whole
ATTENTION = "Attention"  # and of one made of two products with a Softmax between


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Nodes that one implementation computes in one go: the unit of dispatch and of execution.

    Attributes:
        nodes: in execution order; a convex connected part of the graph.
        anchor: the node whose arithmetic dominates; its operator names the group.
        inputs: values read from outside, in order of first use, each once; initializers included.
        outputs: values that something outside reads, or graph outputs.
        facts: what functions `of_group` found, see `app.engine.core.signature`; nodes do not change
            while they are in a group.
    """

    nodes: tuple[ir.Node, ...]
    anchor: ir.Node
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    op: str  # operator of the anchor, or ELEMENTWISE, or ATTENTION
    facts: dict[Hashable, tuple[Any, bool]] = field(default_factory=dict, init=False, repr=False)

    @property
    def name(self) -> str:
        """The anchor's name, which is unique in the graph."""
        return self.anchor.name or ""

    @property
    def epilogue(self) -> tuple[ir.Node, ...]:
        """The nodes that follow the anchor."""
        return tuple(n for n in self.nodes if n is not self.anchor)


def of_group(function: Callable[Concatenate[Group, P], T]) -> Callable[Concatenate[Group, P], T]:
    """A decorator: a pure function of a group and hashable arguments, computed once for each."""

    @wraps(function)
    def found(group: Group, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (function, args, *kwargs.items())
        return signature.once(group.facts, key, lambda: function(group, *args, **kwargs))

    return cast("Callable[Concatenate[Group, P], T]", found)


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A convex part of the graph that one backend runs."""

    index: int
    backend: str


@dataclass(frozen=True, slots=True)
class Workspace:
    """An argument: scratch memory of a step, undefined before and after it.

    `nbytes` is what one thread needs when `per_thread`, else what the step needs.
    """

    nbytes: int
    per_thread: bool = False


class Constant:
    """An argument: an array that no run changes, packed weights for instance.

    Args:
        source: the array, or a function that makes it. The function is called when a program is
            bound to memory: a plan that nobody runs packs nothing, and no copy stays beside the program's.
        name: of the initializer that it was made from.
    """

    __slots__ = ("_nbytes", "_source", "name")

    def __init__(self, source: "Array | Callable[[], Array]", name: str = "") -> None:
        self._source = source
        self._nbytes = -1
        self.name = name

    @property
    def array(self) -> "Array":
        """The array; made anew each time where the source is a function."""
        made = self._source() if callable(self._source) else self._source
        self._nbytes = made.nbytes
        return made

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.array.nbytes if self._nbytes < 0 else self._nbytes


Argument: TypeAlias = ir.Value | Workspace | Constant | int


@dataclass(frozen=True, slots=True, eq=False)
class KernelCall:
    """One call of a compiled kernel: a row of the program.

    Attributes:
        kernel: `module:function`; a plain function, or with `static` a generator of source text.
        types: one per argument: `float32*` for an address, `int64` for a number.
        arguments: what is passed; the driver adds the half-open range of units, then the thread.
        units: extent of the work that threads share.
        static: arguments of the generator; None when `kernel` is a plain function.
    """

    kernel: str
    types: tuple[str, ...]
    arguments: tuple[Argument, ...]
    units: int
    static: tuple[object, ...] | None = None
    takes_thread: bool = False

    def __post_init__(self) -> None:
        if len(self.types) != len(self.arguments):
            raise ValueError(f"{self.kernel}: {len(self.types)} types for {len(self.arguments)} arguments")

    @property
    def request(self) -> "Request":
        """What the compiler is asked for."""
        return self.kernel, self.types, self.static, self.takes_thread


@dataclass(frozen=True, slots=True, eq=False)
class LaunchCall(KernelCall):
    """One launch of a kernel on an accelerator; `units` are the blocks of threads.

    Attributes:
        launch: the kernel, its grid, and its arguments by role, for which `arguments` stand.
    """

    launch: "Launch | None" = None

    @classmethod
    def of(cls, launch: "Launch", roles: Mapping[str, Argument]) -> "LaunchCall":
        """The call of a launch whose roles are these arguments.

        Raises:
            ValueError: a role has no argument.
        """
        arguments: list[Argument] = []
        for argument in launch.arguments:
            if isinstance(argument, int | float):
                arguments.append(argument)  # type: ignore[arg-type]  # numbers are those of the launch
            elif argument.role in roles:
                arguments.append(roles[argument.role])
            else:
                raise ValueError(f"{launch.kernel.name}: nothing stands for {argument.role!r}")
        kernel = launch.kernel
        return cls(kernel.name, kernel.signature, tuple(arguments), math.prod(launch.grid), launch=launch)


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A graph in a node's attributes, planned as a program of its own.

    Attributes:
        name: of the attribute.
        inputs: positions among the inputs of the call, in the order of the program's.
        outputs: positions among the outputs of the program.
        own: how many of the inputs, the first, are given anew each turn; the others lie where the program
            around it has them.
        turns: times that one run of the step runs it, as far as that is known.
    """

    name: str
    program: "Program"
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    own: int = 0
    turns: int = 1

    @property
    def places(self) -> dict[ir.Value, tuple[int, int]]:
        """Offset and bytes of its own inputs and its outputs, which follow its arena."""
        model, values = self.program.compilation.graph, self.program.placement.values
        found: dict[ir.Value, tuple[int, int]] = {}
        end = self.program.arena_bytes
        captured = model.inputs[self.own :]
        for value in dict.fromkeys((*model.inputs[: self.own], *model.outputs)):
            at = values.get(value)
            if at is not None and value not in captured and at.root in (None, value):
                start = -(-end // CACHE_LINE) * CACHE_LINE
                found[value] = start, at.nbytes
                end = start + at.nbytes
        return found

    @property
    def nbytes(self) -> int:
        """Bytes that it works in: its arena, its own inputs and its outputs."""
        return max([self.program.arena_bytes, *(sum(place) for place in self.places.values())])


class RunBody(Protocol):
    """A body that is ready to run, in the memory of the program that it belongs to.

    What it returns holds until it runs again, and is to be copied before.
    """

    def __call__(self, values: Sequence[object | None], /) -> list[object]:
        """Its outputs for these values, in the order of `Body.inputs`."""
        ...

    def again(self, changed: Mapping[int, object], /) -> list[object]:
        """Its outputs where values at these positions have changed, and no others; types are as before."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HostCall:
    """One call from Python, outside the compiled driver: the reference evaluator or a library.

    `function` names (`module:function`) what prepares it: called once with the node, it returns what
    is called with the list of inputs for every inference and returns the list of outputs. An input
    is None where the node omits it; values that bodies capture follow the node's own inputs.

    With `bodies` it is called with the node; for each that was planned, a `RunBody` of the same list of
    inputs, None for the others; and the arrays that the outputs will be in, None for objects of the host:
    an output that it returns in its own array is not copied.

    `evaluated` are the bodies that the reference evaluator runs, whose memory has no bound: the names of
    their attributes, and the least bytes that one run of them holds.
    """

    function: str
    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    bodies: tuple[Body | None, ...] = ()
    evaluated: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class SubgraphCall:
    """One call of a library that runs a whole sub-graph, with its own memory planning inside.

    `function` names (`module:function`) what prepares it, see
    `app.engine.backends.libraries.subgraph.Prepare`: called once with the sub-graph as an ONNX model, its
    input and output names in the order given here.

    Attributes:
        backend: whose function it is.
        model: makes the bytes of the ONNX model.
        arena_nbytes: what the library's own memory for values inside is counted as.
    """

    function: str
    backend: str
    model: Callable[[], bytes]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    threads: int
    arena_nbytes: int


Call: TypeAlias = KernelCall | HostCall | SubgraphCall


class View(NamedTuple):
    """A value whose bytes are a part of those of another, from `offset` on.

    Attributes:
        source: what owns the bytes: the input of a Reshape or a Split, the output of a Concat.
        view: what lies in them: the output of a Reshape or a Split, an input of a Concat.
        offset: byte of the source where the view begins.
    """

    source: ir.Value
    view: ir.Value
    offset: int = 0


# What lanes that fill up a block hold: there are none; 0; a finite number; anything.
Lanes = Literal["none", "zero", "f(0)", "undefined"]


def workspace_bytes(calls: Iterable[Call], threads: int, alignment: int = 1) -> int:
    """Bytes of workspace of calls for all threads, each rounded up; what is passed twice counts once."""
    found = {
        id(a): a.nbytes * (threads if a.per_thread else 1)
        for call in calls
        if isinstance(call, KernelCall)
        for a in call.arguments
        if isinstance(a, Workspace)
    }
    bodies = body_bytes(calls)
    return sum(-(-n // alignment) * alignment for n in (*found.values(), bodies))


def body_bytes(calls: Iterable[Call]) -> int:
    """Bytes that the bodies of calls take, one of them at a time; of those that are evaluated, the least."""
    host = [call for call in calls if isinstance(call, HostCall)]
    planned = (b.nbytes for call in host for b in call.bodies if b is not None)
    return max((*planned, *(nbytes for call in host for _, nbytes in call.evaluated)), default=0)


def unplanned_bodies(calls: Iterable[Call]) -> tuple[str, ...]:
    """Paths of the bodies whose memory has no bound, those within planned bodies among them."""
    found: list[str] = []
    for call in calls:
        if isinstance(call, HostCall):
            found += [f"{call.node.name}/{name}" for name, _ in call.evaluated]
            for body in call.bodies:
                inner = () if body is None else body.program.placement.unplanned
                found += [f"{call.node.name}/{body.name}/{name}" for name in inner if body is not None]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation chosen for a group, and what it will need."""

    implementation: "Implementation"
    calls: tuple[Call, ...]
    inplace: tuple[tuple[ir.Value, ir.Value], ...] = ()  # (input, output) that may share memory
    seconds: float = 0.0  # predicted
    views: tuple[View, ...] = ()  # values that are not moved


Space = Literal["arena", "input", "output", "weights", "host"]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a value's bytes are: an offset in one of the program's memories.

    In space `arena` the offset counts from the arena's start. Graph inputs, graph outputs and
    weights have memory of their own (offset 0 unless they are a view into it); what is dynamic
    lives on the `host` as a Python object and has no address. `root` is the value that owns the
    memory: the graph input, graph output or initializer.
    """

    space: Space
    offset: int
    nbytes: int
    root: ir.Value | None = None


class Slice(NamedTuple):
    """Bytes of a buffer while one value lives there; steps are inclusive."""

    value: str
    offset: int  # within the buffer
    nbytes: int
    first: int
    last: int


class Span(NamedTuple):
    """Bytes of a buffer that are in use from step `first` to `last`, inclusive."""

    offset: int  # within the buffer
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PlacedBuffer:
    """A row of memory.json: one rectangle of the memory map.

    Lifespan is half-open in steps: [first, last + 1) of the order.
    """

    name: str
    kind: str  # activation | conversion | workspace | library
    offset: int  # byte
    nbytes: int
    first: int  # step that writes it
    last: int  # last step that reads it
    values: tuple[str, ...]  # every value that lives in it
    reason: str  # why it exists, and why it is shared
    slices: tuple[Slice, ...] = ()  # where each of its values lies, and when
    parts: tuple[Span, ...] = ()  # what of it is in use when; empty where all is from first to last
    memory: str = ""  # of the target

    @property
    def spans(self) -> tuple[Span, ...]:
        """The parts; all of the buffer where there are none."""
        return self.parts or (Span(0, self.nbytes, self.first, self.last),)


@dataclass(frozen=True, slots=True)
class Bank:
    """What a plan takes of a further memory; its offsets count from its start, which follows the others."""

    memory: str
    start: int  # byte of the arena
    solution: "Solution"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every byte lives.

    Attributes:
        values: a location for every value that is not dynamic.
        workspaces: arena offset of each Workspace argument of a group's calls, in order.
        bodies: arena offset of what the bodies of a group's calls work in.
        solution: offsets with peak, lower bound and gap, as proved by `validate`, in the first memory.
        banks: slower memories in use; in the arena they follow the first.
        delay: seconds that slower memories are predicted to cost.
        naive: bytes if no memory were ever used twice.
        activations: most bytes of values alive at a step, workspace and alignment left out.
        policies: what the same buffers take under the policies of other systems.
        unplanned: what lives outside the arena and has no bound: dynamic values, and bodies that the
            reference evaluator runs, as `node/attribute`.
    """

    values: Mapping[ir.Value, Location]
    workspaces: Mapping[Group, tuple[int, ...]]
    buffers: tuple[PlacedBuffer, ...]
    solution: "Solution"
    naive: int
    activations: int = 0
    policies: tuple[Mapping[str, object], ...] = ()
    unplanned: tuple[str, ...] = ()
    bodies: Mapping[Group, int] = field(default_factory=dict)
    banks: tuple[Bank, ...] = ()
    delay: float = 0.0

    @property
    def arena_bytes(self) -> int:
        """Of all memories together."""
        return self.banks[-1].start + self.banks[-1].solution.peak if self.banks else self.solution.peak


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a group runs as it does; a row of decisions.json."""

    subject: str
    op: str
    chosen: str
    reason: str
    alternatives: tuple[Mapping[str, object], ...] = ()  # {name, backend, seconds, measured, reason}
    measured: bool = False  # whether the time that decided was
    error: float | None = None  # relative rms, of an implementation that rounds more than a plain sum


@dataclass(frozen=True, slots=True)
class Record:
    """What a pass did."""

    name: str
    seconds: float
    nodes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Columns. None means that no pass has written the column yet; a written one is total."""

    partition: Mapping[ir.Node, Subgraph] | None = None
    fusion: Mapping[ir.Node, Group] | None = None
    storage: Mapping[ir.Value, StorageType] | None = None
    dispatch: Mapping[ir.Node, DispatchMode] | None = None
    layout: Mapping[ir.Value, Layout] | None = None
    padding: Mapping[ir.Value, Lanes] | None = None
    implementation: Mapping[Group, Choice] | None = None
    order: tuple[Group, ...] | None = None
    placement: Placement | None = None

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups, in order of their first node in the graph."""
        assert self.fusion is not None
        return tuple(dict.fromkeys(self.fusion.values()))


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
    concessions: MemoryConcessions = field(default_factory=MemoryConcessions)  # what is given up for memory
    # Byte below which no order of the chosen implementations stays; None where it is not known.
    order_bound: int | None = None
    # Byte below which no rows for the groups stay, in any order; None where nobody looked.
    row_bound: int | None = None
    placed: "Placed | None" = field(default=None, repr=False, compare=False)  # what the order was chosen by
    assignment: Mapping[str, str] = field(default_factory=dict)  # by node: `backend#part`, as measured
    # The model as the file has it, inputs bound: what a library that runs all of it is given.
    source: ir.Model | None = field(default=None, repr=False, compare=False)
    failures: Mapping[tuple[str, str], str] = field(default_factory=dict)  # by node and backend: why
    passed_over: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by node, by backend: why
    # What rows said of groups that are alike, see `app.engine.core.signature`.
    facts: signature.Shared = field(default_factory=dict, repr=False, compare=False)

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    def with_plan(self, **columns: object) -> "Compilation":
        """The same compilation with these columns replaced."""
        return replace(self, plan=replace(self.plan, **columns))  # type: ignore[arg-type]  # names are checked by replace
