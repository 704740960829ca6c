"""Calls of kernels, libraries and the host, and their arguments: what a program runs."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from app.engine.types.errors import InputError, StorageBoundError

if TYPE_CHECKING:
    from app.engine.core.program import Program
    from app.kernels.cpu.runtime.compiler import Request
    from app.kernels.cuda.kernel import Launch

Array: TypeAlias = np.ndarray[Any, Any]

CACHE_LINE = 64  # byte


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

    __slots__ = ("_nbytes", "name", "source")

    def __init__(self, source: Array | Callable[[], Array], name: str = "") -> None:
        self.source = source
        self._nbytes = -1
        self.name = name

    @property
    def array(self) -> Array:
        """The array; made anew each time where the source is a function."""
        made = self.source() if callable(self.source) else self.source
        self._nbytes = made.nbytes
        return made

    def settle(self, array: Array) -> None:
        """Hold an equal array from now on, instead of what it is made from."""
        self.source = array

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.array.nbytes if self._nbytes < 0 else self._nbytes


@dataclass(frozen=True, slots=True)
class BodyValue:
    """An argument: an input or an output of a body, where the body has it."""

    body: "Body"
    value: ir.Value


@dataclass(frozen=True, slots=True, eq=False)
class Excess:
    """An argument: int64[1] outside of the arena where a kernel writes a number beyond a planned bound.

    It is zero before every run.

    Attributes:
        before: message of the error of a run after which it is not zero, up to the number; empty where there
            is no error.
        after: what follows the number.
        pointer: of the error.
        error: its class.
    """

    before: str = ""
    after: str = ""
    pointer: str = ""
    error: type[InputError] = StorageBoundError


Argument: TypeAlias = ir.Value | Workspace | Constant | BodyValue | Excess | int


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
        """Request to the compiler."""
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

    def captured(self, inputs: Sequence[ir.Value | None]) -> Iterator[tuple[ir.Value, ir.Value]]:
        """Its inputs that lie where the program around it has them, each with that of the call."""
        inner = self.program.compilation.graph.inputs
        for value, position in zip(inner[self.own :], self.inputs[self.own :], strict=True):
            if (outer := inputs[position]) is not None:
                yield value, outer

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
class Jump:
    """Go on with another call of the step where an int64 in memory is `expected`, else with the next one.

    Attributes:
        flag: where the number is.
        target: index among the calls of the step; their number for its end.
    """

    flag: Workspace
    expected: int
    target: int

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The flag, as of calls of kernels."""
        return (self.flag,)


@dataclass(frozen=True, slots=True, eq=False)
class BodyCall:
    """One turn of a body whose steps the compiled driver runs, each of them.

    `inputs` are the values that `body.inputs` are positions among. What a body has of its own is copied by
    calls of kernels before and after, see `BodyValue`.
    """

    body: Body
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class HostCall:
    """One call from Python, outside the compiled driver: the reference evaluator or a library.

    `function` names (`module:function`) what prepares it: called once with the node, it returns what
    is called with the list of inputs for every inference and returns the list of outputs. An input
    is None where the node omits it; values that bodies capture follow the node's own inputs.

    With `bodies` it is called with the node; for each that was planned, a `RunBody` of the same list of
    inputs, None for the others; and the arrays that the outputs will be in, None for objects of the host:
    an output that it returns in its own array is not copied.

    With `kernels` it is called with the node and these, compiled, as functions of addresses and numbers
    (`CompiledKernel.function`): of operators whose results have a size that they find out.

    With `nodes` as well it computes these together, `node` the last of them, and they are given too.

    `evaluated` are the bodies that the reference evaluator runs, whose memory has no bound: the names of
    their attributes, and the least bytes that one run of them holds.
    """

    function: str
    node: ir.Node
    inputs: tuple[ir.Value | None, ...]
    outputs: tuple[ir.Value, ...]
    bodies: tuple[Body | None, ...] = ()
    evaluated: tuple[tuple[str, int], ...] = ()
    kernels: tuple["Request", ...] = ()
    nodes: tuple[ir.Node, ...] = ()

    @property
    def is_compiled(self) -> bool:
        """True if it calls kernels of ours, and evaluates nothing."""
        return bool(self.kernels) and not self.evaluated


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


Call: TypeAlias = KernelCall | Jump | BodyCall | HostCall | SubgraphCall


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


def planned_bodies(call: Call) -> tuple[Body, ...]:
    """The bodies of a call that are programs of their own."""
    if isinstance(call, BodyCall):
        return (call.body,)
    return tuple(b for b in call.bodies if b is not None) if isinstance(call, HostCall) else ()


def body_bytes(calls: Iterable[Call]) -> int:
    """Bytes that the bodies of calls take, one of them at a time; of those that are evaluated, the least."""
    return max(
        (
            *(body.nbytes for call in calls for body in planned_bodies(call)),
            *(nbytes for call in calls if isinstance(call, HostCall) for _, nbytes in call.evaluated),
        ),
        default=0,
    )


def unplanned_bodies(calls: Iterable[Call]) -> tuple[str, ...]:
    """Paths of the bodies whose memory has no bound, those within planned bodies among them."""
    found: list[str] = []
    for call in calls:
        if isinstance(call, HostCall):
            found += [f"{call.node.name}/{name}" for name, _ in call.evaluated]
            for body in planned_bodies(call):
                inner = body.program.placement.unplanned
                found += [f"{call.node.name}/{body.name}/{name}" for name in inner]
    return tuple(found)


def same(one: object, other: object) -> bool:
    """True if two operands are known to be the same; functions are if their text and operands are.

    Nothing is computed: what cannot be told is not the same.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        return one.__array_interface__ == other.__array_interface__ or np.array_equal(one, other)
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        cells = zip(one.__closure__ or (), other.__closure__ or ())
        return (
            one.__code__ is other.__code__
            and same(one.__defaults__, other.__defaults__)
            and all(same(a.cell_contents, b.cell_contents) for a, b in cells)
        )
    if isinstance(one, functools.partial) and isinstance(other, functools.partial):
        return same(one.func, other.func) and same(one.args, other.args) and one.keywords == other.keywords
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    try:
        return bool(one == other)
    except ValueError:  # arrays inside
        return False
