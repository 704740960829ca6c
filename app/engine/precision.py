"""The precision that a job computes in: what was asked, what the target and its kernels offer."""

from dataclasses import dataclass

from app.engine.options import Policy
from app.engine.target import Target

COMPUTED: tuple[Policy, ...] = ("f32",)  # what the CPU kernels compute float32 models in


@dataclass(frozen=True, slots=True)
class Resolved:
    """A precision, and why it is not the one that was asked for; no reason when it is."""

    asked: Policy
    used: Policy
    reason: str = ""


def resolve(asked: Policy, target: Target) -> Resolved:
    """What a float32 model is computed in."""
    if asked in COMPUTED:
        return Resolved(asked, asked)
    if "bf16" not in target.precisions:
        offers = ", ".join(target.precisions)
        return Resolved(asked, "f32", f"bf16 is not applicable: target {target.name!r} offers {offers}")
    return Resolved(asked, "f32", f"no kernel of the backends {', '.join(target.backends)} computes in bf16")
