"""A program as constants: rows of kernel calls, places of their arguments, and the bytes of its weights.

`app/kernels/library/program.h` has the same structures in C.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core import graph
from app.engine.core.calls import (
    Argument,
    Body,
    BodyCall,
    BodyValue,
    Constant,
    Excess,
    Jump,
    KernelCall,
    Workspace,
    planned_bodies,
)
from app.engine.core.program import Program, Step
from app.engine.export.labelled import labelled
from app.engine.model import operand_types
from app.engine.operators.axes import split
from app.engine.operators.operands import itemsize
from app.engine.rewrites.bounded.prefix import prefix_of
from app.engine.runtime.cpu.executor import MIN_SHARED_SECONDS
from app.engine.runtime.cpu.memory import ALIGNMENT
from app.engine.runtime.cpu.rows import flattened
from app.engine.runtime.executor import sparse_format
from app.engine.types.errors import ExportError
from app.kernels.cpu.codegen.tiles import TILED_BFLOATS
from app.kernels.cpu.runtime.compiler import Request, source_hash, symbol_of
from app.kernels.cpu.runtime.driver import JUMP
from app.kernels.cpu.runtime.processor import Processor, compiled_for
from app.kernels.library.processor_features import required

NUMBER, ARENA, WEIGHTS, BUFFERS = range(4)  # what an argument's offset counts from
WEIGHTS_SYMBOL = "stowplan_weights"
LISTED = 8  # nodes that an error names
PREFIX: Request = (
    "app.kernels.cpu.selection:prefix",
    ("uint8*", "int64*", "uint8*", "int64*", "int64*", *("int64",) * 4),
    None,
    False,
)


@dataclass(frozen=True, slots=True)
class Place:
    """Offset in one of the memories of an instance."""

    space: int
    offset: int


FIXED = Place(NUMBER, 0)  # of the shape of an output that every run gives the same shape


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel call."""

    kernel: str
    arguments: tuple[Place, ...]
    units: int
    shared: bool


@dataclass(frozen=True, slots=True)
class JumpRow:
    """Go on `displacement` rows from here if the int64 at a place is `expected`, else with the next row."""

    displacement: int
    arguments: tuple[Place]
    expected: int


class Blob:
    """Arrays one after another, each on a cache line; equal ones once.

    Attributes:
        parts: the bytes, in pieces; those of the arrays are not copied.
        size: bytes of all.
    """

    def __init__(self) -> None:
        self.parts: list[bytes | memoryview] = []
        self.size = 0
        self._at: dict[bytes, int] = {}  # offsets by SHA-256

    def put(self, array: np.ndarray[Any, Any]) -> int:
        """Offset of an array's bytes; the array stays as it is."""
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        digest = hashlib.sha256(content).digest()
        if digest not in self._at:
            self._at[digest] = self.size
            padding = -len(content) % ALIGNMENT
            self.parts += [content, bytes(padding)]
            self.size += len(content) + padding
        return self._at[digest]

    @property
    def digest(self) -> bytes:
        """Digest of the bytes."""
        return hashlib.sha256(b"".join(self._at)).digest()


@dataclass(frozen=True, slots=True)
class Image:
    """A program that needs nothing of Python.

    Attributes:
        symbols: of its kernels, by what the compiler is asked for.
        inputs: values with their places, as the outputs.
        shapes: of outputs that are prefixes, where a run leaves their shape: int64 numbers.
    """

    program: Program
    symbols: Mapping[Request, str]
    rows: tuple[Row | JumpRow, ...]
    weights: Blob
    buffer_bytes: int
    inputs: tuple[tuple[ir.Value, Place], ...]
    outputs: tuple[tuple[ir.Value, Place], ...]
    shapes: Mapping[ir.Value, Place]


def image(program: Program) -> Image:
    """The image of a program.

    Raises:
        ExportError: a step needs Python or a library, or an input is no dense tensor of fixed shape.
    """
    _check(program)
    return _Imaging(program).image()


def rejections(program: Program) -> list[str]:
    """Reasons why a program cannot leave Python, one a step or value."""
    found = _host_steps(program)
    model = program.compilation.graph
    found += [reason for v in (*model.inputs, *model.outputs) if (reason := _absent_from_c(v))]
    found += [
        f"input {value.name!r} is given sparse" for value in model.inputs if sparse_format(program, value)
    ]
    found += [
        f"{argument.pointer}: a declared bound, which every run must be checked for"
        for step in program.steps
        for call in step.calls
        for argument in (call.arguments if isinstance(call, KernelCall) else ())
        if isinstance(argument, Excess) and argument.before
    ]
    return found


