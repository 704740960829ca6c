"""Accelerators described by data: the steps that a device computes, and what it asks of each.

A row is one operator, or one small graph of operators that the device computes at once, with the layouts,
memories and sizes that it takes and what it costs. `app.engine.backends.cost_only.described` makes
implementations of the rows.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.engine.types.errors import TargetError
from app.engine.types.layout import IMAGES, WEIGHTS, Layout

BACKEND = "accelerator"
ANY_ELEMENTWISE = "Elementwise"  # in place of the name of an operator
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "bool"),
    *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")),
)
LONGEST_PATTERN = 16  # nodes
LONGEST_LAYOUT = 32  # characters
LONGEST_US = 1e9  # microseconds of a point
WIDEST_BLOCK = 4096  # elements of an axis that all blocks of a layout hold together

# Operators of which a result may be bytes of the operand, or operands bytes of the result.
VIEW_OPS = (
    "Concat",
    "Flatten",
    "Gather",
    "Identity",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
RESERVED = ("from", "to", "zero", "if", "loop", "scan")  # names of rows that every device has

_POSITION = re.compile(r"in\d{0,2}|out\d{0,2}|weights")


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a step: a table of points, else the roofline of the device.

    Attributes:
        macs_per_second: multiply-accumulates; an elementwise operation is half of one. None: not a limit.
        bytes_per_second: operands and results, padding included. None: not a limit.
        fixed_us: microseconds of every dispatch.
        points: (multiply-accumulates of a dispatch, microseconds beside `fixed_us`), rising; in between and
            beyond the last two a straight line, below the first its time.
    """

    macs_per_second: float | None = None
    bytes_per_second: float | None = None
    fixed_us: float = 0.0
    points: tuple[tuple[float, float], ...] = ()

    def check(self, place: str) -> None:
        """Raises TargetError where the points do not rise, or a time is beyond any step."""
        longest = max((time for _, time in self.points), default=0.0)
        _require(
            longest <= LONGEST_US, f"{longest:g} microseconds, at most {LONGEST_US:g}", f"{place}/points"
        )
        for (before, _), (after, _) in itertools.pairwise(self.points):
            _require(
                before < after,
                f"multiply-accumulates of points must rise, found {after:g} after {before:g}",
                f"{place}/points",
            )


@dataclass(frozen=True, slots=True)
class Operand:
    """Demands on an operand.

    Attributes:
        layouts: one for each number of axes; none: row-major, of any number. A constant is packed so.
        multiple: of the channels, or of the last axis where the letters of the layout name no channels: they
            are padded where they lie innermost, else the row takes no others.
        memory: where the step has it; empty: where it is.
        dtypes: in place of those of the row.
        constant: whether it must be one.
    """

    layouts: tuple[str, ...] = ()
    multiple: int = 1
    memory: str = ""
    dtypes: tuple[str, ...] = ()
    constant: bool = False

    def check(self, place: str, memories: Iterable[str]) -> None:
        """Raises TargetError where a layout, a type or a memory does not exist."""
        ranks: set[int] = set()
        for text in self.layouts:
            found = self._parsed(text, place)
            rank = len(found.order)
            _require(
                rank not in ranks, f"two layouts of {rank} axes, the second {text!r}", f"{place}/layouts"
            )
            ranks.add(rank)
            self.layout(rank)
        known = ", ".join(memories)
        _require(
            not self.memory or self.memory in memories,
            f"unknown memory {self.memory!r}; the target has {known}",
            f"{place}/memory",
        )
        _check_dtypes(self.dtypes, place)

    def _parsed(self, text: str, place: str) -> Layout:
        _require(
            len(text) <= LONGEST_LAYOUT,
            f"layout of {len(text)} characters, at most {LONGEST_LAYOUT}",
            f"{place}/layouts",
        )
        try:
            found = Layout.parse(text)
        except ValueError as cause:
            raise TargetError(str(cause), pointer=f"{place}/layouts") from cause
        widest = max((found.lanes(axis) for axis in found.order), default=1)
        _require(bool(found.order), "a layout names at least one axis", f"{place}/layouts")
        _require(
            widest <= WIDEST_BLOCK,
            f"layout {text!r} has blocks of {widest} elements, at most {WIDEST_BLOCK}",
            f"{place}/layouts",
        )
        return found

    def layout(self, rank: int) -> tuple[Layout, int] | None:
        """Layout of values of so many axes and the axis that must be a multiple; None where there is none."""
        if not self.layouts:
            return Layout(tuple(range(rank))), _channel_axis("", rank)
        for text in self.layouts:
            found = Layout.parse(text)
            if len(found.order) == rank:
                axis = _channel_axis(text, rank)
                if self.multiple > 1 and not found.blocks and found.order[-1] == axis:
                    found = Layout(found.order, ((axis, self.multiple),))
                return found, axis
        return None


