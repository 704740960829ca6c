"""Elementwise operators as Python source for the body of a loop that LLVM vectorizes.

A recipe is a small program on scalars: instructions in order, whose operands are numbers of
values. Values 0 to n - 1 are the inputs, value n + k is the result of instruction k. A recipe is
hashable and holds no sizes, so one kernel serves every shape.

float16, bfloat16 and bool are types of memory only: the first two are computed in float32 (and
rounded where a value leaves the recipe or is cast), a bool is a truth value while it is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Parameter: TypeAlias = float | int | str
Instruction: TypeAlias = tuple[str, tuple[int, ...], tuple[Parameter, ...]]
Recipe: TypeAlias = tuple[Instruction, ...]

FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")  # in memory as uint16
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *HALVES, *SIGNED, *UNSIGNED, "bool")

Class = Literal["float", "signed", "unsigned", "bool"]


@dataclass(frozen=True, slots=True)
class Expression:
    """One operator on scalars, a template for each class of operand types that it exists for.

    In a template `{0}`, `{1}` are operands (names, so they may be repeated), `{p}`, `{q}`, `{r}` the
    parameters as constants of the operands' type, `{t}` converts to that type, `{m}` and `{a}` are
    the modules with its elementary functions and `{s}` the end of their names.

    Attributes:
        real: for float32 and float64.
        whole: for integers; arithmetic wraps around.
        truth: for bool.
        result: dtype of the result: that of the last operand, bool, or the last parameter.
        flops: rough cost of an element, for predictions.
    """

    real: str | None = None
    whole: str | None = None
    truth: str | None = None
    result: Literal["same", "bool", "parameter"] = "same"
    flops: float = 1.0


def _compare(operator: str, *, truth: bool = False) -> Expression:
    text = f"{{0}} {operator} {{1}}"
    return Expression(text, text, text if truth else None, "bool")


EXPRESSIONS: dict[str, Expression] = {
    # one operand
    "Identity": Expression("{0}", "{0}", "{0}", flops=0),
    "Cast": Expression(result="parameter"),  # see `converted`
    "Abs": Expression("abs({0})", "{t}(abs({0}))"),
    "Neg": Expression("-{0}", "{t}(-{0})"),
    "Sign": Expression(
        "select({0} > {t}(0), {t}(1), select({0} < {t}(0), {t}(-1), {0}))",
        "{t}({t}({0} > 0) - {t}({0} < 0))",
        flops=2,
    ),
    "Floor": Expression("floor({0})"),
    "Ceil": Expression("ceil({0})"),
    "Round": Expression("rint({0})"),
    "Sqrt": Expression("sqrt({0})", flops=6),
    "Reciprocal": Expression("{t}(1) / {0}", flops=4),
    "Exp": Expression("{m}.exp{s}({0})", flops=16),
    "Log": Expression("{m}.log{s}({0})", flops=24),
    "Sin": Expression("{a}.sin{s}({0})", flops=40),
    "Cos": Expression("{a}.cos{s}({0})", flops=40),
    "Tan": Expression("{a}.tan{s}({0})", flops=44),
    "Asin": Expression("{a}.asin{s}({0})", flops=20),
    "Acos": Expression("{a}.acos{s}({0})", flops=20),
    "Atan": Expression("{a}.atan{s}({0})", flops=20),
    "Sinh": Expression("{a}.sinh{s}({0})", flops=40),
    "Cosh": Expression("{a}.cosh{s}({0})", flops=24),
    "Asinh": Expression("{a}.asinh{s}({0})", flops=60),
    "Acosh": Expression("{a}.acosh{s}({0})", flops=60),
    "Atanh": Expression("{a}.atanh{s}({0})", flops=36),
    "Tanh": Expression("{m}.tanh{s}({0})", flops=20),
    "Sigmoid": Expression("{m}.sigmoid{s}({0})", flops=20),
    "Erf": Expression("{m}.erf{s}({0})", flops=20),
    "Softplus": Expression("{m}.softplus{s}({0})", flops=28),
    "Softsign": Expression("{0} / ({t}(1) + abs({0}))", flops=5),
    "Mish": Expression("{m}.mish{s}({0})", flops=24),
    "Relu": Expression("select({t}(0) > {0}, {t}(0), {0})", "select({t}(0) > {0}, {t}(0), {0})"),
    "Not": Expression(truth="not {0}"),
    "BitwiseNot": Expression(whole="{t}(~{0})"),
    "IsNaN": Expression("{0} != {0}", result="bool"),
    # one operand and parameters
    "LeakyRelu": Expression("select({0} < {t}(0), {p} * {0}, {0})", flops=2),
    "Elu": Expression(
        "select({0} > {t}(0), {0}, {p} * {m}.expm1_falling{s}(select({0} > {t}(0), {t}(0), {0})))", flops=18
    ),
    "Selu": Expression(  # alpha, gamma
        "{q} * select({0} > {t}(0), {0}, {p} * {m}.expm1_falling{s}(select({0} > {t}(0), {t}(0), {0})))",
        flops=19,
    ),
    "Celu": Expression(
        "select({0} > {t}(0), {0}, {p} * {m}.expm1_falling{s}(select({0} > {t}(0), {t}(0), {0}) / {p}))",
        flops=20,
    ),
    "ThresholdedRelu": Expression("select({0} > {p}, {0}, {t}(0))"),
    "HardSigmoid": Expression(  # alpha, beta
        "at_most({t}(1), at_least({t}(0), {p} * {0} + {q}))", flops=4
    ),
    "HardSwish": Expression(
        "{0} * at_most({t}(1), at_least({t}(0), {t}(1 / 6) * {0} + {t}(0.5)))",
        flops=5,
    ),
    "Silu": Expression("{m}.silu{s}({0})", flops=16),
    "Swish": Expression("{m}.swish{s}({0}, {p})", flops=22),
    "Gelu": Expression("{m}.gelu{s}({0})", flops=24),
    "GeluTanh": Expression("{m}.gelu_tanh{s}({0})", flops=24),
    "Shrink": Expression(  # bias, lambd
        "select({0} < -{q}, {0} + {p}, select({0} > {q}, {0} - {p}, {t}(0)))",
        "select({0} < -{q}, {t}({0} + {p}), select({0} > {q}, {t}({0} - {p}), {t}(0)))",
        flops=4,
    ),
    "IsInf": Expression("({0} == {p}) | ({0} == {q})", result="bool"),  # the infinities that count
    "Clamp": Expression("at_most({q}, at_least({p}, {0}))", flops=2),  # low, high
    "Saturate": Expression("saturated({0}, {p}, {q})", result="parameter", flops=3),  # low, high, dtype
    "DividedBy": Expression("{0} / {p}", "{t}({0} / {p})", flops=4),
    # two operands
    "Add": Expression("{0} + {1}", "{t}({0} + {1})"),
    "Sub": Expression("{0} - {1}", "{t}({0} - {1})"),
    "Mul": Expression("{0} * {1}", "{t}({0} * {1})"),
    "Div": Expression("{0} / {1}", "quotient({0}, {1})", flops=4),
    "Mod": Expression("real_floor_remainder({0}, {1})", "floor_remainder({0}, {1})", flops=20),
    "Fmod": Expression("real_remainder({0}, {1})", "remainder({0}, {1})", flops=20),
    "Pow": Expression("{m}.power{s}({0}, {1})", "integer_power({0}, {1})", flops=60),
    "Min": Expression("minimum({0}, {1})", "minimum({0}, {1})"),
    "Max": Expression("maximum({0}, {1})", "maximum({0}, {1})"),
    "AtLeast": Expression("at_least({1}, {0})", "at_least({1}, {0})"),
    "AtMost": Expression("at_most({1}, {0})", "at_most({1}, {0})"),
    "And": Expression(truth="{0} & {1}"),
    "Or": Expression(truth="{0} | {1}"),
    "Xor": Expression(truth="{0} != {1}"),
    "Equal": _compare("==", truth=True),
    "Less": _compare("<"),
    "Greater": _compare(">"),
    "LessOrEqual": _compare("<="),
    "GreaterOrEqual": _compare(">="),
    "ShiftLeft": Expression(whole="shifted_left({0}, {1})"),
    "ShiftRight": Expression(whole="shifted_right({0}, {1})"),
    "BitwiseAnd": Expression(whole="{t}({0} & {1})"),
    "BitwiseOr": Expression(whole="{t}({0} | {1})"),
    "BitwiseXor": Expression(whole="{t}({0} ^ {1})"),
    "PRelu": Expression(
        "select({0} < {t}(0), {0} * {1}, {0})", "select({0} < {t}(0), {t}({0} * {1}), {0})", flops=2
    ),
    # three operands
    "Where": Expression(*("select({0}, {1}, {2})",) * 3),
}

_PRELUDE = """\
from math import inf, nan

