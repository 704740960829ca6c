"""The programs of one job in memory: verified, and measured beside other runtimes."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.core.pipeline import Progress
from app.engine.core.program import Program
from app.engine.model.spool import Spool
from app.engine.planning import session, utilization
from app.engine.planning.heartbeat import trim
from app.engine.planning.verification import REFERENCE_SECONDS, Verification
from app.engine.report.exports import Exported
from app.engine.runtime import onnxruntime_arena
from app.engine.runtime.benchmark import PATIENCE, Samples, chosen_cores, measure_in_turn, pinned
from app.engine.runtime.cpu.memory import Weights
from app.engine.runtime.inputs import WrittenOut, as_stored
from app.engine.runtime.peers import PEERS, Question, Rival, beside, rejection
from app.engine.types.deadline import TimeUpError, limited
from app.engine.types.precision import tolerance
from app.engine.types.target import Peak
from app.kernels.cpu.runtime.compiler import Compiler

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one benchmark.

    Attributes:
        steps: seconds by step of the optimized program.
        bodies: seconds of the steps in its bodies, by path.
        arena: high water of onnxruntime's arena, or the reason why it is unknown.
    """

    optimized: Samples
    unfused: Samples
    rivals: tuple[Rival, ...]
    steps: tuple[float, ...]
    bodies: Mapping[str, float]
    peak: Peak
    arena: int | str


class Execution:
    """The programs of one job in memory, with what they are compared to."""

    def __init__(
        self,
        fused: Program,
        plain: Future[Program],
        converted: Path,
        inputs: Mapping[str, object],
        compiler: Compiler,
        progress: Progress,
        spool: Spool,
    ) -> None:
        self.fused = fused
        self._plain = plain
        self._converted = converted
        self._inputs = inputs
        self._compiler = compiler
        self._progress = progress
        self._executors: dict[int, session.Running] = {}
        self._weights = Weights(spool.release)
        self.unmeasured = ""  # why no run of it is measured

    @property
    def plain(self) -> Program:
        """The same program without fusion."""
        return self._plain.result()

    def executor(self, program: Program) -> session.Running:
        """The program's executor, its kernels compiled on first use."""
        if id(program) not in self._executors:
            self._executors[id(program)] = session.bound(
                program,
                self._compiler,
                progress=lambda done, total: self._progress("compile", done, total),
                weights=self._weights,
                cores=chosen_cores(program.compilation.options.threads),  # those of the benchmark
            )
        return self._executors[id(program)]

    def outputs(self) -> dict[str, object]:
        """Outputs of the optimized program."""
        return self.executor(self.fused).run(self._fed(self.fused))

    def close(self) -> None:
        """Give the threads back."""
        for executor in self._executors.values():
            executor.close()

    def verify(self, verification: Verification, exports: Mapping[str, Exported], absent: str | None) -> Json:
        """Compare the program, where it can run, and the exported graphs with the original.

        `absent` is why it cannot run here.

        Raises:
            NumericsError: an output is beyond the tolerance.
        """
        self._progress("verify", 0, 1)
        program = self._bounded if absent is None else absent
        found = verification.of(self.fused.compilation, program, exports)
        self._progress("verify", 1, 1)
        return found

    def _bounded(self) -> dict[str, object]:
        """The outputs; a run with steps in the reference evaluator may take REFERENCE_SECONDS.

        Raises:
            TimeUpError: it takes longer.
        """
        executor, inputs = self.executor(self.fused), self._fed(self.fused)
        slow = [step.group.name for step in self.fused.steps if step.is_host and not step.is_library]
        if not slow:
            return executor.run(inputs)
        try:
            with limited(REFERENCE_SECONDS):
                return executor.run(inputs)
        except TimeUpError as cause:
            self.unmeasured = (
                f"a run of the program takes {cause}; steps in the reference evaluator: {', '.join(slow[:5])}"
            )
            raise TimeUpError(self.unmeasured) from None

    def benchmark(self, seconds: float, verification: Json | None) -> Measured:
        """Samples of the program in turn with the same program unfused, and with every peer that runs here.

        No two peers are in memory at once.

        Raises:
            TimeUpError: a run takes too long to be measured.
        """
        if self.unmeasured:
            raise TimeUpError(self.unmeasured)
        if not self.fused.compilation.options.verify:
            self._bounded()
        compilation = self.fused.compilation
        options, target = compilation.options, compilation.target
        fused, plain = self.executor(self.fused), self.executor(self.plain)
        parts = len(PEERS) + 2
        self._progress("benchmark", 0, parts)
        with pinned(options.threads) as cores:
            outputs = self.outputs()
            question = Question(
                path=self._converted,
                inputs=dict(WrittenOut(self._inputs)),
                outputs=outputs,
                tolerances={d["name"]: d["tolerance"] for d in (verification or {}).get("outputs", ())},
                tolerance=tolerance(options, target),
                threads=options.threads,
                cores=cores,
            )
            works: list[Callable[[], object]] = [self._inference(fused), self._inference(plain)]
            samples: list[Samples] = []
            rivals = []
            for done, peer in enumerate(PEERS, 1):
                if target.device == "cuda":
                    reason = f"the {peer.name} of this installation computes on processors"
                    rivals.append(Rival(peer.name, "", reason=reason))
                else:
                    rival, taken = beside(peer, question, works[:1] if samples else works, seconds)
                    rivals.append(rival)
                    samples = samples or taken
                trim()
                self._progress("benchmark", done, parts)
            samples = samples or measure_in_turn(works, seconds, before=question.settle)
            question.settle()
            fused.feed(self._fed(self.fused))
            count = len(samples[0].seconds)
            repeats = max(3, min(20, count)) if samples[0].p50 * 3 < PATIENCE else 1
            runs = [(fused.step_seconds(), fused.body_seconds()) for _ in range(repeats)]
            here = target.device != "cuda"
            peak = (
                utilization.measured(self._compiler, target, options.threads, cores)
                if here
                else Peak.described(target, options.threads)
            )
            self._progress("benchmark", parts - 1, parts)
            water = self._arena(outputs, rivals[0])
        self._progress("benchmark", parts, parts)
        steps = tuple(float(s) for s in np.median(np.array([r for r, _ in runs]), axis=0))
        inner = {path: float(np.median([found[path] for _, found in runs])) for path in runs[0][1]}
        return Measured(samples[0], samples[1], tuple(rivals), steps, inner, peak, water)

    def _arena(self, outputs: Mapping[str, object], rival: Rival) -> int | str:
        """High water of onnxruntime's arena on the same inputs, or why it is not known."""
        if rival.samples is None:
            return rival.reason
        if rival.samples.p50 * 3 > PATIENCE:
            return f"a run there takes {rival.samples.p50:.3g} s"
        threads = self.fused.compilation.options.threads
        try:
            dense = dict(WrittenOut(self._inputs))
            return onnxruntime_arena.measured(
                self._converted, dense, outputs, threads, self._converted.parent
            )
        except Exception as cause:  # onnxruntime raises many types, and any of them is a reason
            return rejection(cause)

    def _inference(self, executor: session.Running) -> Callable[[], object]:
        inputs = self._fed(executor.program)
        if executor.program.compilation.target.device == "cuda":  # inputs and outputs stay on the device
            executor.feed(inputs)
            return executor.infer
        return lambda: executor.run(inputs)

    def _fed(self, program: Program) -> dict[str, object]:
        """The inputs that the program still has; a bound value is none of them."""
        return as_stored(self._inputs, program)
