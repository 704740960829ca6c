"""`make bench-trees`: ensembles of trees and classifiers, one row and many, beside onnxruntime.

Random ensembles of a given number of trees and depth, and the recorded models of `shared/data/zoo/small`.
Rounds of both runtimes alternate in one process, each call with other rows; times are minima over rounds of
their medians, so that what else the machine does counts little. Labels and scores are compared with those of
onnxruntime on one thread: on several it adds up parts of the trees, which round differently.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report.onnx import export
from app.engine.runtime.benchmark import pinned
from app.engine.runtime.cpu.executor import Executor
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from app.kernels.cpu.runtime.compiler import Compiler
from app.settings import Settings

Array = np.ndarray[Any, Any]
FEATURES = 30
# Rows, and inputs that calls take in turn: one row again and again is what branch predictors learn.
BATCHES = ((1, 64), (1000, 6))
RECORDED = ("sk_rf", "sk_rf_zipmap", "lightgbm_clf", "xgboost_reg")
ML = "ai.onnx.ml"
HEADINGS = ("rows", "threads", "stowplan us", "onnxruntime us", "ratio", "labels differ", "scores differ by")
LINE = "{:40}" + "".join(f"{{:>{len(heading) + 2}}}" for heading in HEADINGS)


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A random ensemble; `pruned` is the share of nodes that are leaves before the last level."""

    trees: int
    depth: int
    targets: int = 1
    classes: bool = False
    pruned: float = 0.0


ENSEMBLES: Mapping[str, Ensemble] = {
    "100 trees, depth 10, regression": Ensemble(100, 10),
    "100 trees, depth 10, two classes": Ensemble(100, 10, classes=True),
    "100 trees, depth 10, three classes": Ensemble(100, 10, 3, classes=True),
    "500 trees, depth 6, regression": Ensemble(500, 6),
    "100 trees, up to depth 20, two classes": Ensemble(100, 20, classes=True, pruned=0.4),
}


def model_of(ensemble: Ensemble, seed: int = 0) -> ir.Model:
    """A model of one node, drawn from a seed."""
    random = np.random.default_rng(seed)
    nodes: list[tuple[object, ...]] = []
    leaves: list[tuple[object, ...]] = []
    for tree in range(ensemble.trees):
        _grow(ensemble, tree, random, nodes, leaves)
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    prefix = "class" if ensemble.classes else "target"
    attributes: dict[str, Any] = {f"nodes_{n}": list(c) for n, c in zip(names, zip(*nodes))}
    attributes |= {
        f"{prefix}_{n}": list(c) for n, c in zip(("treeids", "nodeids", "ids", "weights"), zip(*leaves))
    }
    width = max(ensemble.targets, 2) if ensemble.classes else ensemble.targets
    x = ir.val("x", ir.DataType.FLOAT, ["n", FEATURES])
    if ensemble.classes:
        attributes["classlabels_int64s"] = list(range(width))
        outputs = [ir.val("label", ir.DataType.INT64, ["n"]), ir.val("y", ir.DataType.FLOAT, ["n", width])]
    else:
        attributes["n_targets"] = width
        outputs = [ir.val("y", ir.DataType.FLOAT, ["n", width])]
    op = f"TreeEnsemble{'Classifier' if ensemble.classes else 'Regressor'}"
    node = ir.node(op, [x], attributes, domain=ML, outputs=outputs, name="trees")
    body = ir.Graph([x], outputs, nodes=[node], opset_imports={"": 21, ML: 3}, name="ensemble")
    return ir.Model(body, ir_version=10)


