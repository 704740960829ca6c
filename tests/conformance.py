"""Run the official ONNX node tests through planning and execution, and count.

Two counts per operator family: tests passed, and tests passed with our own kernels alone (see
`Representation.own_kernels`). A test passes when the official runner says so, with its
tolerances. Ends with status 1 below the targets, 2 when a selection holds no test.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
import unittest
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import onnx
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

from app.kernels.cpu.runtime.compiler import Compiler
from tests.backend import Representation, backend

ROOT = Path(__file__).resolve().parent.parent
KERNELS = Path(os.environ.get("STOWPLAN_KERNELS", ROOT / "build" / "kernels"))  # noqa: TID251
SHARED = Path(os.environ.get("STOWPLAN_SHARED", ROOT.parent / "shared"))  # noqa: TID251

PASSED_TARGET = 1850  # of all node tests
OWN_TARGET = 880  # of the inference set, with our own kernels
FOLDED = "constant"  # a test whose graph is folded: no kernel computes anything
LONGEST = 120.0  # seconds for one test; a process that takes more is ended

# Operators of the node tests by family.
FAMILIES = {
    "activation": "Celu Clip Dropout Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink "
    "Sigmoid Softplus Softsign SwiGLU Swish ThresholdedRelu",
    "attention": "Attention FlexAttention LinearAttention RotaryEmbedding",
    "binary": "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor",
    "cast": "BitCast Cast CastLike",
    "control flow": "If Loop Scan SequenceMap",
    "conv": "CausalConvWithState Col2Im Conv ConvInteger ConvTranspose DeformConv QLinearConv",
    "gather": "Gather GatherElements GatherND OneHot ScatterElements ScatterND TensorScatter",
    "image": "AffineGrid GridSample ImageDecoder NonMaxSuppression RoiAlign",
    "linear algebra": "Det",
    "loss": "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    "matmul": "Einsum Gemm MatMul MatMulInteger QLinearMatMul",
    "ml": "ArrayFeatureExtractor Binarizer LabelEncoder TreeEnsemble",
    "normalize": "BatchNormalization GroupNormalization InstanceNormalization LRN LayerNormalization "
    "LogSoftmax LpNormalization MeanVarianceNormalization RMSNormalization Softmax",
    "pool": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool",
    "quantize": "DequantizeLinear DynamicQuantizeLinear QuantizeLinear",
    "random": "Bernoulli",
    "recurrent": "GRU LSTM RNN",
    "reduce": "ArgMax ArgMin CumProd CumSum Hardmax ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK Unique",
    "resize": "Resize Upsample",
    "sequence": "OptionalGetElement OptionalHasElement SequenceInsert SplitToSequence",
    "shape": "CenterCropPad Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten "
    "Identity NonZero Pad Range Reshape ReverseSequence Scatter Shape Size Slice SpaceToDepth "
    "Split Squeeze Tile Transpose Trilu Unsqueeze",
    "signal": "BlackmanWindow DFT HammingWindow HannWindow MelWeightMatrix STFT",
    "string": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    "training": "Adagrad Adam Momentum",
    "unary": "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Cos Cosh Erf Exp Floor IsInf IsNaN Log "
    "Neg Not Reciprocal Round Sign Sin Sinh Sqrt Tan Tanh",
}
_FAMILY_OF = {op: family for family, ops in FAMILIES.items() for op in ops.split()}


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one test.

    Attributes:
        reason: why it failed; empty when it passed.
        implementations: those of its steps.
        others: why it did not run on our own kernels: implementations that are none, or that it was folded.
    """

    name: str
    family: str
    passed: bool
    own: bool
    reason: str
    seconds: float
    implementations: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def families(cases: Iterable[Any]) -> dict[str, str]:
    """The family of every test: that of its operator, or of the operator that was expanded."""
    found: dict[str, str] = {}
    for case in cases:
        origin = found.get(re.sub(r"_expanded(_ver\d+)?$", "", case.name))
        if origin is None:
            node = case.model.graph.node[0]
            origin = _FAMILY_OF.get(node.op_type, "other")
        found[case.name] = origin
    return found


def selected(cases: Sequence[Any], only: str, family: str) -> dict[str, str]:
    """Names and families of the tests to run."""
    chosen = families(cases)
    return {n: f for n, f in chosen.items() if re.search(only, n) and family in ("", f)}


def one_line(error: BaseException) -> str:
    """The first line that tells something, with the type of the error."""
    text = re.sub(r"\s+", " ", str(error)).strip()
    return f"{type(error).__name__}: {text}"[:200]


def work(share: tuple[int, int], skip: frozenset[str], only: str, family: str, results: Connection) -> None:
    """Run every `share[1]`-th test from number `share[0]`, but for those to skip.

    Sends the name before a test and its Result after it; at the end None.
    """
    warnings.simplefilter("ignore")  # the official tests divide by zero and overflow on purpose
    made: list[Representation] = []
    runner = BackendTest(backend(Compiler(KERNELS), made.append))
    suite: type[unittest.TestCase] = runner.test_cases["OnnxBackendNodeModelTest"]
    names = list(selected(load_model_tests(kind="node"), only, family).items())
    for name, group in names[share[0] :: share[1]]:
        if name in skip:
            continue
        results.send(name)
        made.clear()
        reason = ""
        started = time.perf_counter()
        try:
            getattr(suite, f"{name}_cpu")(None)
        # Whatever a test raises is its result.
        except Exception as error:
            reason = one_line(error)
        seconds = time.perf_counter() - started
        (model,) = made or [None]
        planned = model is not None and model.session is not None
        own = planned and not reason and model.own_kernels()
        ran_by = tuple(model.implementations()) if planned else ()
        others = (FOLDED,) if planned and model.is_folded else tuple(model.foreign()) if planned else ()
        if model is not None:
            model.close()
        results.send(Result(name, group, not reason, own, reason, seconds, ran_by, others))
    results.send(None)


