"""Plan the same models with this checkout and with another one, and compare the documents.

`plan.json`, `memory.json` and `decisions.json` must be equal byte for byte (keys sorted) after the words of
`tests/data/renames.json` are replaced in those of the other checkout, which is the older. The models are the
development models and the small ones of the zoo (in `shared`), those in `build/models`, the built-in samples,
and two node tests of every conformance family: the first by name and the one with most nodes. Every model is
planned for several targets and options, from predicted times only. A model that both checkouts refuse for
the same reason is equal, and is listed with that reason.

Each checkout plans in one process of its own; one of the two works at a time. Ends with status 1 if a
document differs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from onnx.backend.test.loader import load_model_tests

from app import samples
from benchmarks.models import FOLDERS, ROOT, bindings_of, recorded
from tests.conformance import families

CHILD = Path(__file__).with_name("plan_documents.py")
RENAMES = Path(__file__).parent / "data" / "renames.json"
ZOO = FOLDERS[0].parent / "zoo" / "small"
LONGEST = 300.0  # s for one plan; a process that takes more is ended
SMALL = 3_000_000  # byte of a model file up to which all SETTINGS are planned


@dataclass(frozen=True, slots=True)
class Setting:
    """A target and options. `always` holds for models of any size."""

    target: str
    options: Mapping[str, Any] = field(default_factory=dict)
    always: bool = False

    def __str__(self) -> str:
        return " ".join([self.target, *(f"{k}={v}" for k, v in self.options.items())])


SETTINGS = (
    Setting("host", always=True),
    Setting("cuda-sm90", {"precision": "bf16"}, always=True),
    Setting("cpu-avx2", {"prefer": "memory", "threads": 4}),
    Setting("cpu-avx512-bf16", {"semantics": "mxnet-1.9", "precision": "bf16"}),
    Setting("edge-npu"),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A model file and what its inputs are bound to."""

    name: str
    path: Path
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    values: Mapping[str, float | int | bool] = field(default_factory=dict)

    @property
    def settings(self) -> list[Setting]:
        return [s for s in SETTINGS if s.always or self.path.stat().st_size <= SMALL]


