"""`make bench-operators`: single operators beside onnxruntime, in turn, the least time of each.

A row is a model of one node, see `operator_rows` and `row_operator_rows`. It is planned and tuned as a model
is; the two runtimes take turns in one process on inputs that lie ready in their memory, as they do within a
model, and each is judged by the tenth percentile of its rounds, of processor time where there is one
thread. `computed by` names the implementations; libraries are left out, and one that is no compiled kernel of
ours is a fallback. Ends with status 1 where a row is slower than onnxruntime, differs from it, or runs on a
fallback.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from rich.console import Console
from rich.table import Table

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.runtime.verify import compare
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings
from benchmarks.operator_rows import ROWS, Array, OperatorRow
from benchmarks.paired import in_turn
from benchmarks.peers import onnxruntime_peer
from benchmarks.row_operator_rows import ROW_OPERATORS
from benchmarks.tables import geometric_mean

SAME = 1e-3  # of the maximum of an output; its transforms of lengths that are no powers of two err by 3e-4
TIES = 1e-4  # of the elements of an output of 8 bits
OWN = ("numba-cpu", "reference")
QUANTILE = 0.1  # of the rounds of a runtime


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of both runtimes, the implementations, and the largest relative difference."""

    ours: float
    theirs: float
    implementations: tuple[str, ...]
    is_fallback: bool
    difference: float

    @property
    def ratio(self) -> float:
        """Time of onnxruntime over ours."""
        return self.theirs / self.ours


def main(line: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks.operators", description=__doc__)
    parser.add_argument("--only", default="", help="regular expression of names of rows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.4, help="per row and runtime")
    arguments = parser.parse_args(line)
    compiler = Compiler(Settings.from_environment().data.absolute() / "kernels")
    console = Console(width=150)
    table = Table(title=f"single operators, {arguments.threads} thread(s)")
    for heading in (
        "operator",
        "size",
        "stowplan us",
        "onnxruntime us",
        "ratio",
        "difference",
        "computed by",
    ):
        table.add_column(heading)
    failed, ratios = [], []
    for row in (*ROWS, *ROW_OPERATORS):
        if not re.search(arguments.only, row.name):
            continue
        try:
            found = measured(row, arguments.threads, arguments.seconds, compiler)
        except Exception as cause:  # onnxruntime raises types of its own, and one row must not end the others
            failed.append(
                f"{row.name} {row.size}: {type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
            )
            continue
        ratios.append(found.ratio)
        times = (f"{t * 1e6:.1f}" for t in (found.ours, found.theirs))
        table.add_row(
            row.name, row.size, *times, f"{found.ratio:.2f}", f"{found.difference:.1e}",
            ", ".join(found.implementations),
        )  # fmt: skip
        failed += [f"{row.name} {row.size}: {reason}" for reason in shortfalls(found)]
    console.print(table)
    if ratios:
        console.print(
            f"geometric mean {geometric_mean(ratios):.2f}x, lowest {min(ratios):.2f}x, {len(ratios)} rows"
        )
    for reason in failed:
        console.print(reason)
    return 1 if failed else 0


def shortfalls(found: Measured) -> list[str]:
    """What a row does not fulfill."""
    reasons = []
    if found.ratio < 1:
        reasons.append(f"slower than onnxruntime, {found.ratio:.2f}x")
    if found.is_fallback:
        reasons.append(f"computed by {', '.join(found.implementations)}")
    if not found.difference <= SAME:
        reasons.append(f"differs from onnxruntime by {found.difference:.1e}")
    return reasons


def measured(row: OperatorRow, threads: int, seconds: float, compiler: Compiler) -> Measured:
    """One row on this machine.

    Raises:
        EngineError: the engine refuses the model.
    """
    random = np.random.default_rng(0)
    inputs = {name: make(random) for name, make in row.inputs.items()}
    constants = {name: make(random) for name, make in row.constants.items()}
    options = Options(threads=threads)

    with tempfile.TemporaryDirectory() as folder, pinned(threads) as cores:
        path = Path(folder) / "operator.onnx"
        onnx.save(model_of(row, inputs, constants), path)
        compilation = session.canonical(load(path), _own_target(), options, Bindings(), load_registry())
        program = session.planned(session.tuned(compilation, options, compiler), options)
        peer = onnxruntime_peer(path, threads)
        executor = Executor(program, compiler, cores=cores)
        difference = difference_of(peer.run(inputs), executor.run(inputs))
        executor.feed(inputs)
        clock = time.thread_time if threads == 1 else time.perf_counter  # other work on the machine
        samples = in_turn([executor.step, bound(path, threads, inputs)], seconds, clock)
        executor.close()
    ours, theirs = np.quantile(samples, QUANTILE, axis=0)
    rows = [s.choice.implementation for s in program.steps if s.calls]
    is_fallback = any(r.backend != "numba-cpu" for r in rows)
    return Measured(float(ours), float(theirs), tuple(r.name for r in rows), is_fallback, difference)


def difference_of(theirs: Mapping[str, object], ours: Mapping[str, object]) -> float:
    """The largest relative difference of outputs.

    One level of 8 bits counts nothing for few elements: a scaled sum that is a half but for the rounding of
    float32 goes up or down by the order of the products, in either runtime as often.
    """
    rest = {n: v for n, v in theirs.items() if not _are_ties(np.asarray(v), np.asarray(ours[n]))}
    return max((d.max_rel for d in compare(rest, {n: ours[n] for n in rest}, 0.0)), default=0.0)


def _are_ties(theirs: Array, ours: Array) -> bool:
    if theirs.dtype.kind not in "iu" or theirs.dtype.itemsize > 1 or theirs.shape != ours.shape:
        return False
    apart = np.abs(theirs.astype(np.int64) - ours.astype(np.int64))
    return int(apart.max(initial=0)) <= 1 and int((apart > 0).sum()) <= max(TIES * apart.size, 1)


def bound(path: Path, threads: int, inputs: dict[str, Array]) -> Callable[[], object]:
    """A run of onnxruntime on inputs that lie ready, as ours do."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return lambda: session.run_with_iobinding(binding)


def _own_target() -> Target:
    """This machine without libraries: what no kernel of ours computes is left to the reference evaluator."""
    return replace(host(), backends=OWN)


def model_of(row: OperatorRow, inputs: dict[str, Array], constants: dict[str, Array]) -> onnx.ModelProto:
    """The model of one node."""
    declared = ", ".join(f"{_type_of(array)} {name}" for name, array in inputs.items())
    results = ", ".join(f"{kind}[] {name}" for name, kind in row.outputs.items())
    domain = f', "{row.domain}": 1' if row.domain else ""
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {row.opset}{domain}]> '
        f"operator ({declared}) => ({results}) {{ {', '.join(row.outputs)} = {row.node} }}"
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in constants.items())
    for value in model.graph.output:  # the shape is inferred
        value.type.tensor_type.ClearField("shape")
    return model


def _type_of(array: Array) -> str:
    kind = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(array.dtype)).lower()  # noqa: TID251
    return f"{kind}[{','.join(map(str, array.shape))}]" if array.ndim else kind


if __name__ == "__main__":
    sys.exit(main())
