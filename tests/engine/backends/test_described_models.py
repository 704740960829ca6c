"""Models as they are used, planned for described accelerators: each node is on the device or says why not.

A sample in every run; `make accelerator-models` plans all models on disk and prints a line for each plan.
"""

import copy
import itertools
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report.decisions import accelerated
from app.engine.types.options import Bindings, Options
from benchmarks.models import FOLDERS, bindings_of, recorded
from tests.engine.backends.described_check import check
from tests.engine.backends.described_targets import BLOCK16, TENSOR32, target_from
from tests.engine.backends.test_described_views import VIEWER

REGISTRY = load_registry()
ZOO = FOLDERS[0].parent / "zoo" / "small"
LARGEST = 120_000_000  # byte of a file that is planned
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"prefer": "memory"}, {"fuse": False}, {"inplace": False})

# Weights of networks as they are used do not fit the small memory of `BLOCK16`.
ROOMY = copy.deepcopy(BLOCK16) | {"name": "block16-roomy"}
ROOMY["memories"][1]["size"] = 4 * 2**20
VIEWS = copy.deepcopy(VIEWER) | {"name": "viewer-roomy", "memories": ROOMY["memories"]}
SPECS = {spec["name"]: spec for spec in (TENSOR32, BLOCK16, ROOMY, VIEWS)}

# Nodes on the device of the nodes that are no change of layout, at least.
SAMPLE = {
    ("zoo/small/resnet18_qdq", "tensor32"): (128, 145),
    ("zoo/small/resnet18_qdq", "block16"): (9, 136),
    ("models/mnist_8", "block16"): (8, 9),
    ("models/mtcnn_rnet", "block16-roomy"): (14, 19),
    ("models/ultraface_rfb320", "block16-roomy"): (95, 127),
    ("models/silero_vad_v6", "block16-roomy"): (10, 36),
    ("models/chars2vec_en300_loop", "block16"): (0, 5),
    ("zoo/small/shufflenetv2", "viewer-roomy"): (84, 220),
    ("zoo/small/gcn_scatter", "block16"): (14, 28),
}


def planned(path: Path, spec: dict[str, Any], **options: Any) -> Program:
    """The plan of a model for a description, with the shapes of its first recorded case."""
    chosen, bindings = Options(**options), Bindings()
    if path.with_suffix(".io.npz").exists():
        bindings = bindings_of(recorded(path.parent, path.stem)[0][0])
    return session.planned(
        session.canonical(load(path), target_from(spec), chosen, bindings, REGISTRY), chosen
    )


def checked(program: Program, spec: dict[str, Any]) -> tuple[int, int, dict[str, int]]:
    """Nodes on the device, all nodes that are no change of layout, and steps by row."""
    rows = check(program, spec)
    told = accelerated(program.compilation)
    assert told is not None
    nodes = sum(node.domain != "stowplan" for node in program.compilation.graph)
    assert all(e["reason"] for e in told["elsewhere"])
    assert told["nodes"] + sum(e["count"] for e in told["elsewhere"]) == nodes
    return told["nodes"], nodes, rows


@pytest.mark.parametrize(("name", "target"), SAMPLE, ids=["-".join(key) for key in SAMPLE])
def test_each_node_is_on_the_device_or_says_why_not(shared: Path, name: str, target: str) -> None:
    spec = SPECS[target]
    own, nodes, _ = checked(planned(shared / f"{name}.onnx", spec), spec)
    assert own >= SAMPLE[name, target][0]
    assert nodes <= SAMPLE[name, target][1]


def main(paths: list[Path]) -> int:
    """Plan all models for all descriptions; the number of failures."""
    failures = plans = 0
    for path, spec, options in itertools.product(paths, SPECS.values(), OPTIONS):
        title, start, plans = f"{path.stem} {spec['name']} {options or ''}", time.monotonic(), plans + 1
        try:
            own, nodes, rows = checked(planned(path, spec, **options), spec)
            print(f"{title}: {own} of {nodes} nodes, {time.monotonic() - start:.1f} s, {rows}", flush=True)
        except Exception as error:
            failures += 1
            print(f"{title}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            traceback.print_exc(limit=-2)
    print(f"{plans} plans of {len(paths)} models, {failures} failures")
    return failures


if __name__ == "__main__":
    every = [*map(Path, sys.argv[1:])] or [
        p for folder in (*FOLDERS, ZOO) for p in sorted(folder.glob("*.onnx"))
    ]
    by_name = {p.stem: p for p in every if p.stat().st_size <= LARGEST}
    sys.exit(min(main(list(by_name.values())), 1))
