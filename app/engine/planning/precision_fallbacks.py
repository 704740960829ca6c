"""Attempts of a job to plan a program whose outputs are the original's, each with less rounding than before.

Some models amplify rounding beyond what outputs may differ by. Sources of rounding are given up node by node
first, see `app.engine.planning.mixed_precision`, then as a whole.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.planning import mixed_precision
from app.engine.planning.verification import Verification
from app.engine.types.errors import NumericsError
from app.engine.types.options import Options
from app.engine.types.precision import Resolved, exacter, resolve
from app.engine.types.target import Target
from app.kernels.cpu.runtime.compiler import Compiler

NAMED = 5  # nodes in a note


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is planned, and what was given up for it.

    Attributes:
        note: about fast algorithms that were given up; empty where none were.
        seconds: of a run of the program that had them, as it was planned.
    """

    options: Options
    compilation: Compilation
    precision: Resolved
    note: str = ""
    seconds: float = 0.0

    @classmethod
    def first(cls, options: Options, compilation: Compilation, target: Target) -> "Attempt":
        """The attempt at what was asked for."""
        return cls(options, compilation, resolve(options, target))

    def notes(self, program: Program) -> tuple[str, ...]:
        """What is told of the program that was verified: what it gave up and what that costs."""
        if not self.note:
            return ()
        cost = max(seconds(program) - self.seconds, 0.0)
        return (f"{self.note}; without them a run takes {cost * 1e6:.3g} us longer, as planned",)


def seconds(program: Program) -> float:
    """Seconds of a run, as the program was planned."""
    return program.seconds


def after(
    failed: Attempt,
    error: NumericsError,
    program: Program,
    verification: Verification,
    compiler: Compiler,
    *,
    measures: bool,
    runs_here: bool,
    progress: Callable[[int, int], None],
) -> Attempt:
    """The attempt with the next source of rounding given up, on a program whose outputs differed.

    Args:
        failed: the attempt at the program.
        error: by what its outputs differed.
        program: what was verified.
        verification: what it was compared with.
        compiler: where machine code comes from.
        measures: whether implementations may be measured.
        runs_here: whether programs run on this machine.
        progress: called with (done, total) while nodes are measured.

    Raises:
        NumericsError: the error; nothing is left that options rule.
    """
    target, options = program.compilation.target, failed.options
    stricter = exacter(options, target)
    if stricter is None:
        raise error
    tried = replace(options, autotune=options.autotune and measures)
    inputs = verification.inputs
    if stricter.precision != options.precision:
        reason, compilation = f"in {failed.precision.used} {error.message}", failed.compilation
        if runs_here and mixed_precision.mixes(options, target):
            compilation, found = mixed_precision.held(compilation, tried, compiler, inputs, progress)
            if found.exact:
                stricter = replace(options, exact=found.exact)
                reason = f"nodes that stay float32: {len(found.exact)}; {reason}"
        used = failed.precision.used if stricter.exact else "f32"
        precision = Resolved(failed.precision.asked, used, reason, stricter.exact)
        return replace(failed, options=stricter, compilation=compilation, precision=precision)
    compilation, note = failed.compilation, f"fast algorithms are off: with them {error.message}"
    if runs_here and target.device != "cuda" and not options.direct:
        expected, allowed = verification.allowance(options, target)
        compilation, found = mixed_precision.held(
            compilation,
            tried,
            compiler,
            inputs,
            progress,
            source=mixed_precision.FAST,
            allowed=allowed,
            expected=expected,
        )
        if found.direct:
            stricter = replace(options, direct=found.direct)
            note = f"{_named(found.direct)} without fast algorithms: with them {error.message}"
    return replace(
        failed,
        options=stricter,
        compilation=compilation,
        precision=replace(failed.precision, direct=stricter.direct),
        note=note,
        seconds=failed.seconds or seconds(program),
    )


def _named(nodes: Mapping[str, str]) -> str:
    """How many nodes are computed, and the first of them by name."""
    first = ", ".join(map(repr, list(nodes)[:NAMED]))
    return f"{len(nodes)} nodes ({first}{', ...' if len(nodes) > NAMED else ''}) are computed"
