"""Verification of a job: its program and its exported graphs against the original model.

Each computation takes whoever can be trusted with it: onnxruntime, without its optimizations where these
saturate, else the reference evaluator for a bounded time. What nobody verified is told with the reason.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.engine.core.plan import Compilation
from app.engine.model.load import load
from app.engine.model.spool import Spool
from app.engine.report.exports import Exported
from app.engine.runtime import oracle as oracles
from app.engine.runtime.verify import SPREADS, Difference, allowing, check, compare
from app.engine.types.deadline import TimeUpError, limited
from app.engine.types.errors import ExportMismatchError, NumericsError
from app.engine.types.options import Options
from app.engine.types.precision import tolerance
from app.engine.types.saturation import fused, saturated
from app.engine.types.target import Target

REFERENCE_SECONDS = 20.0  # s of the reference evaluator, for the original and all exports together

Json = dict[str, Any]
Inputs = Mapping[str, object]
Outputs = dict[str, object]
OUTPUTS = "outputs"  # the place of the program's own
WITHOUT = "onnxruntime without optimizations"


@dataclass
class _Expected:
    outputs: Outputs
    oracle: oracles.Oracle


@dataclass
class Verification:
    """Compares programs and exported graphs of one job with its original, which is computed once.

    No two of them are in memory at a time: the program comes last, and stays.

    Attributes:
        path: the original, its opset converted.
        inputs: what everything is computed on.
        ops: operators of the original.
        machine: where all of it runs.
        spool: where its weights lie.
        uncomputed: reason why nothing computes the original, if so.
        seconds: left to the reference evaluator.
    """

    path: Path
    inputs: Inputs
    ops: frozenset[str]
    machine: Target
    spool: Spool
    uncomputed: str | None = None
    seconds: float = field(default_factory=lambda: REFERENCE_SECONDS)
    _expected: _Expected | str | None = field(default=None, init=False)  # a string tells why not
    # By file and what ran them: without blocked values one file has several names, also in the next attempt.
    _files: dict[tuple[int | str, ...], tuple[Difference, ...]] = field(default_factory=dict, init=False)
    _uncertain: Mapping[str, float] = field(default_factory=dict, init=False)  # by output

    def of(
        self,
        compilation: Compilation,
        program: Callable[[], Outputs] | str,
        exports: Mapping[str, Exported],
    ) -> Json:
        """Compare a program and exported graphs with the original; returns the differences and what ran them.

        An output beyond its tolerance may differ by as much as the original itself is uncertain: in a
        quantized model by what it moves when its operands are rounded, in any other, and in files that
        onnxruntime runs with its optimizations, by what these move it.

        Args:
            compilation: of the planned program.
            program: computes its outputs, or says why it does not.
            exports: the files by their place.

        Raises:
            NumericsError: an output is beyond the tolerance.
        """
        options = compilation.options
        found: dict[str, tuple[Difference, ...]] = dict.fromkeys((OUTPUTS, *exports), ())
        unverified: dict[str, str] = {}
        expected = self._original()
        if isinstance(expected, str):
            oracle = oracles.Oracle("none", lambda _: {}, expected)
            return _told(oracle, found, {}, dict.fromkeys(found, expected), {}, {})
        runtimes = self._compare_exports(exports, expected, options.tolerance, found, unverified)
        self.spool.release()
        if isinstance(program, str):
            unverified[OUTPUTS] = program
        else:
            try:
                found[OUTPUTS] = compare(expected.outputs, program(), tolerance(options, compilation.target))
            except TimeUpError as cause:
                unverified[OUTPUTS] = str(cause)
        spread: Mapping[str, float] = {}
        uncertainty: Mapping[str, float] = {}
        if not all(d.ok for d in itertools.chain(*found.values())):
            uncertain = set(found)  # places to which the uncertainty applies
            if oracles.rounds(compilation.graph):
                spread = oracles.spread(self.path, self.inputs, expected.oracle)
                found = {place: allowing(differences, spread) for place, differences in found.items()}
                optimized = {place for place, told in runtimes.items() if told["name"] == "onnxruntime"}
                uncertain = {place for place in optimized if not all(d.ok for d in found[place])}
            if uncertain:
                uncertainty = oracles.uncertainty(self.path, self.inputs, expected.outputs, expected.oracle)
                found |= {place: allowing(found[place], uncertainty) for place in uncertain}
        self._uncertain = spread or uncertainty
        check(found[OUTPUTS])
        for place, export in exports.items():
            _check_export(export, found[place])
        return _told(expected.oracle, found, runtimes, unverified, spread, uncertainty)

    def _compare_exports(
        self,
        exports: Mapping[str, Exported],
        expected: _Expected,
        allowed: float,
        found: dict[str, tuple[Difference, ...]],
        unverified: dict[str, str],
    ) -> dict[str, Json]:
        """Fill in differences, and reasons why there are none, by place; returns what ran each file."""
        runtimes: dict[str, Json] = {}
        for place, export in exports.items():
            name, reason = self._runtime(export, expected.oracle)
            key = (*_file_of(export.path), name)
            try:
                if key not in self._files:
                    self._files[key] = self._compared(export, name, expected, allowed)
                found[place] = self._files[key]
                runtimes[place] = {"name": name, "reason": reason}
            except TimeUpError as cause:
                unverified[place] = f"{reason}; in the reference evaluator it takes {cause}"
        return runtimes

    def allowance(self, options: Options, target: Target) -> tuple[Outputs | None, float]:
        """The original's outputs, and what all of them may differ by, as a fraction of their maximum."""
        expected = self._original()
        if isinstance(expected, str):
            return None, tolerance(options, target)
        least = min((self._uncertain.get(name, 0.0) for name in expected.outputs), default=0.0)
        return expected.outputs, max(tolerance(options, target), SPREADS * least)

    def _original(self) -> _Expected | str:
        if self.uncomputed is not None:
            return self.uncomputed
        if self._expected is None:
            rejection = saturated(self.ops, self.machine)
            started = time.monotonic()
            try:
                self._expected = _Expected(
                    *oracles.original(self.path, self.inputs, rejection, seconds=self.seconds)
                )
            except TimeUpError as cause:
                self._expected = str(cause)
            if not isinstance(self._expected, str) and self._expected.oracle.name == "reference":
                self.seconds -= time.monotonic() - started
        return self._expected

    def _runtime(self, export: Exported, oracle: oracles.Oracle) -> tuple[str, str]:
        """The runtime of an exported graph; the reason if it is not onnxruntime with its optimizations."""
        rejection = saturated(export.ops, self.machine)
        if rejection is None and oracle.name == "reference" and saturated(self.ops, self.machine) is None:
            rejection = oracle.reason  # it does not run the original either
        if rejection is not None:
            return "reference", rejection
        reason = fused(export.ops, self.machine)
        return (WITHOUT, reason) if reason is not None else ("onnxruntime", "")

    def _compared(
        self, export: Exported, name: str, expected: _Expected, allowed: float
    ) -> tuple[Difference, ...]:
        if name != "reference":
            try:
                run = oracles.runtime(export.path, threads=1, optimized=name != WITHOUT)
                found = run(self.inputs)
            except Exception as cause:  # onnxruntime raises many types
                raise ExportMismatchError(
                    f"{export.path.name} does not run in onnxruntime, where the original does: {cause}"
                ) from cause
            return compare(expected.outputs, found, allowed)
        model = load(export.path).model
        started = time.monotonic()
        try:
            with limited(max(self.seconds, 0.0)):
                found = oracles.evaluate(model, self.inputs)
        finally:
            self.seconds -= time.monotonic() - started
        return compare(expected.outputs, found, allowed)


def _check_export(export: Exported, differences: tuple[Difference, ...]) -> None:
    """Raises ExportMismatchError where a file differs from the original."""
    try:
        check(differences)
    except NumericsError as error:
        raise ExportMismatchError(f"{export.path.name}: {error.message}", pointer=error.pointer) from None


def _file_of(path: Path) -> tuple[int, int, int]:
    """Number of a file, which all its names in a folder have in common, time of its last change, and size."""
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _told(
    oracle: oracles.Oracle,
    found: Mapping[str, tuple[Difference, ...]],
    runtimes: Mapping[str, Json],
    unverified: Mapping[str, str],
    spread: Mapping[str, float],
    uncertainty: Mapping[str, float],
) -> Json:
    """The verification in the summary."""
    compared = [place for place, differences in found.items() if differences]
    status = "verified" if not unverified else "partly verified" if compared else "not verified"
    return {
        "status": status,
        "oracle": oracle.name,
        "reason": oracle.reason,
        **{place: [d.to_json() for d in differences] for place, differences in found.items()},
        "runtimes": dict(runtimes),
        "unverified": dict(unverified),
        "spread": dict(spread),
        "uncertainty": dict(uncertainty),
    }