def _grow(
    ensemble: Ensemble, tree: int, random: np.random.Generator, nodes: list[Any], leaves: list[Any]
) -> None:
    """One tree, level by level."""
    level, number = [(0, 0)], 1
    while level:
        below = []
        for own, depth in level:
            ends = depth == ensemble.depth or (depth > 2 and random.random() < ensemble.pruned)
            feature, value = int(random.integers(FEATURES)), float(np.float32(random.standard_normal()))
            children = (0, 0) if ends else (number, number + 1)
            nodes.append((tree, own, feature, value, "LEAF" if ends else "BRANCH_LEQ", *children))
            if ends:
                weights = random.random(ensemble.targets).astype(np.float32) / np.float32(ensemble.trees)
                leaves += [(tree, own, i, float(w)) for i, w in enumerate(weights)]
            else:
                below += [(child, depth + 1) for child in children]
                number += 2
        level = below


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.trees", description=__doc__)
    parser.add_argument("--only", default="", help="models whose names contain this text")
    parser.add_argument("--threads", type=int, nargs="*", default=(1, 2))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/zoo/small"))
    arguments = parser.parse_args(line)
    compiler = Compiler(Settings.from_environment().data.absolute() / "kernels")
    print(LINE.format("model", *HEADINGS))
    scratch = Path("build/bench-trees")
    scratch.mkdir(parents=True, exist_ok=True)
    paths = {name: scratch / f"{i}.onnx" for i, name in enumerate(ENSEMBLES)}
    for name, ensemble in ENSEMBLES.items():
        if arguments.only in name:
            export(model_of(ensemble), paths[name])
    recorded = {name: arguments.data / f"{name}.onnx" for name in RECORDED}
    paths |= {name: path for name, path in recorded.items() if path.exists()}
    for name, path in paths.items():
        for batch in BATCHES if arguments.only in name else ():
            for threads in arguments.threads:
                found = measured(path, batch, threads, arguments.rounds, compiler)
                print(LINE.format(name, str(batch[0]), str(threads), *found), flush=True)


def measured(
    path: Path, batch: tuple[int, int], threads: int, rounds: int, compiler: Compiler
) -> tuple[str, ...]:
    """Times, their ratio and differences of one model; `batch` is rows and how many inputs of so many."""
    rows, variants = batch
    options = Options(threads=threads, backends=("numba-cpu", "reference"))
    with pinned(threads) as cores:
        peer, alone = opened(path, threads), opened(path, 1)
        (given,) = peer.get_inputs()
        draw, shape = np.random.default_rng(1), (rows, given.shape[1])
        inputs = [{given.name: draw.standard_normal(shape).astype(np.float32)} for _ in range(variants)]
        bindings = Bindings(shapes={given.name: shape})
        compilation = session.canonical(load(path), host(), options, bindings, load_registry())
        program = session.planned(session.tuned(compilation, options, compiler), options)
        executor = Executor(program, compiler, cores=cores)
        names = [o.name for o in alone.get_outputs()]
        pairs = [
            difference(executor.run(fed), dict(zip(names, alone.run(None, fed), strict=True)))
            for fed in inputs
        ]
        ours, theirs = alternately((executor.run, lambda fed: peer.run(None, fed)), inputs, rounds)
        executor.close()
    labels, scores = sum(p[0] for p in pairs), max(p[1] for p in pairs)
    return (f"{ours * 1e6:.1f}", f"{theirs * 1e6:.1f}", f"{theirs / ours:.2f}x", str(labels), f"{scores:.1e}")


def opened(path: Path, threads: int) -> Any:
    """A session of onnxruntime."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 4
    return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def alternately(runs: Sequence[Callable[[Any], object]], inputs: Sequence[Any], rounds: int) -> list[float]:
    """Seconds of a call of each: the least over rounds of the median of a round."""
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for i, run in enumerate(runs):
            taken = []
            for fed in inputs:
                started = time.perf_counter()
                run(fed)
                taken.append(time.perf_counter() - started)
            best[i] = min(best[i], float(np.median(taken)))
    return best


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[int, float]:
    """Number of different labels, and the largest difference of scores."""
    labels, scores = 0, 0.0
    for name, expected in theirs.items():
        found = ours[name]
        if isinstance(expected, list):  # of maps
            found, expected = (np.array([list(m.values()) for m in maps]) for maps in (found, expected))
        if np.asarray(expected).dtype.kind in "iu":
            labels += int((np.asarray(found) != expected).sum())
        else:
            scores = max(scores, float(np.abs(np.asarray(found) - expected).max()))
    return labels, scores


if __name__ == "__main__":
    main()