class Worker:
    """A process with a share of the tests, started again when a test ends it."""

    def __init__(self, share: tuple[int, int], only: str, family: str) -> None:
        self._how = (share, only, family)
        self._done: set[str] = set()
        self._current = ""
        self._since = 0.0
        self.finished = False
        self._start()

    def _start(self) -> None:
        share, only, family = self._how
        context = multiprocessing.get_context("spawn")
        self.results, theirs = context.Pipe(duplex=False)
        arguments = (share, frozenset(self._done), only, family, theirs)
        self._process: SpawnProcess = context.Process(target=work, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._current, self._since = "", time.monotonic()

    def receive(self) -> Result | None:
        """The next result, if what has arrived is one."""
        try:
            message = self.results.recv()
        except EOFError:
            self._process.join()
            return self._failed(f"the process ended with status {self._process.exitcode}")
        self._since = time.monotonic()
        if message is None:
            self.finished = True
            self._process.join()
        elif isinstance(message, str):
            self._current = message
        else:
            self._done.add(message.name)
            self._current = ""
            return message
        return None

    def overdue(self) -> Result | None:
        """A failure when the current test takes too long."""
        if not self._current or time.monotonic() - self._since < LONGEST:
            return None
        self._process.kill()
        self._process.join()
        return self._failed(f"took more than {LONGEST:.0f} s")

    def _failed(self, reason: str) -> Result:
        name = self._current
        if not name:
            raise RuntimeError(f"a worker failed before its first test: {reason}")
        self._done.add(name)
        self._start()
        return Result(name, "other", False, False, reason, LONGEST)


def run(only: str, family: str, processes: int, verbose: bool) -> list[Result]:
    """Results of all tests of the selection, by name."""
    workers = [Worker((i, processes), only, family) for i in range(processes)]
    found: list[Result] = []
    started = time.monotonic()
    while active := [w for w in workers if not w.finished]:
        ready = wait([w.results for w in active], timeout=1.0)
        arrived = [w.receive() for w in active if w.results in ready]
        arrived += [w.overdue() for w in active if w.results not in ready]
        for result in filter(None, arrived):
            found.append(result)
            if verbose:
                state = "FAIL" if not result.passed else "own " if result.own else "pass"
                told = result.reason or ", ".join(result.implementations)
                print(f"{state} {result.seconds:7.3f} s  {result.name}: {told}", flush=True)
            elif len(found) % 200 == 0:
                print(f"{len(found)} tests, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    return sorted(found, key=lambda r: r.name)


def inference_set() -> frozenset[str] | str:
    """Names of the node tests of the inference set, or why they are unknown."""
    path = SHARED / "data" / "onnx_backend_tests.json"
    if not path.is_file():
        return f"no {path.name} in {path.parent}; set STOWPLAN_SHARED"
    rows = json.loads(path.read_text())
    return frozenset(r["name"] for r in rows if r["kind"] == "node" and r["inference_set"])


def table(results: Sequence[Result], inference: frozenset[str] | str) -> tuple[list[str], int, int]:
    """The report's lines, tests passed, and tests of the inference set passed with own kernels."""
    lines = [f"{'family':<16}{'tests':>7}{'passed':>8}{'own kernels':>13}"]

    def row(title: str, rows: Sequence[Result]) -> tuple[int, int]:
        passed, own = sum(r.passed for r in rows), sum(r.own for r in rows)
        lines.append(f"{title:<16}{len(rows):>7}{passed:>8}{own:>13}")
        return passed, own

    for family in sorted({r.family for r in results}):
        row(family, [r for r in results if r.family == family])
    total, _ = row("all", results)
    if isinstance(inference, str):
        lines.append(f"inference set: not counted, {inference}")
        return lines, total, 0
    chosen = [r for r in results if r.name in inference]
    _, own = row("inference set", chosen)
    others = Counter(
        " + ".join(dict.fromkeys(r.others)) if r.passed else "failed" for r in chosen if not r.own
    )
    lines.append(
        f"inference set, not on own kernels: {', '.join(f'{c} {n}' for n, c in others.most_common())}"
    )
    return lines, total, own


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose name matches")
    parser.add_argument("--family", default="", help="tests of one operator family")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--verbose", action="store_true", help="one line per test")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    results = run(options.only, options.family, options.processes, options.verbose)
    if not results:
        print("no test matches")
        return 2
    inference = inference_set()
    lines, passed, own = table(results, inference)
    for result in results:
        if not result.passed:
            print(f"FAILED {result.name}: {result.reason}")
    print("\n".join(lines))
    print(f"onnx {onnx.__version__}, {time.monotonic() - started:.0f} s, {options.processes} processes")
    if options.json:
        flagged = frozenset() if isinstance(inference, str) else inference
        rows = [{**asdict(r), "inference_set": r.name in flagged} for r in results]
        options.json.write_text(json.dumps({"schema": 1, "onnx": onnx.__version__, "tests": rows}, indent=1))
    if options.only or options.family:
        return 0
    missed = passed < PASSED_TARGET or (not isinstance(inference, str) and own < OWN_TARGET)
    print(f"targets: passed {passed} of {PASSED_TARGET}, inference set on own kernels {own} of {OWN_TARGET}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