def _absent_from_c(value: ir.Value) -> str | None:
    """Reason why the C interface cannot have a value, None if it can."""
    kind = held(value).dtype
    if not graph.is_tensor(held(value)):
        found = operand_types.title(value.type) or "a value of unknown type"
        return f"value {value.name!r} is {found}, not a tensor of numbers"
    if graph.is_dynamic(held(value)):
        return f"value {value.name!r} has no fixed shape, and no bound of it is known"
    if kind is None or kind.value not in DTYPES:
        return f"value {value.name!r} has elements of type {kind}, which the C interface has not"
    return None


def held(value: ir.Value) -> ir.Value:
    """The value of static shape whose first elements an output is, or whose numbers; others themselves."""
    prefix, named = prefix_of(value), labelled(value)
    return prefix.whole if prefix is not None else value if named is None else named.numbers


def _host_steps(program: Program, around: str = "") -> list[str]:
    """Reasons of steps that no compiled driver runs; of control flow those within, if there are any."""
    found: list[str] = []
    for step in (s for s in program.steps if s.is_host):
        if not around and held(step.group.outputs[0]) is not step.group.outputs[0]:
            continue
        path = around + step.group.name
        bodies = [body for call in step.calls for body in planned_bodies(call)]
        inner = [reason for b in bodies for reason in _host_steps(b.program, f"{path}/{b.name}/")]
        where = "a library" if step.is_library else "Python"
        if bodies and not inner:
            where += ", for a run alone tells the sizes of its results"
        found += inner or [f"node {path!r} ({step.group.op}) runs in {where}"]
    return found


# Numbers of onnx.TensorProto.DataType that `model.h` names.
DTYPES = frozenset((1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16))


def _check(program: Program) -> None:
    found = rejections(program)
    if found:
        more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise ExportError(
            f"the model needs more than compiled kernels: {'; '.join(found[:LISTED])}{more}. "
            "Plan it with backends ['numba-cpu'] to see what has no kernel"
        )


