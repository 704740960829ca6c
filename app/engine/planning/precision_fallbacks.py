"""Attempts of a job to plan a program whose outputs are the original's, each with less rounding than before.

Some models amplify rounding beyond what outputs may differ by. Sources of rounding are given up node by node
first, see `app.engine.planning.mixed_precision`, then as a whole.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.planning import mixed_precision
from app.engine.planning.backend_assignment import whole_model
from app.engine.planning.verification import Verification
from app.engine.types.errors import ExportMismatchError, NumericsError
from app.engine.types.options import Options
from app.engine.types.precision import Resolved, exacter, resolve
from app.engine.types.target import Target
from app.kernels.cpu.runtime.compiler import Compiler

NAMED = 5  # nodes in a note


@dataclass(frozen=True, slots=True)
class Attempt:
    """A graph to plan, the options to plan it with, and the rounding that was given up for it.

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
        """Notes on the program that was verified: the rounding that it gave up and the cost of that."""
        if not self.note:
            return ()
        cost = max(program.seconds - self.seconds, 0.0)
        return (f"{self.note}; without them a run takes {cost * 1e6:.3g} us longer, as planned",)


@dataclass
class PrecisionFallbacks:
    """Iterator of attempts, each after the first with the next source of rounding given up.

    Whoever iterates calls `reject` for a program whose outputs differ before it asks for the next attempt.

    Attributes:
        first: the attempt at what was asked for.
        verification: what programs are compared with.
        compiler: where machine code comes from.
        measures: whether implementations may be measured.
        runs_here: whether programs run on this machine.
        progress: called with (done, total) while nodes are measured.
    """

    first: Attempt
    verification: Verification
    compiler: Compiler
    measures: bool
    runs_here: bool
    progress: Callable[[int, int], None]
    _next: Attempt = field(init=False)

    def __post_init__(self) -> None:
        self._next = self.first

    def __iter__(self) -> Iterator[Attempt]:
        while True:
            yield self._next

    def reject(self, error: NumericsError, program: Program) -> None:
        """Prepare the next attempt after one whose program has outputs that differ.

        Libraries that were assigned by measurement are given up first, then rounding.

        Raises:
            NumericsError: the error; an exported file differs, or nothing is left that options rule.
        """
        failed, options = self._next, self._next.options
        stricter = exacter(options, program.compilation.target)
        if isinstance(error, ExportMismatchError):
            raise error
        if any(failed.compilation.assignment.values()):
            ours = whole_model.given_up(failed.compilation, self.compiler, error.message)
            self._next = replace(failed, compilation=ours)
        elif stricter is None:
            raise error
        elif (stricter.precision, stricter.int16) != (options.precision, options.int16):
            self._next = self._more_exact(stricter, error, program.compilation.target)
        else:
            self._next = self._more_direct(stricter, error, program)

    @property
    def _tried(self) -> Options:
        """Options of programs that show how far single nodes move the outputs."""
        options = self._next.options
        return replace(options, autotune=options.autotune and self.measures)

    def _more_exact(self, stricter: Options, error: NumericsError, target: Target) -> Attempt:
        """The attempt with some nodes in float32, or all."""
        failed = self._next
        reason, compilation = f"in {failed.precision.used} {error.message}", failed.compilation
        if self.runs_here and mixed_precision.mixes(failed.options, target):
            compilation, found = mixed_precision.held(
                compilation, self._tried, self.compiler, self.verification.inputs, self.progress
            )
            if found.exact:
                stricter = replace(failed.options, exact=found.exact)
                reason = f"nodes that stay float32: {len(found.exact)}; {reason}"
        used = failed.precision.used if stricter.exact else "f32"
        precision = Resolved(failed.precision.asked, used, reason, stricter.exact)
        return replace(failed, options=stricter, compilation=compilation, precision=precision)

    def _more_direct(self, stricter: Options, error: NumericsError, program: Program) -> Attempt:
        """The attempt with some nodes computed without fast algorithms, or all."""
        failed, target = self._next, program.compilation.target
        options, compilation = failed.options, failed.compilation
        note = f"fast algorithms are off: with them {error.message}"
        if self.runs_here and target.device != "cuda" and not options.direct:
            expected, allowed = self.verification.allowance(options, target)
            compilation, found = mixed_precision.held(
                compilation,
                self._tried,
                self.compiler,
                self.verification.inputs,
                self.progress,
                source=mixed_precision.FAST,
                allowed=allowed,
                expected=expected,
            )
            if found.direct:
                stricter = replace(options, direct=found.direct)
                note = f"{_named(found.direct)} without fast algorithms: with them {error.message}"
        precision = replace(failed.precision, direct=stricter.direct)
        seconds = failed.seconds or program.seconds
        return Attempt(stricter, compilation, precision, note, seconds)


def _named(nodes: Mapping[str, str]) -> str:
    """Count of nodes that are computed, and the names of the first."""
    first = ", ".join(map(repr, list(nodes)[:NAMED]))
    return f"{len(nodes)} nodes ({first}{', ...' if len(nodes) > NAMED else ''}) are computed"
