"""The precision that a job computes in: what was asked, what the target and its kernels offer."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from app.engine.types.options import Options, Policy
from app.engine.types.target import Target

# What products of float32 operands are computed in. On CPUs bf16 is for products only; on GPUs bf16 and fp16
# are what activations and weights are stored in.
Computed: TypeAlias = Literal["f32", "tf32", "int16", "bf16", "fp16"]

BF16_TOLERANCE = 1e-2  # of an output's maximum, that a model computed in bf16 may differ by
# The same for all, which follow from the bits of their significands: 24, 11, 8, 11.
TOLERANCES: Mapping[Computed, float] = {
    "f32": 0.0,
    "tf32": 2e-3,
    "int16": BF16_TOLERANCE,
    "bf16": BF16_TOLERANCE,
    "fp16": 2e-3,
}

# What the kernels of a backend compute in, beside f32; what `auto` takes comes first.
OFFERED: Mapping[str, tuple[Computed, ...]] = {"numba-cpu": ("bf16",), "cuda": ("bf16", "tf32", "fp16")}


@dataclass(frozen=True, slots=True)
class Resolved:
    """A precision, and why it is not the one that was asked for, or not for all nodes; else no reason.

    With `used` other than f32 each node takes the faster of its implementations in it and in float32, but
    for `exact` ones, which stay float32: why, by name. `direct` ones are computed without fast algorithms.
    """

    asked: Policy
    used: Computed
    reason: str = ""
    exact: Mapping[str, str] = field(default_factory=dict)
    direct: Mapping[str, str] = field(default_factory=dict)


def resolve(options: Options, target: Target) -> Resolved:
    """Precisions that the products of a float32 model may be computed in."""
    asked = options.precision
    if asked == "f32":
        return Resolved(asked, "f32")
    offered = [p for backend in target.backends for p in OFFERED.get(backend, ())]
    wanted: Computed = "bf16" if asked == "auto" else asked
    if wanted not in target.precisions:
        offers = ", ".join(target.precisions)
        return Resolved(asked, "f32", f"{wanted} is not applicable: target {target.name!r} offers {offers}")
    if wanted not in offered:
        backends = ", ".join(target.backends)
        return Resolved(asked, "f32", f"no kernel of the backends {backends} computes in {wanted}")
    if asked != "auto":
        return Resolved(asked, wanted)
    for found in offered:
        if found in target.precisions and options.tolerance >= TOLERANCES[found]:
            return Resolved(asked, found)
    return Resolved(
        asked,
        "f32",
        f"the tolerance is {options.tolerance:g}; bf16 needs {BF16_TOLERANCE:g} or is asked for",
    )


def exacter(options: Options, target: Target) -> Options | None:
    """The options with the next source of rounding gone; None when there is none that options rule."""
    if resolve(options, target).used != "f32" or options.int16:
        return replace(options, precision="f32", exact={}, int16={})
    return replace(options, fast_algorithms=False, direct={}) if options.fast_algorithms else None


def tolerance(options: Options, target: Target) -> float:
    """Tolerance of an output, as a fraction of its maximum.

    What rounding adds to it is within an error budget, where that is such a fraction.
    """
    rounding = max(TOLERANCES[resolve(options, target).used], TOLERANCES["int16"] if options.int16 else 0.0)
    if options.error_budget is not None and options.error_metric == "max":
        rounding = min(rounding, options.error_budget)
    return max(options.tolerance, rounding)
