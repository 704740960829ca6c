"""Run symbols in MXNet. Runs in an environment of its own, and imports nothing of ours.

    python run.py FOLDER

Of each NAME-symbol.json with NAME-0000.params and the inputs NAME.npz it writes the outputs, NAME.found.npz, as
`output0`, `output1`, ..., and of the nodes that NAME.rounded.json lists, as `rounded0`, ...
"""

import json
import logging
import sys
from pathlib import Path

import mxnet as mx
import numpy as np


def run(folder, name):
    """Outputs of a symbol as MXNet computes them, and of listed nodes."""
    symbol, args, aux = mx.model.load_checkpoint(str(folder / name), 0)
    with np.load(folder / f"{name}.npz") as arrays:
        inputs = {k: mx.nd.array(arrays[k], dtype=arrays[k].dtype) for k in arrays}
    args = {**args, **inputs}
    listed = folder / f"{name}.rounded.json"
    inner = json.loads(listed.read_text()) if listed.exists() else []
    count, internals = len(symbol.list_outputs()), symbol.get_internals()
    symbol = mx.sym.Group([symbol, *(internals[f"{n}_output"] for n in inner)])
    args = {k: args[k] for k in symbol.list_arguments()}
    executor = symbol.bind(mx.cpu(), args=args, aux_states=aux, grad_req="null")
    found = [o.asnumpy() for o in executor.forward(is_train=False)]
    named = {f"output{i}": o for i, o in enumerate(found[:count])}
    return {**named, **{f"rounded{i}": o for i, o in enumerate(found[count:])}}


def main(folder):
    logging.disable(logging.WARNING)  # files without parameters
    failed = 0
    for path in sorted(folder.glob("*-symbol.json")):
        name = path.name[: -len("-symbol.json")]
        try:
            outputs = run(folder, name)
        except Exception as error:  # MXNet raises many types
            failed += 1
            print(f"{name}: {type(error).__name__}: {str(error)[:400]}", flush=True)
            continue
        np.savez(folder / f"{name}.found.npz", **outputs)
    return failed


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1])) else 0)