def _channel_axis(text: str, rank: int) -> int:
    letters = re.sub(r"[^A-Z]", "", text)
    if rank == len(IMAGES) and sorted(letters) in ([], sorted(IMAGES)):
        return IMAGES.index("C")
    if letters and sorted(letters) == sorted(WEIGHTS):
        return WEIGHTS.index("O")
    return rank - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what one step may be; None and empty: no bound.

    Attributes:
        rank: axes of every operand.
        kernel, stride, dilation: along each axis of the operator's window.
        channels: of the first input and of the output.
        nbytes: of all operands and results of a step in their layouts.
        tile: extents of the largest result of one dispatch along its last axes: a larger takes several.
        dispatches: of a step.
        attributes: values that an attribute may have, where the node states it.
        depthwise: whether a convolution must, or must not, have one filter for each channel.
        zero_points: whether an integer product may have zero points other than 0.
    """

    rank: int | None = None
    kernel: int | None = None
    stride: int | None = None
    dilation: int | None = None
    channels: int | None = None
    nbytes: int | None = None
    tile: tuple[int, ...] = ()
    dispatches: int | None = None
    attributes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    depthwise: bool | None = None
    zero_points: bool = True


@dataclass(frozen=True, slots=True)
class Views:
    """Rule of steps that compute nothing: results are bytes of the operand, or operands bytes of the result.

    Attributes:
        alignment: byte of which the place of a part in the whole must be a multiple; other parts are copied.
    """

    alignment: int = 1


@dataclass(frozen=True, slots=True)
class PatternNode:
    """One operator of a pattern.

    Attributes:
        op: its name, or several with `|` between.
        inputs: names of values; one that ends with `?` may be absent.
        outputs: names of values.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of its operators."""
        return tuple(self.op.split("|"))


@dataclass(frozen=True, slots=True)
class AcceleratorRow:
    """A step that the device computes.

    Attributes:
        name: unique in the description.
        ops: operators that a step may be one of; `Elementwise` is any elementwise one.
        pattern: in place of `ops`, the operators that a step is; one value leaves it, through the last node.
        epilogue: elementwise operators that may follow in the same step; `Elementwise` is any.
        dtypes: of all operands and results.
        operands: demands by name: in a pattern its values, else `in0`, `out0` and so on; `weights` are
            constants, `in` and `out` all others that are not named.
        inplace: (input, output) that may be the same bytes.
        reads: what it needs in padded lanes, see `app.engine.core.registry.Padding`.
        leaves: what it leaves there.
        views: of a row whose results are no copies; what cannot be a view is copied.
        cost: of a step; of a row of views, of copying.
    """

    name: str
    ops: tuple[str, ...] = ()
    pattern: tuple[PatternNode, ...] = ()
    epilogue: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    operands: Mapping[str, Operand] = field(default_factory=dict)
    inplace: tuple[tuple[str, str], ...] = ()
    reads: Literal["any", "zero"] = "zero"
    leaves: Literal["undefined", "zero", "f(0)"] = "undefined"
    limits: Limits = field(default_factory=Limits)
    views: Views | None = None
    cost: Cost | None = None

    @property
    def operators(self) -> frozenset[str]:
        """Every operator that a step may contain."""
        return frozenset((*self.ops, *self.epilogue, *(op for node in self.pattern for op in node.ops)))

    def check(self, place: str, memories: Iterable[str]) -> None:
        """Raises TargetError where the row contradicts itself."""
        _require(bool(self.ops) != bool(self.pattern), "a row has either ops or a pattern", place)
        _require(
            self.leaves != "f(0)" or self.ops == (ANY_ELEMENTWISE,),
            f"only a row of {ANY_ELEMENTWISE!r} alone leaves f(0); others leave 'zero' or 'undefined'",
            f"{place}/leaves",
        )
        _require(not (self.pattern and self.epilogue), "a pattern has no epilogue", f"{place}/epilogue")
        entering, leaving = _pattern_values(self.pattern, f"{place}/pattern")
        names = entering | leaving
        for name, operand in self.operands.items():
            where = f"{place}/operands/{name}"
            known = name in names or name in ("in", "out", "weights") if names else _POSITION.fullmatch(name)
            _require(
                bool(known),
                f"unknown operand {name!r}; "
                + (
                    f"the pattern has {', '.join(sorted(names))}"
                    if names
                    else "there are in0, out0, in, out, weights"
                ),
                where,
            )
            operand.check(where, memories)
        for source, result in self.inplace:
            known = (
                source in entering and result in leaving
                if self.pattern
                else re.fullmatch(r"in\d{1,2} out\d{1,2}", f"{source} {result}")
            )
            expected = (
                "a value that enters the pattern and one that leaves it" if names else "such as in0, out0"
            )
            _require(bool(known), f"expected {expected}, found {source!r}, {result!r}", f"{place}/inplace")
        _check_dtypes(self.dtypes, place)
        if self.cost is not None:
            self.cost.check(f"{place}/cost")
        if self.views is not None:
            self._check_views(place)

    def _check_views(self, place: str) -> None:
        """Raises TargetError where results of the row cannot be views."""
        unknown = next((op for op in self.ops if op not in VIEW_OPS), "a pattern" if self.pattern else None)
        known = ", ".join(VIEW_OPS)
        _require(unknown is None, f"{unknown!r} makes no views; there are {known}", f"{place}/views")
        _require(not self.epilogue, "a row of views computes nothing", f"{place}/epilogue")
        _require(
            not self.inplace, "a row of views has no pairs; its values are the same bytes", f"{place}/inplace"
        )
        for name, operand in self.operands.items():
            _require(not operand.memory, "a view is where its operand is", f"{place}/operands/{name}/memory")


def _pattern_values(pattern: tuple[PatternNode, ...], place: str) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the values that enter a pattern, and of those that leave it; none without a pattern.

    Raises:
        TargetError: it is no graph in the order of its wiring that one value leaves.
    """
    _require(len(pattern) <= LONGEST_PATTERN, f"{len(pattern)} nodes, at most {LONGEST_PATTERN}", place)
    made: set[str] = set()
    entering: set[str] = set()
    for index, node in enumerate(pattern):
        where = f"{place}/{index}"
        read = {name.removesuffix("?") for name in node.inputs}
        _require(bool(node.outputs), "a node of a pattern has an output", where)
        for name in node.outputs:
            _require(
                name not in made | entering | read, f"{name!r} is written after it is read or twice", where
            )
        entering |= read - made
        made |= set(node.outputs)
    used = {name.removesuffix("?") for node in pattern for name in node.inputs}
    for index, node in enumerate(pattern[:-1]):
        _require(
            any(name in used for name in node.outputs),
            f"nothing reads what {node.op} writes; one value leaves a pattern, through its last node",
            f"{place}/{index}",
        )
    return frozenset(entering), frozenset(pattern[-1].outputs if pattern else ())


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The description of a device.

    Attributes:
        rows: its steps; patterns are matched in this order.
        cost: of rows that state none; None: the roofline of the target.
        conversion: of a change of layout, with no multiply-accumulates; None: as that of the target.
        control_flow: whether it runs the bodies of If, Loop and Scan, of which the host chooses.
    """

    rows: tuple[AcceleratorRow, ...]
    cost: Cost | None = None
    conversion: Cost | None = None
    control_flow: bool = False

    def check(self, memories: Iterable[str]) -> None:
        """Check the description against the memories of its target.

        Raises:
            TargetError: a row contradicts itself or names something unknown; the pointer tells where.
        """
        names = tuple(memories)
        _require(len(set(names)) == len(names), "two memories have one name", "/memories")
        seen: set[str] = set()
        for index, row in enumerate(self.rows):
            place = f"/accelerator/rows/{index}"
            _require(row.name not in RESERVED, f"a row cannot be called {row.name!r}", f"{place}/name")
            _require(row.name not in seen, f"two rows are called {row.name!r}", f"{place}/name")
            seen.add(row.name)
            row.check(place, names)
        for name, cost in (("cost", self.cost), ("conversion", self.conversion)):
            if cost is not None:
                cost.check(f"/accelerator/{name}")

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Every layout of a value that is not row-major, each once."""
        found = {
            made[0]: None
            for row in self.rows
            for name, operand in row.operands.items()
            for text in operand.layouts
            if name != "weights" and not operand.constant
            if (made := operand.layout(len(Layout.parse(text).order))) is not None
        }
        return tuple(layout for layout in found if not layout.is_plain)


