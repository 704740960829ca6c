"""Functions that the expressions of `app.kernels.expressions` name, as text for GPU kernels.

Their twins for processors are `vectormath`, `angles`, `piecewise` and `integers`. Here the toolkit's
own library is accurate and fast enough, so most are one line. `rcp_approx` is off by one unit in the last
place; a division takes ten instructions more, which chains on 16 bits cannot afford.
"""

import re
from collections.abc import Iterable, Sequence

from app.kernels.cuda.geometry import NBYTES, indented
from app.kernels.cuda.vectors import device
from app.kernels.expressions import (
    EXPRESSIONS,
    Instruction,
    Recipe,
    class_of,
    computed,
    line,
    result_dtypes,
    template,
)

# Functions of the toolkit's library, of float32.
_ROUNDED = ("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "erf")
# Functions of one expression.
_EXPRESSIONS = {
    "select(condition, a, b)": "a if condition else b",
    "floor(x)": "floor_f32(x)",
    "ceil(x)": "ceil_f32(x)",
    "rint(x)": "round_f32(x)",
    "larger(a, b)": "a if a > b else b",
    "smaller(a, b)": "a if a < b else b",
    "at_least(low, x)": "low if low > x else x",
    "at_most(high, x)": "high if high < x else x",
    "from_half(x)": "f16_f32(x)",
    "to_half(x)": "f32_f16(x)",
    "from_bfloat(x)": "bf16_f32(x)",
    "to_bfloat(x)": "f32_bf16(x)",
    "atanh32(x)": "float32(0.5) * float32(log1p(x)) - float32(0.5) * float32(log1p(-x))",
    "softplus32(x)": "(float32(0) if x < float32(0) else x) + float32(log1p(exp(-abs(x))))",
    "expm1_falling32(x)": "float32(expm1(x))",
    "silu32(x)": "x * sigmoid32(x) if x > float32(-88) else float32(0) * x",
    "swish32(x, alpha)": "x * sigmoid32(alpha * x)",
    "gelu32(x)": "x * (float32(0.5) + float32(0.5) * float32(erf(x * float32(0.7071067811865476))))",
    "gelu_tanh32(x)": "x * sigmoid32(float32(1.5957691216057308) * (x + float32(0.044715) * x * x * x))",
    "power32(x, y)": "float32(pow(x, y))",
    "real_remainder(a, b)": "float32(fmod(a, b))",
    "remainder(a, b)": "a - quotient(a, b) * b if b != 0 else a - a",
    "floor_remainder(a, b)": "a % b if b != 0 else a - a",
    "shifted_left(a, n)": "a << n if n >= 0 and n < 64 else a - a",
    "shifted_right(a, n)": "a >> n if n >= 0 and n < 64 else a >> 63",
    **{f"{name}32(x)": f"float32({name}(x))" for name in _ROUNDED},
}

_LIBRARY = """
def saturated(x, low, high):
    x = x if x > low else low
    return x if x < high else high

def asinh32(x):
    a = abs(x)
    y = float32(log1p(a + a * a / (float32(1) + sqrt(a * a + float32(1)))))
    y = float32(log(a)) + float32(0.6931471805599453) if a > float32(1e9) else y
    return y if x >= float32(0) else -y

def acosh32(x):
    d = x - float32(1)
    y = float32(log1p(d + sqrt(d * (x + float32(1)))))
    return float32(log(x)) + float32(0.6931471805599453) if x > float32(1e9) else y

def sigmoid32(x):
    z = float32(exp(-abs(x)))
    return (z if x < float32(0) else float32(1)) * rcp_approx(float32(1) + z)

def mish32(x):
    y = float32(exp(-abs(x)))
    below = float32(1) if x < float32(0) else y * y
    above = y * (y + float32(2)) if x < float32(0) else float32(1) + float32(2) * y
    return x * (above * rcp_approx(above + float32(2) * below))

def real_floor_remainder(a, b):
    r = float32(fmod(a, b))
    return r + b if r != float32(0) and (r < float32(0)) != (b < float32(0)) else r

def quotient(a, b):
    q = a // b if b != 0 else a - a
    return q + 1 if b != 0 and q * b != a and (a < 0) != (b < 0) else q

def integer_power(base, exponent):
    n = int64(exponent)
    b = int64(base)
    result = int64(1)
    if n < 0:
        return (b if n % 2 else int64(1)) if b == 1 or b == -1 else int64(0)
    while n > 0:
        if n & 1:
            result = int64(result * b)
        b = int64(b * b)
        n = int64(n >> 1)
    return result
"""


_SOURCE = {text.split("(")[0]: f"def {text}" for text in _LIBRARY.strip()[4:].split("\n\ndef ")}
_SOURCE |= {head.split("(")[0]: f"def {head}:\n    return {text}" for head, text in _EXPRESSIONS.items()}
_NAME = re.compile(r"[A-Za-z_]\w*")
_USES = {name: _SOURCE.keys() & {*_NAME.findall(text)} - {name} for name, text in _SOURCE.items()}
_SPECIAL = "inf = 1e999\nnan = inf - inf"
_EXTREMA = {"maximum(": "larger(", "minimum(": "smaller("}  # the primitives are for floats


def library(lines: Sequence[str]) -> list[str]:
    """Lines of the functions that some lines call, those they call themselves first."""
    wanted: dict[str, None] = {}

    def visit(name: str) -> None:
        for inner in sorted(_USES[name]):
            visit(inner)
        wanted[name] = None

    for name in _NAME.findall("\n".join(lines)):
        if name in _SOURCE:
            visit(name)
    text = [_SPECIAL]
    for name in wanted:
        text += ["@device", _SOURCE[name], ""]
    return text


def source(lines: Sequence[str], parameters: Iterable[str], body: Sequence[str]) -> str:
    """Text of a kernel: the library's functions that it calls, its own functions `lines`, its body."""
    text = [*lines, f"def kernel({', '.join(parameters)}):", *indented(body), ""]
    return "\n".join([*library(text), *text])


def instruction(step: Instruction, dtypes: Sequence[str], prefix: str = "v") -> str:
    """Source of one instruction of a recipe; `dtypes` are those of all values before it."""
    text = re.sub(r"\b(np|vectormath|angles|libm)\.", "", line(step, dtypes, prefix))
    op, operands, _ = step
    kind = computed(dtypes[operands[-1]])
    if class_of(kind) in ("signed", "unsigned"):
        for name, ours in _EXTREMA.items():
            text = text.replace(name, ours)
        if EXPRESSIONS[op].result == "same":
            text = f"{kind}({text})"
    return text


def body(recipe: Recipe, dtypes: Sequence[str], prefix: str = "v") -> list[str]:
    """Lines that compute a recipe: value i is the local variable `{prefix}{i}`, inputs are there."""
    kinds = result_dtypes(recipe, dtypes)
    first = len(dtypes)
    return [f"{prefix}{first + k} = {instruction(step, kinds, prefix)}" for k, step in enumerate(recipe)]


def recipe_function(name: str, recipe: Recipe, dtypes: Sequence[str]) -> list[str]:
    """Lines of `name(v0, ...)`: the last result of a recipe on inputs of these types."""
    inputs = ", ".join(f"v{i}" for i in range(len(dtypes)))
    result = f"return v{len(dtypes) + len(recipe) - 1}"
    return device(f"{name}({inputs})", *body(recipe, dtypes), result)


def unsupported(recipe: Recipe, dtypes: Sequence[str]) -> str | None:
    """Rejection of a recipe on inputs of these types; None if GPU kernels compute it."""
    kinds = result_dtypes(recipe, dtypes)
    for dtype in (*dtypes, *kinds):
        if dtype not in NBYTES or dtype == "float64":
            return f"{dtype} has no GPU kernels"
    for op, operands, _ in recipe:
        kind = computed(kinds[operands[-1]])
        if template(op, kind) is None:
            return f"{op} has no expression for {kind}"
    return None
