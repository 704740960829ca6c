"""Compare operators that are planned only with MXNet's inference: python -m tests.mxnet.planned_types FILE.

The file is one of `planned.py`. Every sample is read as an upload is, and the shapes and element types of its outputs
are compared, then storage types and modes, as `training_storage` does. The exit code is 1 where one differs, or an
operator has no sample.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from app.engine.model.load import load
from app.engine.model.mxnet.operators import ROWS
from app.engine.model.shape_inference import inference
from app.engine.model.shape_inference.mxnet_rules import RULES
from tests.mxnet.training_storage import differences, found_of

UNMEASURED = {"Custom": "the shape is that of the node", "CTCLoss": "an alias"}


def types_of(symbol: dict[str, Any], scratch: Path) -> list[tuple[list[int], str]]:
    """Shapes and element types of the outputs of a symbol."""
    path = scratch / "case-symbol.json"
    path.write_text(json.dumps(symbol))
    model = load(path).model
    inference.infer(model)
    return [(list(v.shape or ()), v.dtype.numpy().name) for v in model.graph.outputs]


def main(file: Path) -> int:
    """Compare all lines of a file."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in lines:
            if "nodes" in case or "refused" in case:
                told += [
                    f"{case['seed']}: {d}" for d in differences(case, found_of(case["symbol"], Path(scratch)))
                ]
                continue
            expected = [(list(shape), kind) for shape, kind in zip(case["shapes"] or (), case["types"] or ())]
            try:
                found: Any = types_of(case["symbol"], Path(scratch))
            except Exception as error:  # a case that fails is counted, and the others go on
                found = f"{type(error).__name__}: {error}"[:300]
            if found != expected:
                told.append(f"{case['op']}: MXNet {expected}, here {found}")
    sampled = {case["op"] for case in lines if "op" in case}
    told += [f"{op}: no sample" for op in sorted(RULES.keys() - ROWS.keys() - sampled - UNMEASURED.keys())]
    print("\n".join(told))
    print(f"{len(sampled)} operators that are planned only, {len(lines)} comparisons, {len(told)} differ")
    return 1 if told or not lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