class Renames:
    """Old words and their new ones, replaced in keys and strings wherever the whole word stands.

    An old word that ends with a dot or an underscore is the beginning of names: `pool.` of `pool.max`.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words
        self.unused = set(words)  # old words that no document had so far
        longest = sorted(words, key=len, reverse=True)
        ends = [re.escape(w) + (r"(?=\w)" if w.endswith((".", "_")) else r"(?!\w)") for w in longest]
        self._pattern = re.compile(rf"(?<![\w.])(?:{'|'.join(ends)})") if words else None

    def text(self, old: str) -> str:
        """The text with new words."""
        return self._pattern.sub(self._new, old) if self._pattern else old

    def document(self, old: Any) -> Any:
        """The JSON document with new words in its keys and strings."""
        if isinstance(old, dict):
            return {self.text(k): self.document(v) for k, v in old.items()}
        if isinstance(old, list):
            return [self.document(v) for v in old]
        return self.text(old) if isinstance(old, str) else old

    def _new(self, match: re.Match[str]) -> str:
        self.unused.discard(match[0])
        return self._words[match[0]]


def difference(before: Any, after: Any, path: str = "$") -> str | None:
    """The first difference of two JSON documents with its path and both values, None if there is none."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if key not in after or key not in before:
                return f"{path}.{key}: only {'before' if key in before else 'after'}"
            found = difference(before[key], after[key], f"{path}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip(before, after)):
            found = difference(old, new, f"{path}[{index}]")
            if found is not None:
                return found
        if len(before) == len(after):
            return None
        return f"{path}: {len(before)} elements before, {len(after)} after"
    old, new = json.dumps(before), json.dumps(after)  # 1, 1.0 and true are three values
    return None if old == new else f"{path}: {old[:300]} before, {new[:300]} after"


class Planner:
    """A process that plans with one checkout, started again after a model that ends it."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Planner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def plan(self, model: Model, setting: Setting, folder: Path) -> dict[str, Any]:
        """The documents by name; of a model that is not planned `refused` alone."""
        folder.mkdir()
        request = {
            "path": str(model.path),
            "shapes": {k: list(v) for k, v in model.shapes.items()},
            "values": dict(model.values),
            "target": setting.target,
            "options": dict(setting.options),
            "folder": str(folder),
        }
        failure = self._asked(json.dumps(request))
        if failure:
            return {"refused": {"type": "failure", "message": failure}}
        return {f.stem: json.loads(f.read_text()) for f in sorted(folder.iterdir())}

    def _asked(self, line: str) -> str:
        """Empty when the request was answered, else the reason why it was not."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        if not wait([process.stdout], LONGEST):
            self._end()
            return f"no plan within {LONGEST:.0f} s"
        if process.stdout.readline():
            return ""
        status = process.wait()
        self._end()
        return f"the process ended with status {status}"

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            environment = {**os.environ, "PYTHONPATH": str(self._checkout)}  # noqa: TID251
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", CHILD],  # -P: `tests` is not on the path
                cwd=self._checkout,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def models(scratch: Path) -> Iterator[Model]:
    """All models; those without a file of their own are written into `scratch`."""
    for folder in (*FOLDERS, ZOO):
        for path in sorted(folder.glob("*.onnx")):
            if not path.with_suffix(".io.npz").exists():
                yield Model(path.stem, path)
                continue
            bound = bindings_of(recorded(folder, path.stem)[0][0])
            yield Model(path.stem, path, bound.shapes, bound.values)
    for name in samples.SAMPLES:
        path = scratch / f"{name}.onnx"
        path.write_bytes(samples.build(name))
        yield Model(f"sample {name}", path)
    yield from conformance(scratch)


def conformance(scratch: Path) -> Iterator[Model]:
    """Of every conformance family the first node test by name, and the one with most nodes."""
    cases = {case.name: case for case in load_model_tests(kind="node")}
    named: dict[str, list[str]] = {}
    for name, family in sorted(families(cases.values()).items()):
        named.setdefault(family, []).append(name)
    for family, names in sorted(named.items()):
        largest = max(names, key=lambda n: len(cases[n].model.graph.node))
        for name in dict.fromkeys((names[0], largest)):
            proto, (given, _) = cases[name].model, cases[name].data_sets[0]
            fixed = {i.name for i in proto.graph.initializer}
            inputs = [i for i in proto.graph.input if i.name not in fixed]
            tensors = {i.name: a for i, a in zip(inputs, given) if i.type.HasField("tensor_type")}
            path = scratch / f"{name}.onnx"
            path.write_bytes(proto.SerializeToString())
            yield Model(f"{family} {name}", path, {k: np.shape(a) for k, a in tensors.items()})


def compared(
    model: Model, before: Planner, after: Planner, renames: Renames, scratch: Path
) -> tuple[list[str], list[str]]:
    """The first difference of every document, and the reason where no plan was made; a line each, with its setting."""
    different, refused = [], []
    for number, setting in enumerate(model.settings, 1):
        if sys.stderr.isatty():
            print(f"{model.name}: {number} of {len(model.settings)}\033[K", end="\r", file=sys.stderr)
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            old = renames.document(before.plan(model, setting, Path(folder) / "before"))
            new = after.plan(model, setting, Path(folder) / "after")
        if old.keys() == new.keys():
            found = [difference(old[name], new[name], name) for name in new]
        else:
            found = [difference(old, new)]
        different += [f"{setting}: {line}" for line in found if line is not None]
        if "refused" in old and "refused" in new:
            refused.append(f"{setting}: {new['refused']['type']}: {new['refused']['message'][:200]}")
    return different, refused


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.same_plans", description=__doc__)
    parser.add_argument("other", type=Path, help="root of the older checkout")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models whose name contains one of these")
    options = parser.parse_args(arguments)
    renames = Renames(json.loads(RENAMES.read_text()))
    started, failed, refusals, plans = time.monotonic(), [], 0, 0
    with (
        tempfile.TemporaryDirectory() as name,
        Planner(options.other.resolve()) as before,
        Planner(ROOT) as after,
    ):
        scratch = Path(name)
        chosen = [m for m in models(scratch) if not options.only or any(o in m.name for o in options.only)]
        for number, model in enumerate(chosen, 1):
            since = time.monotonic()
            different, refused = compared(model, before, after, renames, scratch)
            head = f"[{number}/{len(chosen)}] {'DIFFERENT' if different else 'equal'} {model.name}"
            count = len(model.settings)
            print(f"{head}: {count} plans, {time.monotonic() - since:.1f} s", flush=True)
            for line in different:
                print(f"    {line}")
            for line in refused:
                print(f"    refused by both: {line}")
            failed += [model.name] * bool(different)
            refusals, plans = refusals + len(refused), plans + count
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} models equal, {plans} plans, {refusals} of them "
        f"refused by both, {time.monotonic() - started:.0f} s"
    )
    if unused := sorted(renames.unused):
        print(f"renames without use in these documents: {', '.join(unused)}")
    if failed:
        print(f"different: {', '.join(failed)}")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
