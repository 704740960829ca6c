"""The exported graphs of a job, each a file for any runtime."""

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from app.engine.core.plan import Compilation
from app.engine.report import functions
from app.engine.report.onnx import apart, export, write
from app.engine.report.opset import at_opset
from app.engine.rewrites.quantization import DEQUANTIZED
from app.engine.types.options import Options

# File names by the place in the verification that tells how the graph compares: plain operators; the plan in
# local functions over blocked tensors; the same without functions.
EXPORTS = {
    "exported": "optimized.onnx",
    "functions": "optimized.functions.onnx",
    "inlined": "optimized.inlined.onnx",
}


@dataclass(frozen=True, slots=True)
class Exported:
    """A file, and the operators in it."""

    path: Path
    ops: frozenset[str]


def write_plain(model: ir.Model, folder: Path, options: Options) -> Exported:
    """Write the canonical graph: before backends rewrite it into operators that suit their kernels.

    Raises:
        OpsetError: it cannot be spelled in the opset that the options want.
    """
    path = folder / EXPORTS["exported"]
    wanted = model if options.opset is None else at_opset(model, options.opset)
    export(wanted, path, external=options.external_data)
    return Exported(path, _ops(model.graph))


def write_plan(compilation: Compilation, plain: Exported) -> dict[str, Exported]:
    """Write the plan over blocked tensors, with functions and without, beside the plain graph; all three.

    A plan without blocked tensors is the plain graph: one file with three names.
    """
    found = {"exported": plain}
    paths = {place: plain.path.with_name(EXPORTS[place]) for place in ("functions", "inlined")}
    for path in paths.values():
        path.unlink(missing_ok=True)  # of an attempt before: another name of the plain graph
    if not functions.rearranged(compilation):
        for place, path in paths.items():
            path.hardlink_to(plain.path)
            found[place] = Exported(path, plain.ops)
        return found
    shell, weights = apart(compilation.model)
    blocked = functions.with_functions(compilation, shell)
    ops = _ops(compilation.graph)
    write(blocked, paths["functions"], weights)
    write(functions.inlined(blocked), paths["inlined"], weights)
    return found | {place: Exported(path, ops) for place, path in paths.items()}


def _ops(model: ir.Graph) -> frozenset[str]:
    """Operators of the files that a planned graph is written to."""
    made = {"DequantizeLinear" if DEQUANTIZED in node.meta else node.op_type for node in model.all_nodes()}
    return frozenset(made)