import numpy as np

from app.kernels.cpu import angles
from app.kernels.cpu.codegen import libm, vectormath
from app.kernels.cpu.extrema import maximum, minimum
from app.kernels.cpu.integers import floor_remainder, integer_power, quotient, remainder
from app.kernels.cpu.integers import shifted_left, shifted_right
from app.kernels.cpu.codegen.intrinsics import from_bfloat, from_half, select, sqrt, to_bfloat, to_half
from app.kernels.cpu.piecewise import at_least, at_most, ceil, floor, real_floor_remainder, real_remainder
from app.kernels.cpu.piecewise import rint, saturated
"""


# A float becomes one of these first, from where the bits wrap around.
_FIRST = {"int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64"}


# Where the exponential family and the angles of a type are, and how their names end.
_LIBRARIES = {"float32": ("vectormath", "angles", "32")}


def class_of(dtype: str) -> Class:
    """Class of numbers that a type is computed as."""
    if dtype in FLOATS or dtype in HALVES:
        return "float"
    if dtype in SIGNED:
        return "signed"
    return "unsigned" if dtype in UNSIGNED else "bool"


def computed(dtype: str) -> str:
    """The type that a value is computed in."""
    return "float32" if dtype in HALVES else dtype


def stored(dtype: str) -> str:
    """The type that a value has in memory, as kernels name it."""
    return "uint16" if dtype in HALVES else dtype


def loaded(dtype: str, source: str) -> str:
    """Source text: a value as computed from what is in memory."""
    forms = {"float16": "from_half({})", "bfloat16": "from_bfloat({})", "bool": "({} != 0)"}
    return forms.get(dtype, "{}").format(source)


def kept(dtype: str, source: str) -> str:
    """Source text: what goes to memory for a computed value."""
    forms = {"float16": "to_half({})", "bfloat16": "to_bfloat({})", "bool": "np.uint8({})"}
    return forms.get(dtype, "{}").format(source)


def converted(source: str, old: str, new: str) -> str:
    """Source text: a computed value of type `old` as one of type `new`, as NumPy casts."""
    if new in HALVES:
        return loaded(new, kept(new, converted(source, old, "float32")))
    if computed(old) == new:
        return source
    if new == "bool":
        return f"({source} != 0)"
    if class_of(old) == "float" and new == "uint64":
        most = f"np.{computed(old)}({2.0**63})"
        return f"(np.uint64({source}) if {source} >= {most} else np.uint64(np.int64({source})))"
    if class_of(old) == "float":
        source = f"np.{_FIRST[new]}({source})" if new in _FIRST else source
    return f"np.{new}({source})"


def result_dtypes(recipe: Recipe, dtypes: Sequence[str]) -> tuple[str, ...]:
    """The types of all values of a recipe, inputs first."""
    known = list(dtypes)
    for op, operands, parameters in recipe:
        kind = EXPRESSIONS[op].result
        if kind == "parameter":
            known.append(str(parameters[-1]))
        else:
            known.append("bool" if kind == "bool" else computed(known[operands[-1]]))
    return tuple(known)


def template(op: str, dtype: str) -> str | None:
    """The template of an operator for operands of a type; None where there is none."""
    row = EXPRESSIONS[op]
    if op == "Cast":
        return "{0}"
    kind = class_of(dtype)
    return row.real if kind == "float" else row.truth if kind == "bool" else row.whole


def prelude() -> str:
    """The imports that the lines of every recipe need."""
    return _PRELUDE


def lines(
    recipe: Recipe, names: Sequence[str], dtypes: Sequence[str] | str = "float32", prefix: str = "v"
) -> list[str]:
    """Source lines that compute a recipe: value i becomes the local variable `v{i}`.

    Args:
        recipe: instructions.
        names: what the inputs are read from, as source text: elements as they are in memory.
        dtypes: of the inputs; one name stands for all.
        prefix: of the local variables.
    """
    given = [dtypes] * len(names) if isinstance(dtypes, str) else list(dtypes)
    kinds = result_dtypes(recipe, given)
    text = [f"{prefix}{i} = {loaded(kinds[i], name)}" for i, name in enumerate(names)]
    text += [
        f"{prefix}{len(names) + k} = {line(instruction, kinds, prefix)}"
        for k, instruction in enumerate(recipe)
    ]
    return text


def line(instruction: Instruction, dtypes: Sequence[str], prefix: str = "v") -> str:
    """Source text of one instruction; `dtypes` are those of all values before it."""
    op, operands, parameters = instruction
    values = [f"{prefix}{i}" for i in operands]
    if op == "Cast":
        return converted(values[0], dtypes[operands[0]], str(parameters[0]))
    kind = computed(dtypes[operands[-1]])
    form = template(op, kind)
    assert form is not None, f"{op} has no expression for {kind}"
    convert = f"np.{kind}"
    numbers = {n: f"{convert}({p!r})" for n, p in zip("pqr", parameters) if not isinstance(p, str)}
    math, angles, size = _LIBRARIES.get(kind, ("libm", "libm", "64"))
    text = form.format(*values, **numbers, t=convert, m=math, a=angles, s=size)
    if EXPRESSIONS[op].result == "parameter":
        return converted(text, kind, str(parameters[-1]))
    return text


def flops(recipe: Recipe) -> float:
    """Rough number of operations for one element."""
    return sum(EXPRESSIONS[op].flops for op, _, _ in recipe)
