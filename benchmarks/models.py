"""Which models are measured, where their files are, and the inputs that were recorded with them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from app import samples
from app.engine.types.options import Bindings

Array = np.ndarray[Any, Any]
Case = tuple[dict[str, Array], dict[str, Array]]  # inputs, outputs

ROOT = Path(__file__).resolve().parent.parent
SWEEP = ROOT.parent / "shared" / "data" / "channel_sweep"  # residual networks of several widths
FOLDERS = (ROOT.parent / "shared" / "data" / "models", ROOT / "build" / "models")

DEFAULT = (
    "resnet50",
    "mobilenetv2",
    "mobilenetv3_large",
    "efficientnet_b0",
    "densenet121",
    "squeezenet",
    "convnext_tiny",
    "vit_small_p16",
    "bert_base",
    "minilm_l6",
    "gpt2_decode",
    "bilstm_tagger",
    "ppocrv4_det",
    "ppocrv4_rec",
    "ultraface_rfb320",
    "super_resolution_10",
    "dnsmos_sig_bak_ovr",
    "randwire",
    "silero_vad_v6",
    "mnist_8",
    "mtcnn_pnet",
    "mtcnn_rnet",
)
# Names of the same network: ours, and that of the file the model builder writes.
ALIASES = {"squeezenet": "light_squeezenet"}


@dataclass(frozen=True, slots=True)
class Found:
    """A model file, or the reason why there is none."""

    name: str
    path: Path | None
    reason: str = ""


def find(name: str, folders: Sequence[Path], scratch: Path) -> Found:
    """A path as it is, a file of the folders, else a sample, which is built in `scratch`."""
    if name.endswith(".onnx"):
        path = Path(name)
        return Found(path.stem, path if path.exists() else None, "" if path.exists() else "no such file")
    file = ALIASES.get(name, name)
    for folder in folders:
        path = folder / f"{file}.onnx"
        if path.exists():
            return Found(name, path)
    if name in samples.SAMPLES:
        path = scratch / f"{name}.onnx"
        path.write_bytes(samples.build(name))
        return Found(name, path)
    looked = ", ".join(map(str, folders)) or "no folder"
    builder = FOLDERS[0].parent / "make_models.py"
    command = f"python {builder} --out {FOLDERS[1]} --only {file}"
    return Found(name, None, f"no {file}.onnx in {looked}; `{command}` builds it where its packages are")


def recorded(folder: Path, name: str) -> list[Case]:
    """(inputs, outputs) of every recorded case of `name`.io.npz."""
    found: dict[str, Case] = {}
    # Strings are arrays of objects; the files are ours.
    with np.load(folder / f"{name}.io.npz", allow_pickle=True) as arrays:
        for key in arrays.files:
            *case, side, value = (
                key.split("__", 2) if key.startswith("case") else ("case0", *key.split("__", 1))
            )
            inputs, outputs = found.setdefault(case[0], ({}, {}))
            (inputs if side == "in" else outputs)[value] = arrays[key]
    return list(found.values())


def bindings_of(inputs: dict[str, Array]) -> Bindings:
    """Shapes of a case; integer scalars are bound to their values, as a caller would."""
    scalars = {k: v.item() for k, v in inputs.items() if v.ndim == 0 and v.dtype.kind in "iub"}
    return Bindings(shapes={k: v.shape for k, v in inputs.items()}, values=scalars)


def specialize(path: Path, inputs: dict[str, Array], bound: Iterable[str], target: Path) -> None:
    """Write the model with what the planner is told: input shapes, and `bound` inputs as constants.

    A runtime can then fold and plan as much as we do. Weights that are also inputs are weights only.
    """
    model = ir.load(path)
    # Weights that are not inputs are allowed since version 4 of the format.
    model.ir_version = max(model.ir_version, 4)
    RemoveInitializersFromInputsPass()(model)
    graph = model.graph
    for value in list(graph.inputs):
        name = value.name or ""
        value.shape = ir.Shape(inputs[name].shape)
        if name in bound:
            graph.inputs.remove(value)
            value.const_value = ir.tensor(inputs[name], name=name)
            graph.register_initializer(value)
    ir.save(model, target)