class _Imaging:
    """A program in the memories of an instance; a body lies in those of the program around it.

    Args:
        program: whose rows are made.
        around: of the program that has it as a body.
        arena: where its arena begins in that of the whole.
        roots: places of inputs and outputs that the program around it has.
    """

    def __init__(
        self,
        program: Program,
        around: "_Imaging | None" = None,
        arena: int = 0,
        roots: Mapping[ir.Value, Place] = MappingProxyType({}),
    ) -> None:
        self._program = program
        self._outermost: _Imaging = self if around is None else around._outermost
        self._arena = arena
        self._roots = dict(roots)
        self._bodies: dict[Body, _Imaging] = {}
        self._symbols: dict[Request, str] = {} if around is None else around._symbols
        self._weights: Blob = Blob() if around is None else around._weights
        self._packed: dict[int, int] = {}  # offsets by the identity of a Constant
        self._buffer_bytes = 0
        self._shapes: dict[ir.Value, Place] = {}

    def image(self) -> Image:
        model = self._program.compilation.graph
        rows = tuple(self._all_rows())
        inputs = tuple((v, self._place(v)) for v in model.inputs)
        outputs = tuple((v, self._place(v)) for v in model.outputs)
        return Image(
            self._program,
            self._symbols,
            rows,
            self._weights,
            self._buffer_bytes,
            inputs,
            outputs,
            self._shapes,
        )

    def _all_rows(self) -> Sequence[Row | JumpRow]:
        return [row for step in self._program.steps for row in self._rows(step)]

    def _rows(self, step: Step) -> Sequence[Row | JumpRow]:
        worth = step.choice.seconds >= MIN_SHARED_SECONDS
        for call in step.calls:
            if isinstance(call, BodyCall):
                self._bodies[call.body] = self._body(call, step)

        def kernel_row(call: KernelCall) -> Row | JumpRow:
            symbol = self._symbols.setdefault(call.request, symbol_of(call.request))
            places = tuple(self._argument(a, step) for a in call.arguments)
            return Row(symbol, places, call.units, call.units > 1 and worth)

        def jump_row(call: Jump, displacement: int) -> Row | JumpRow:
            return JumpRow(displacement, (self._argument(call.flag, step),), call.expected)

        if step.is_host:
            return [self._output_row(y) for y in step.group.outputs if held(y) is not y]
        return flattened(step.calls, kernel_row, jump_row, lambda body: self._bodies[body]._all_rows())[0]

    def _output_row(self, y: ir.Value) -> Row:
        """The row that copies an output out of the value that holds its elements, and tells its shape."""
        whole, prefix = held(y), prefix_of(y)
        sizes = graph.static_shape(whole) or (1,)
        axis = 0 if prefix is None else prefix.axis
        shape = np.array(sizes, np.int64)
        outer, _, inner = split(sizes, axis)
        self._shapes[y], self._roots[y] = self._buffer(shape.nbytes), self._buffer(graph.nbytes(whole))
        count = self._place(prefix.count) if prefix else Place(WEIGHTS, self._weights.put(shape[:1]))
        places = (
            self._place(whole),
            count,
            self._roots[y],
            self._shapes[y],
            Place(WEIGHTS, self._weights.put(shape)),
            *(Place(NUMBER, n) for n in (axis, shape.size, outer, inner * itemsize(whole))),
        )
        return Row(self._symbols.setdefault(PREFIX, symbol_of(PREFIX)), places, 1, False)

    def _body(self, call: BodyCall, step: Step) -> "_Imaging":
        body = call.body
        arena = self._arena + self._program.placement.bodies.get(step.group, 0)
        roots = {v: Place(ARENA, arena + start) for v, (start, _) in body.places.items()}
        roots |= {value: self._place(outer) for value, outer in body.captured(call.inputs)}
        return _Imaging(body.program, self, arena, roots)

    def _argument(self, argument: Argument, step: Step) -> Place:
        if isinstance(argument, Workspace):
            return Place(ARENA, self._arena + step.workspaces[id(argument)])
        if isinstance(argument, Constant):
            if id(argument) not in self._packed:
                self._packed[id(argument)] = self._weights.put(argument.array)
            return Place(WEIGHTS, self._packed[id(argument)])
        if isinstance(argument, BodyValue):
            return self._bodies[argument.body]._place(argument.value)
        if isinstance(argument, Excess):
            return self._buffer(ALIGNMENT)
        if isinstance(argument, ir.Value):
            return self._place(argument)
        return Place(NUMBER, int(argument))

    def _place(self, value: ir.Value) -> Place:
        if value in self._roots:
            return self._roots[value]
        location = self._program.placement.values[value]
        if location.space == "arena":
            return Place(ARENA, self._arena + location.offset)
        root = location.root if location.root is not None else value
        if root not in self._roots:
            fixed = graph.constant(root)
            at = None if fixed is None else Place(WEIGHTS, self._weights.put(fixed))
            self._roots[root] = at or self._buffer(graph.nbytes(root))
        found = self._roots[root]
        return Place(found.space, found.offset + location.offset)

    def _buffer(self, nbytes: int) -> Place:
        """Memory that keeps its content until the next run."""
        whole = self._outermost
        first = whole._buffer_bytes
        whole._buffer_bytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return Place(BUFFERS, first)


def described(value: ir.Value) -> dict[str, object]:
    """Name, dtype and shape of an input or output; of a prefix the axis along which a run gives less, too.

    Of numbers that stand for maps or names also their labels.
    """
    prefix, named = prefix_of(value), labelled(value)
    return {
        "name": value.name,
        "dtype": onnx_type(value).name.lower(),
        "shape": list(graph.static_shape(held(value))),
        **({} if prefix is None else {"prefix_axis": prefix.axis}),
        **({} if named is None else {named.kind: list(named.labels)}),
    }


def description(found: Image, name: str, processor: Processor) -> dict[str, object]:
    """Facts of a program that leaves, as JSON; `name` is the model's."""
    program = found.program
    compilation, target = program.compilation, program.compilation.target
    return {
        "name": name,
        "inputs": [described(v) for v, _ in found.inputs],
        "outputs": [described(v) for v, _ in found.outputs],
        "threads": compilation.options.threads,
        "target": target.name,
        "processor": processor.name if processor == compiled_for() else target.name,
        "architecture": processor.architecture,
        "features": processor.features,
        "kernels": source_hash(processor),
        "bytes": {
            "arena": program.arena_bytes,
            "inputs and outputs": found.buffer_bytes,
            "weights": found.weights.size,
        },
    }


def onnx_type(value: ir.Value) -> ir.DataType:
    """Element type of an input or output.

    Raises:
        ExportError: it has none.
    """
    found = held(value).dtype
    if found is None:
        raise ExportError(f"value {value.name!r} has no element type")
    return found


