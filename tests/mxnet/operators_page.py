"""The page docs/mxnet-operators.md, from the rows: python -m tests.mxnet.operators_page [REGISTRY].

The operators are those of `registry.py`, which `tests/data/mxnet_operators.json` has; REGISTRY is what real MXNet
told, and must be the same. Operators that go out are those that the graphs of the suite are written in.
"""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx

from app.engine.entry.symbols import to_symbol
from app.engine.model.mxnet.aliases import ALIASES
from app.engine.model.mxnet.operators import ROWS
from app.engine.model.mxnet.operators.refused import REFUSED
from app.engine.model.mxnet.symbol_file import VARIABLE, Symbol
from app.engine.model.shape_inference.mxnet_rules import RULES
from tests.mxnet.graphs import graphs

ROOT = Path(__file__).resolve().parents[2]
NAMES = ROOT / "tests" / "data" / "mxnet_operators.json"
PAGE = ROOT / "docs" / "mxnet-operators.md"
HEAD = """# Operators of MXNet 1.9.1

Every operator of its registry, by the name that files of symbols have, and its other names, which are read too. `make
test-mxnet` compares the list with the real package; `python -m tests.mxnet.operators_page` writes this page from the
rows. [Symbols of MXNet](mxnet.md) tells the rest.

* **in**: it is read as operators of ONNX (`app/engine/model/mxnet/operators/`) and runs.
* **backward**: it is differentiated by our rules where it names its forward node and that is read.
* **planned**: shapes, storage types, dispatch and memory are planned, nothing executes it
  (`app/engine/model/shape_inference/mxnet_rules.py`).
* **out**: models are written in it (`app/engine/report/mxnet/operators/`).
* Others are refused with the reason.

"""


def status(op: str) -> tuple[str, str]:
    """What can be done with an operator, and why no more.

    Raises:
        KeyError: no table has it.
    """
    if op in ROWS:
        return "in", ""
    if op in RULES:
        return "planned", ""
    if "backward" in op:
        return "backward", ""
    return "refused", REFUSED[op]


def used(symbol: Symbol) -> Iterator[str]:
    """Operators of a symbol and of those in it."""
    for node in symbol.nodes:
        if node.op != VARIABLE:
            yield node.op
        for nested in node.subgraphs:
            yield from used(nested)


def written() -> set[str]:
    """Operators that the graphs of the suite are written in."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for name, model, _ in graphs():
            onnx.save(model, Path(folder) / f"{name}.onnx")
            found.update(used(to_symbol(Path(folder) / f"{name}.onnx", {}).symbol))
    return found


def page(out: set[str]) -> str:
    """The text of the page, given which operators go out."""
    names: dict[str, list[str]] = json.loads(NAMES.read_text())
    lines, counts = [], Counter[str]()
    for op, others in sorted(names.items(), key=lambda row: (row[0].startswith("_"), row[0].lower())):
        kind, reason = status(op)
        goes = bool(out & {op, *others})
        counts.update([kind, *(["out"] if goes else [])])
        listed = " ".join(f"`{n}`" for n in others)
        lines.append(f"| `{op}` | {listed} | {kind} | {'out' if goes else ''} | {reason} |")
    told = ", ".join(f"{counts[kind]} {kind}" for kind in ("in", "backward", "planned", "refused", "out"))
    table = "\n".join(["| operator | other names | in | out | reason |", "|---|---|---|---|---|", *lines])
    return f"{HEAD}{len(names)} operators: {told}.\n\n{table}\n"


def marked() -> set[str]:
    """Operators that the page says go out."""
    rows = (line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    return {cells[0].strip("| `") for cells in rows if cells[3] == "out"}


def main(registry: Path | None) -> int:
    """Write the page; 1 where real MXNet has other operators than the page, or other names of them."""
    PAGE.write_text(page(written()))
    if registry is None:
        return 0
    told = json.loads(registry.read_text())
    same = told == json.loads(NAMES.read_text())
    wrong = [n for op, others in told.items() for n in others if n in ALIASES and ALIASES[n] != op]
    known = (*ROWS, *RULES, *ALIASES, *REFUSED)
    unknown = [n for op, others in told.items() for n in others if n not in known and "backward" not in op]
    print(
        f"{len(told)} operators of MXNet, the same as in {NAMES.name}: {same}; wrong names: {wrong + unknown}"
    )
    return 0 if same and not wrong and not unknown else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
