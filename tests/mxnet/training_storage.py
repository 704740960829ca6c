"""Compare storage types of random training graphs with those of MXNet: python -m tests.mxnet.training_storage FILE.

The file is one of `training_graphs.py`. Every symbol is read as an upload is, and what is inferred for each of its
nodes is compared: mode and storage types of inputs and outputs, or the node that refuses. The exit code is 1 if a
graph differs.
"""

import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from app.engine.core.registry import load
from app.engine.model.mxnet import symbol_file
from app.engine.model.mxnet.operator_graph import operator_graph
from app.engine.storage.inference import inferred
from app.engine.types.errors import GraphError
from app.engine.types.limits import Limits

REGISTRY = load()
_SHOWN = 40  # kinds of differences that are printed
Nodes = list[list[Any] | None]


def found_of(symbol: dict[str, Any], scratch: Path) -> Nodes | str:
    """Mode, inputs and outputs of every operator as the log of MXNet tells them; or the node that refuses."""
    path = scratch / "case-symbol.json"
    path.write_text(json.dumps(symbol))
    graph = operator_graph(symbol_file.read(path, Limits()))
    try:
        columns = inferred(graph, REGISTRY)
    except GraphError as error:
        return (error.pointer or "").removeprefix("node:")
    kinds = columns.kinds
    return [
        [
            f"f{columns.modes[node].value}".replace("ffallback", "fcompute_fallback"),
            [kinds[v] for v in node.inputs if v is not None],
            [kinds[v] for v in node.outputs],
        ]
        for node in graph
    ]


def differences(case: dict[str, Any], found: Nodes | str) -> list[str]:
    """What differs, by operator."""
    operators = [n for n in case["symbol"]["nodes"] if n["op"] != "null"]
    if "refused" in case or isinstance(found, str):
        expected = case.get("refused", "nothing")
        if found == expected:
            return []
        ops = {n["name"]: f"{n['op']} {n.get('attrs', {})}" for n in operators}
        told = found if isinstance(found, str) else "nothing"
        return [f"refused: MXNet {ops.get(expected, expected)}, here {ops.get(told, told)}"]
    expected = [n for n in case["nodes"] if n is not None]
    made = []
    for node, theirs, ours in zip(operators, expected, found, strict=True):
        if theirs != ours and theirs[1] == ours[1]:  # others follow from these
            told = {k: v for k, v in node.get("attrs", {}).items() if not k.startswith("__")}
            made.append(f"{node['op']} {told} {short(theirs)} here {short(ours)}")
    return made if made or expected == found else ["inputs differ only"]


def short(told: list[Any]) -> str:
    """`dc>d:compute_ex`."""
    inputs, outputs = ("".join(kind[0] for kind in kinds) for kinds in told[1:])
    return f"{inputs}>{outputs}:{told[0]}"


def main(file: Path) -> int:
    """Compare all graphs of a file."""
    counts: Counter[str] = Counter()
    equal = total = nodes = refused = 0
    with tempfile.TemporaryDirectory() as scratch:
        for line in file.read_text().splitlines():
            case = json.loads(line)
            try:
                told = differences(case, found_of(case["symbol"], Path(scratch)))
            except Exception as error:  # a graph that fails is counted, and the others go on
                told = [f"seed {case['seed']}: {type(error).__name__}: {error}"[:300]]
            counts.update(set(told))
            equal += not told
            total += 1
            refused += "refused" in case
            nodes += len(case["symbol"]["nodes"])
    for told, count in counts.most_common(_SHOWN):
        print(f"{count} graphs: {told}")
    print(
        f"{equal} of {total} training graphs ({nodes} nodes, {refused} graphs refused) have MXNet's storage types, "
        "modes and refusals in every node"
    )
    return 0 if equal == total > 0 else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
