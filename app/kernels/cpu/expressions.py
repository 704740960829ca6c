"""Elementwise operators as source text: the arithmetic of generated kernels and of epilogues.

A recipe is a straight-line program over scalars. Operand i is input i; results are numbered on.
Text is written so that LLVM turns a loop around it into vector code: selects, no calls in
float32. Booleans are numba booleans inside, bytes in memory.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

FLOATS = ("float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class Instruction(NamedTuple):
    """One operator on earlier results.

    Attributes:
        op: a name in EXPRESSIONS.
        operands: numbers of inputs or earlier results.
        params: attributes, defaults filled in.
        dtype: of the result.
    """

    op: str
    operands: tuple[int, ...]
    params: tuple[float | int | str, ...]
    dtype: str


Recipe = tuple[Instruction, ...]


class Operands(NamedTuple):
    """What an expression is written from: names and types of operands, type of the result."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    params: tuple[float | int | str, ...]
    dtype: str

    def number(self, value: float | int | str, dtype: str | None = None) -> str:
        """A literal of the result's type, which keeps float32 arithmetic in float32."""
        return (
            f"{dtype or self.dtype}({value!r})"
            if _finite(value)
            else f"{dtype or self.dtype}({_special(value)})"
        )

    @property
    def floating(self) -> bool:
        """Whether the first operand is a float."""
        return self.dtypes[0] in FLOATS

    @property
    def suffix(self) -> str:
        """Which functions of vectormath or of the C library serve the first operand."""
        return "32" if self.dtypes[0] == "float32" else "64"


Write = Callable[[Operands], str]


def lines(recipe: Recipe, names: Sequence[str], dtypes: Sequence[str]) -> list[str]:
    """Assignments `v<n> = ...`, one per instruction; n counts on from the inputs.

    `names` are expressions of the inputs (loaded scalars), `dtypes` their types.
    """
    known, types, found = list(names), list(dtypes), []
    for op, operands, params, dtype in recipe:
        given = Operands(tuple(known[i] for i in operands), tuple(types[i] for i in operands), params, dtype)
        name = f"v{len(known)}"
        # Integers and floats alike wrap or round to the declared type; numba would widen them.
        text = EXPRESSIONS[op](given)
        found.append(f"{name} = {text}" if dtype == "bool" else f"{name} = {dtype}({text})")
        known.append(name)
        types.append(dtype)
    return found


PRELUDE = """\
import math

import numpy as np
from numba import float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

from app.kernels.cpu.scalarmath import *
from app.kernels.cpu.vectormath import (
    erf32, exp32, expm1_32, log1p_32, log32, sigmoid32, softplus32, tanh32,
)
"""


def load(name: str, index: str, dtype: str) -> str:
    """An element of memory as a scalar."""
    return f"({name}[{index}] != 0)" if dtype == "bool" else f"{name}[{index}]"


def store(name: str, index: str, value: str, dtype: str) -> str:
    """A scalar to an element of memory."""
    return f"{name}[{index}] = uint8({value})" if dtype == "bool" else f"{name}[{index}] = {value}"


def _finite(value: float | int | str) -> bool:
    return not isinstance(value, float) or abs(value) < float("inf")


def _special(value: float | int | str) -> str:
    assert isinstance(value, float)
    return "math.nan" if value != value else "math.inf" if value > 0 else "-math.inf"


def _template(text: str) -> Write:
    """`{0}` operands, `{T}` result type, `{p0}` parameters as literals, `{s}` 32 or 64."""

    def write(given: Operands) -> str:
        numbers = {f"p{i}": given.number(p) for i, p in enumerate(given.params) if not isinstance(p, str)}
        return text.format(*given.names, T=given.dtype, s=given.suffix, **numbers)

    return write


def _fold(combine: Write) -> Write:
    """A binary operator over any number of operands, from the left."""

    def write(given: Operands) -> str:
        text = given.names[0]
        for name in given.names[1:]:
            text = (
                combine(given._replace(names=(f"{given.dtype}({text})", name)))
                if given.dtype != "bool"
                else (combine(given._replace(names=(f"({text})", name))))
            )
        return text

    return write


def _by_type(floats: str, integers: str) -> Write:
    """One text for floats, another for integers; which, the first operand says."""
    return lambda given: _template(floats if given.floating else integers)(given)


def _compare(sign: str) -> Write:
    return _template(f"{{0}} {sign} {{1}}")


def _mean(given: Operands) -> str:
    total = _fold(_template("{0} + {1}"))(given)
    return f"({total}) / {given.number(len(given.names))}"


def _clip(given: Operands) -> str:
    low, high = given.params[:2]  # operand numbers, or -1 where there is no limit
    text = given.names[0]
    if low != -1:
        text = f"larger({text}, {given.names[int(low)]})"
    if high != -1:
        text = f"smaller({text}, {given.names[int(high)]})"
    return text


def _cast(given: Operands) -> str:
    source, target = given.dtypes[0], given.dtype
    if target == "bool":
        return given.names[0] if source == "bool" else f"{given.names[0]} != 0"
    if source in FLOATS and target in INTEGERS:
        return f"int64({given.names[0]})"
    return given.names[0]


def _gelu(given: Operands) -> str:
    if given.params[0] == "tanh":
        return _template("gelu_tanh{s}({0})")(given._replace(params=()))
    return _template("gelu{s}({0})")(given._replace(params=()))


