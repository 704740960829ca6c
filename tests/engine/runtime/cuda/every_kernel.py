"""Compile every kernel that the tests know of, for both generations, and tell what is wrong with it.

`python -m tests.engine.runtime.cuda.every_kernel [--only WORD]` takes all of `generators.py` and all kernels of the five
networks, of which the test suite compiles one of each kind. Exit code 1 if a kernel spills, leaves too few
warps, lacks an instruction, or has one that it must not have.
"""

import argparse
import os
import tempfile
from pathlib import Path

from app.kernels.cuda.compiler import Compiler
from tests.conftest import KERNELS, ROOT
from tests.engine.runtime.cuda.networks import NETWORKS, kernels, warps
from tests.kernels.cuda.compiled import GENERATIONS, compiled, faults, missing, present, together, warm
from tests.kernels.cuda.generators import EVERYDAY, REST, Row


def _progress(done: int, total: int) -> None:
    if done % 100 == 0:
        print(f"{done} of {total} kernels", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="compile every kernel for GPUs; none is needed")
    parser.add_argument("--only", default="", help="names of rows or networks that contain this")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    only = arguments.only
    shared = Path(os.environ.get("STOWPLAN_SHARED", ROOT.parent / "shared")) / "data"  # noqa: TID251
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        rows = {n: row for n, row in (EVERYDAY | REST).items() if only in n}
        steps = {n: [step.kernel for step in row.made()] for n, row in rows.items()}
        for name in NETWORKS:
            if only in name:
                for kernel in kernels(name, shared, folder):
                    label = f"{name} {kernel.name} {len(steps)}"
                    rows[label], steps[label] = Row(label, lambda: None, warps(kernel)), [kernel]  # type: ignore[arg-type, return-value]
        wanted = list(dict.fromkeys(k for each in steps.values() for k in each))
        warm(wanted, KERNELS, arguments.processes, _progress)
        made = compiled(wanted, Compiler(KERNELS), folder)
    told = []
    for name, row in rows.items():
        both = [made[kernel] for kernel in steps[name]]
        told += [f"{name}: {f}" for two in both for one in two for f in faults(one, row.warps, row.stack)]
        for generation in together(both):
            told += [f"{name}: no {x}" for x in missing(row.expected, generation)]
            told += [f"{name}: has {x}" for x in present(row.refused, generation)]
    print("\n".join([*told, f"{len(wanted)} kernels for {' and '.join(GENERATIONS)}, {len(told)} faults"]))
    return bool(told)


if __name__ == "__main__":
    raise SystemExit(main())
