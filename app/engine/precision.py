"""The precision that a job computes in: what was asked, what the target and its kernels offer."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from app.engine.options import Options, Policy
from app.engine.target import Target

Computed: TypeAlias = Literal["f32", "bf16"]  # what CPU kernels multiply float32 operands in

BF16_TOLERANCE = 1e-2  # of an output's maximum, that a model computed in bf16 may differ by


@dataclass(frozen=True, slots=True)
class Resolved:
    """A precision, and why it is not the one that was asked for; no reason when it is.

    With `used` bf16 each node takes the faster of its bf16 and float32 implementations.
    """

    asked: Policy
    used: Computed
    reason: str = ""


def resolve(options: Options, target: Target) -> Resolved:
    """What the products of a float32 model may be computed in."""
    asked = options.precision
    if asked == "f32":
        return Resolved(asked, "f32")
    if "bf16" not in target.precisions:
        offers = ", ".join(target.precisions)
        return Resolved(asked, "f32", f"bf16 is not applicable: target {target.name!r} offers {offers}")
    if "numba-cpu" not in target.backends:
        backends = ", ".join(target.backends)
        return Resolved(asked, "f32", f"no kernel of the backends {backends} computes in bf16")
    if asked == "auto" and options.tolerance < BF16_TOLERANCE:
        return Resolved(
            asked,
            "f32",
            f"the tolerance is {options.tolerance:g}; bf16 needs {BF16_TOLERANCE:g} or is asked for",
        )
    return Resolved(asked, "bf16")


def tolerance(options: Options, target: Target) -> float:
    """What an output may differ by, as a fraction of its maximum."""
    if resolve(options, target).used == "bf16":
        return max(options.tolerance, BF16_TOLERANCE)
    return options.tolerance
