"""Epilogues of contractions, in registers: y = activation(alpha sum + bias + residual), cast.

Matrix products and convolutions all end here, with `width` neighbouring columns of one row at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from app.kernels.cuda import storage
from app.kernels.cuda.source import Source
from app.kernels.cuda.vectors import pointer

_SIGMOID = "rcp_approx(float32(1) + exp2_approx({x} * float32(-1.4426950408889634)))"
# 0.5 (1 + tanh(u)) = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)
_TANH_GELU = (
    "rcp_approx(float32(1) + exp2_approx({x} * float32(-2.302208198) "
    "* (float32(1) + float32(0.044715) * {x} * {x})))"
)

# Name: (number of parameters, expression of {x} and parameters). The approximations are good to about
# |x| 2^-23, which float32 shows and 16 bits do not.
ACTIVATIONS: dict[str, tuple[int, str]] = {
    "": (0, "{x}"),
    "relu": (0, "maximum({x}, float32(0))"),
    "clip": (2, "minimum(maximum({x}, float32({0})), float32({1}))"),
    "leaky_relu": (1, "{x} if {x} >= float32(0) else {x} * float32({0})"),
    "sigmoid": (0, _SIGMOID),
    "silu": (0, "{x} * " + _SIGMOID),
    "gelu": (0, "float32(0.5) * {x} * (float32(1) + float32(erf({x} * float32(0.7071067811865476))))"),
    "gelu_tanh": (0, "{x} * " + _TANH_GELU),
    "tanh": (0, "float32(tanh({x}))"),
    "hard_sigmoid": (
        2,
        "minimum(maximum({x} * float32({0}) + float32({1}), float32(0)), float32(1))",
    ),
    "hard_swish": (
        0,
        "{x} * minimum(maximum({x} * float32(0.16666667) + float32(0.5), float32(0)), float32(1))",
    ),
    "elu": (1, "{x} if {x} > float32(0) else float32({0}) * float32(expm1({x}))"),
}


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Operations on sums before they are stored.

    Args:
        dtype: of the output and of the residual, a floating-point type.
        alpha: factor of the sums.
        bias: whether float32 bias[column] is added.
        residual: "before" or "after" the activation, or "" for none. It may be the output's own memory.
        activation: a name of ACTIVATIONS and its parameters.
    """

    dtype: str = "float32"
    alpha: float = 1.0
    bias: bool = False
    residual: str = ""
    activation: tuple[str | float, ...] = ("",)

    def __post_init__(self) -> None:
        name, *parameters = self.activation
        if name not in ACTIVATIONS or len(parameters) != ACTIVATIONS[str(name)][0]:
            raise ValueError(f"activation {self.activation}: expected one of {sorted(ACTIVATIONS)[1:]}")
        if self.residual not in ("", "before", "after"):
            raise ValueError(f"residual '{self.residual}': expected 'before', 'after' or ''")

    @property
    def roles(self) -> tuple[str, ...]:
        """Addresses that it reads, in the order in which a kernel takes them."""
        return (*(("bias",) if self.bias else ()), *(("residual",) if self.residual else ()))

    @property
    def signature(self) -> tuple[str, ...]:
        """Types of the addresses in `roles`, which the kernel takes under these names."""
        kinds = {"bias": "float32*", "residual": pointer(self.dtype)}
        return tuple(kinds[role] for role in self.roles)

    @property
    def label(self) -> str:
        """A part of a kernel's name that tells epilogues apart for a reader."""
        parts = (*self.roles, str(self.activation[0]))
        return "_".join(part for part in parts if part)


def write(s: Source, epilogue: Epilogue, values: list[str], column: str, y: str, residual: str = "") -> None:
    """Finish `values`, which lie at `column` and after it, and store them.

    Args:
        s: where the lines go.
        epilogue: what to do.
        values: names of float32 variables, overwritten; their number must divide all indexes.
        column: index of the bias, an expression.
        y: index of the output.
        residual: index of the residual.
    """
    name, *parameters = epilogue.activation
    template = ACTIVATIONS[str(name)][1]
    extra = [f"r{i}" for i in range(len(values))]

    def each(line: Callable[[str, str], str]) -> None:
        for v, r in zip(values, extra, strict=True):
            s(f"{v} = {line(v, r)}")

    if epilogue.alpha != 1.0:
        each(lambda v, _: f"{v} * float32({epilogue.alpha!r})")
    if epilogue.bias:
        storage.load(s, "float32", "bias", column, extra)
        each(lambda v, r: f"{v} + {r}")
    if epilogue.residual:
        storage.load(s, epilogue.dtype, "residual", residual, extra)
    if epilogue.residual == "before":
        each(lambda v, r: f"{v} + {r}")
    if name:
        each(lambda v, _: template.format(*parameters, x=v))
    if epilogue.residual == "after":
        each(lambda v, r: f"{v} + {r}")
    storage.store(s, epilogue.dtype, "y", y, values)
