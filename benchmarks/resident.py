"""`make bench-resident`: resident memory of a model with several shapes and instances, by /proc/PID/smaps.

Each row is a process of its own that plans the model for batches of 1, 2, ... and binds the instances, then
runs each once. Growth is counted from a small model that ran there before, which brings the interpreter, the
compiler and the operators of the reference evaluator, which planning imports for any model; pages of the
weights' files count whole. `code` is what more of shared libraries was read, which all processes have once:
the ratio leaves it out. Growth is to be packed weights and all arenas at most; programs of one instance share
an arena.
"""

import argparse
import gc
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from rich.console import Console
from rich.table import Table

from app.engine.entry.served_model import ServedModel
from app.engine.runtime.cpu.memory import placed
from app.engine.types.options import Bindings, Options
from app.settings import Settings
from benchmarks import models

OPTIONS = Options(autotune=False, choose="first")
SMALL = """<ir_version: 10, opset_import: ["" : 21]>
small (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y) <float[4, 3, 1, 1] w = {1,2,3,4,5,6,7,8,9,1,2,3}> {
c = Conv (x, w)
y = Softmax <axis = 1> (c)
}"""


def main(line: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="benchmarks.resident", description=__doc__)
    parser.add_argument("name", nargs="?", default="resnet50", help="name, or path of an ONNX file")
    parser.add_argument("--models", type=Path, nargs="*", default=models.FOLDERS, help="folders to look in")
    parser.add_argument("--shapes", type=int, default=8, help="batches of 1 to as many")
    parser.add_argument("--instances", type=int, default=4, help="of the program of one request")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args(line)
    kernels = Settings.from_environment().data.absolute() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        found = models.find(arguments.name, arguments.models, Path(scratch))
        if found.path is None:
            sys.exit(f"{found.name}: {found.reason}")
        path = with_symbolic_batch(found.path, Path(scratch) / "symbolic.onnx")
        rows = []
        for stored in (False, True):
            for shapes, instances in ((1, 1), (arguments.shapes, 1), (1, arguments.instances)):
                folder = Path(scratch) / f"weights{len(rows)}" if stored else None
                rows.append(apart(path, kernels, folder, shapes, instances))
    Console(width=120).print(table_of(found.name, rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"model": found.name, "rows": rows}, indent=1) + "\n")


def with_symbolic_batch(path: Path, target: Path) -> Path:
    """The model with a symbol as first dimension of inputs and outputs."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    del model.graph.value_info[:]
    onnx.save(model, target)
    return target


def apart(path: Path, kernels: Path, folder: Path | None, shapes: int, instances: int) -> dict[str, Any]:
    """A row, measured in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return dict(pool.apply(measured, (path, kernels, folder, shapes, instances)))


def measured(path: Path, kernels: Path, folder: Path | None, shapes: int, instances: int) -> dict[str, Any]:
    """Bytes of memory that programs of a model take here."""
    with tempfile.TemporaryDirectory() as scratch:
        small = Path(scratch) / "small.onnx"
        onnx.save(onnx.parser.parse_model(SMALL), small)
        run(ServedModel(small, OPTIONS, Bindings(), kernels=kernels, weights=folder), {"x": (1, 3, 8, 8)}, 1)
    model = ServedModel(path, OPTIONS, Bindings(), kernels=kernels, weights=folder)
    before, code = resident(folder)
    arenas, kept = 0, []
    for count in range(1, shapes + 1):
        asked = {p.name: (count, *(d or 1 for d in (p.shape or ())[1:])) for p in model.inputs}
        programs = run(model, asked, instances)
        arenas += sum(program.program.arena_bytes for program in programs)
        kept.append(programs)
    after, more = resident(folder)
    weights = sum(f.stat().st_size for f in folder.glob("*.weights")) if folder else 0
    return {
        "stored": folder is not None,
        "shapes": shapes,
        "instances": instances,
        "weights": weights,
        "arenas": arenas,
        "code": more - code,
        "grown": after - before,
    }


def run(model: ServedModel, shapes: dict[str, tuple[int, ...]], instances: int) -> list[Any]:
    """Programs that ran once."""
    programs = model.programs(shapes, ((),) * instances)
    request = {p.name: placed(np.zeros(shapes[p.name], p.dtype)) for p in model.inputs}
    for program in programs:
        program.lend(request)
        program.step()
        program.fetch()
    return programs


def resident(weights: Path | None) -> tuple[int, int]:
    """Resident bytes of this process, and those among them of unchanged pages of files other than weights."""
    from app.engine.planning.heartbeat import trim

    gc.collect()
    trim()
    whole, code, counts = 0, 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):  # a mapping: addresses, permissions, offset, device, inode, path
            path = values[4] if len(values) > 4 else ""
            counts = path.startswith("/") and (weights is None or not path.startswith(str(weights)))
        elif name == "Rss:":
            whole += int(values[0])
        elif name in ("Shared_Clean:", "Private_Clean:") and counts:
            code += int(values[0])
    return whole << 10, code << 10


def table_of(name: str, rows: list[dict[str, Any]]) -> Table:
    """The rows, with growth over what it is to be."""
    packed = {(row["shapes"], row["instances"]): row["weights"] for row in rows if row["stored"]}
    table = Table(title=f"{name}, MiB", caption="ratio: grown less code, over packed weights and arenas")
    for heading in ("weights", "shapes", "instances", "packed", "arenas", "grown", "code", "ratio"):
        table.add_column(heading)
    for row in rows:
        weights = packed[row["shapes"], row["instances"]]
        table.add_row(
            "one copy" if row["stored"] else "copies",
            *(str(row["shapes"]), str(row["instances"])),
            *(f"{nbytes / 2**20:.1f}" for nbytes in (weights, row["arenas"], row["grown"], row["code"])),
            f"{(row['grown'] - row['code']) / (weights + row['arenas']):.3f}",
        )
    return table


if __name__ == "__main__":
    main()