def _mod(given: Operands) -> str:
    ways = (
        ("np.fmod({0}, {1})", "integer_fmod({0}, {1})")
        if given.params[0]
        else (
            "float_mod({0}, {1})",
            "integer_mod({0}, {1})",
        )
    )
    return _by_type(*ways)(given._replace(params=()))


def _power(given: Operands) -> str:
    """Integers by squaring; anything else in double precision, whose rounding is out of reach."""
    if not any(d in FLOATS for d in given.dtypes):
        return f"integer_power({given.names[0]}, int64({given.names[1]}))"
    return f"math.pow(float64({given.names[0]}), float64({given.names[1]}))"


def _shift(side: str) -> Write:
    def write(given: Operands) -> str:
        bits = given.dtype.lstrip("uint")
        return f"shift_{side}({given.names[0]}, int64({given.names[1]}), {bits})"

    return write


def _is_inf(given: Operands) -> str:
    negative, positive = given.params
    x = given.names[0]
    parts = [f"{x} == math.inf"] * bool(positive) + [f"{x} == -math.inf"] * bool(negative)
    return " or ".join(parts) or "False"


def _quantize(given: Operands) -> str:
    """round(x / scale) + zero point, saturated; operands x, scale, zero point."""
    low, high = given.params
    zero = f"float64({given.names[2]})" if len(given.names) > 2 else "float64(0)"
    return (
        f"int64(min(max(np.rint(float64({given.names[0]} / {given.names[1]})) + {zero}, {low}.0), {high}.0))"
    )


def _dequantize(given: Operands) -> str:
    zero = f" - int64({given.names[2]})" if len(given.names) > 2 else ""
    return f"{given.dtype}(int64({given.names[0]}){zero}) * {given.names[1]}"


_ADD, _MUL = _template("{0} + {1}"), _template("{0} * {1}")
_UNARY_LIBRARY = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")

EXPRESSIONS: dict[str, Write] = {
    "Identity": _template("{0}"),
    "Abs": _by_type("abs({0})", "-{0} if {0} < 0 else {0}"),
    "Neg": _template("-{0}"),
    "Sign": _template("{T}(1) if {0} > 0 else ({T}(-1) if {0} < 0 else {0})"),
    "Floor": _template("np.floor({0})"),
    "Ceil": _template("np.ceil({0})"),
    "Round": _template("np.rint({0})"),
    "Sqrt": _template("math.sqrt({0})"),
    "Reciprocal": _template("{T}(1) / {0}"),
    "Exp": _template("exp{s}({0})"),
    "Log": _template("log{s}({0})"),
    **{name.capitalize(): _template(f"math.{name}({{0}})") for name in _UNARY_LIBRARY},
    "Tanh": _template("tanh{s}({0})"),
    "Sigmoid": _template("sigmoid{s}({0})"),
    "Erf": _template("erf{s}({0})"),
    "Relu": _template("{T}(0) if {0} < {T}(0) else {0}"),
    "LeakyRelu": _template("{0} * {p0} if {0} < {T}(0) else {0}"),
    "PRelu": _template("{0} * {1} if {0} < {T}(0) else {0}"),
    "ThresholdedRelu": _template("{0} if {0} > {p0} else {T}(0)"),
    "Elu": _template("{p0} * expm1_{s}({0}) if {0} < {T}(0) else {0}"),
    "Selu": _template("{p1} * ({p0} * expm1_{s}({0}) if {0} <= {T}(0) else {0})"),
    "Celu": _template("{p0} * expm1_{s}({0} / {p0}) if {0} < {T}(0) else {0}"),
    "HardSigmoid": _template("larger({T}(0), smaller({T}(1), {p0} * {0} + {p1}))"),
    "HardSwish": _template("{0} * larger({T}(0), smaller({T}(1), {0} / {T}(6) + {T}(0.5)))"),
    "Softplus": _template("softplus{s}({0})"),
    "Softsign": _template("{0} / ({T}(1) + abs({0}))"),
    "Mish": _template("{0} * tanh{s}(softplus{s}({0}))"),
    "Swish": _template("{0} * sigmoid{s}({p0} * {0})"),
    "Gelu": _gelu,
    "Shrink": _template("{0} + {p0} if {0} < -{p1} else ({0} - {p0} if {0} > {p1} else {T}(0))"),
    "Clip": _clip,
    "Not": _template("not {0}"),
    "IsNaN": _template("{0} != {0}"),
    "IsInf": _is_inf,
    "Add": _fold(_ADD),
    "Sub": _template("{0} - {1}"),
    "Mul": _fold(_MUL),
    "Div": _by_type("{0} / {1}", "quotient({0}, {1})"),
    "Mod": _mod,
    "Pow": _power,
    "Min": _fold(_template("smaller({0}, {1})")),
    "Max": _fold(_template("larger({0}, {1})")),
    "Sum": _fold(_ADD),
    "Mean": _mean,
    "And": _template("{0} and {1}"),
    "Or": _template("{0} or {1}"),
    "Xor": _template("{0} != {1}"),
    "Equal": _compare("=="),
    "Less": _compare("<"),
    "LessOrEqual": _compare("<="),
    "Greater": _compare(">"),
    "GreaterOrEqual": _compare(">="),
    "BitShiftLEFT": _shift("left"),
    "BitShiftRIGHT": _shift("right"),
    "BitwiseAnd": _template("{0} & {1}"),
    "BitwiseOr": _template("{0} | {1}"),
    "BitwiseXor": _template("{0} ^ {1}"),
    "BitwiseNot": _template("~{0}"),
    "Where": _template("{1} if {0} else {2}"),
    "Cast": _cast,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
}