def accelerator_of(spec: Mapping[str, Any]) -> Accelerator:
    """The description that `dataclasses.asdict` took apart, after a trip through JSON."""
    return Accelerator(
        tuple(_row_of(row) for row in spec["rows"]),
        _cost_of(spec["cost"]),
        _cost_of(spec["conversion"]),
        spec["control_flow"],
    )


def _row_of(spec: Mapping[str, Any]) -> AcceleratorRow:
    limits = spec["limits"]
    attributes = {name: tuple(values) for name, values in limits["attributes"].items()}
    return AcceleratorRow(
        **_tuples(spec)
        | {
            "pattern": tuple(PatternNode(**_tuples(node)) for node in spec["pattern"]),
            "operands": {name: Operand(**_tuples(o)) for name, o in spec["operands"].items()},
            "inplace": tuple((a, b) for a, b in spec["inplace"]),
            "limits": Limits(**_tuples(limits) | {"attributes": attributes}),
            "views": None if spec["views"] is None else Views(**spec["views"]),
            "cost": _cost_of(spec["cost"]),
        }
    )


def _cost_of(spec: Mapping[str, Any] | None) -> Cost | None:
    return None if spec is None else Cost(**{**spec, "points": tuple((x, y) for x, y in spec["points"])})


def _tuples(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in spec.items()}


def _check_dtypes(dtypes: tuple[str, ...], place: str) -> None:
    for name in dtypes:
        _require(name in DTYPES, f"unknown type {name!r}; there are {', '.join(DTYPES)}", f"{place}/dtypes")


def _require(holds: bool, message: str, pointer: str) -> None:
    if not holds:
        raise TargetError(f"{pointer}: {message}", pointer=pointer)