def assembly(image: Image, features: str, metadata: Mapping[str, object]) -> str:
    """LLVM assembly that defines `stowplan_program`.

    Args:
        image: the program.
        features: of the processor that the kernels are compiled for, as LLVM takes them.
        metadata: what `stowplan_metadata` answers, as JSON; `domain` is of the custom operator.
    """
    tiled = any(TILED_BFLOATS in (static or ()) for _, _, static, _ in image.symbols)
    bits, state = required(features, tile_registers=tiled)
    names = list(dict.fromkeys(image.symbols.values()))
    number = {name: n for n, name in enumerate(names)}
    arguments = [place for row in image.rows for place in row.arguments]
    rows, first = [], 0
    for row in image.rows:
        if isinstance(row, JumpRow):
            rows += [row.displacement, JUMP, row.expected, first, 0]
        else:
            rows += [number[row.kernel], len(row.arguments), row.units, first, int(row.shared)]
        first += len(row.arguments)
    text = _Assembly()
    pointers = [
        text.array("row", "i64", [f"i64 {n}" for n in rows]),
        text.array("argument", PLACE, map(_place, arguments)),
        text.array("kernel", "ptr", [f"ptr @{name}" for name in names]),
        text.tensors("input", [v for v, _ in image.inputs]),
        text.tensors("output", [v for v, _ in image.outputs]),
        text.array("input_place", PLACE, [_place(p) for _, p in image.inputs]),
        text.array("output_place", PLACE, [_place(p) for _, p in image.outputs]),
        text.array("output_shape", PLACE, [_place(image.shapes.get(v, FIXED)) for v, _ in image.outputs]),
        text.array("feature", FEATURE, [_feature(b.leaf, b.subleaf, b.register, 1 << b.bit) for b in bits]),
        f"@{WEIGHTS_SYMBOL}",
        text.string("metadata", json.dumps(metadata, sort_keys=True)),
        text.string("domain", str(metadata["domain"])),
    ]
    program = image.program
    numbers = [
        program.compilation.options.threads,
        program.arena_bytes,
        image.buffer_bytes,
        image.weights.size,
        *(len(image.rows), len(arguments), len(image.inputs), len(image.outputs), len(bits), state),
    ]
    fields = ", ".join([*(f"i64 {n}" for n in numbers), *(f"ptr {p}" for p in pointers)])
    kind = ", ".join(["i64"] * len(numbers) + ["ptr"] * len(pointers))
    declared = [f"declare void @{name}()" for name in names]
    return "\n".join(
        [
            f"@{WEIGHTS_SYMBOL} = external hidden constant i8",
            *declared,
            *text.lines,
            f"@stowplan_program = hidden constant {{ {kind} }} {{ {fields} }}",
            "",
        ]
    )


PLACE, FEATURE, TENSOR = "{ i64, i64 }", "{ i32, i32, i32, i32 }", "{ ptr, ptr, i32, i32, i64 }"


class _Assembly:
    """Constants in LLVM assembly; each method returns the name of what it adds."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def array(self, name: str, kind: str, elements: Iterable[str]) -> str:
        found = list(elements)
        content = f"[{', '.join(found)}]" if found else "zeroinitializer"
        self.lines.append(f"@table.{name} = internal constant [{len(found)} x {kind}] {content}")
        return f"@table.{name}"

    def string(self, name: str, text: str) -> str:
        raw = text.encode() + b"\0"
        escaped = "".join(f"\\{byte:02x}" for byte in raw)
        self.lines.append(f'@text.{name} = internal constant [{len(raw)} x i8] c"{escaped}"')
        return f"@text.{name}"

    def tensors(self, name: str, values: Sequence[ir.Value]) -> str:
        elements = []
        for n, value in enumerate(values):
            shape = graph.static_shape(held(value))
            title = self.string(f"{name}.{n}", value.name or "")
            axes = self.array(f"{name}.{n}", "i64", [f"i64 {size}" for size in shape])
            numbers = f"i32 {len(shape)}, i32 {onnx_type(value).value}, i64 {graph.nbytes(held(value))}"
            elements.append(f"{TENSOR} {{ ptr {title}, ptr {axes}, {numbers} }}")
        return self.array(name, TENSOR, elements)


def _place(place: Place) -> str:
    return f"{PLACE} {{ i64 {place.space}, i64 {place.offset} }}"


def _feature(*numbers: int) -> str:
    return f"{FEATURE} {{ {', '.join(f'i32 {n}' for n in numbers)} }}"
