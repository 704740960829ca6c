"""Storage types of training graphs as MXNet 1.9.1 inferred them: the first of those that `make test-mxnet` compares."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.engine.model.mxnet import symbol_file
from app.engine.model.mxnet.operator_graph import operator_graph
from app.engine.types.errors import GraphError
from app.engine.types.limits import Limits
from tests.engine.model.mxnet.writing import Symbols
from tests.mxnet.training_storage import differences, found_of

FILE = Path(__file__).parents[2] / "data" / "mxnet_training_graphs.jsonl"
CASES = [json.loads(line) for line in FILE.read_text().splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["seed"]))
def test_every_node_is_inferred_as_by_mxnet(case: dict[str, Any], tmp_path: Path) -> None:
    assert differences(case, found_of(case["symbol"], tmp_path)) == []


def test_graphs_have_backward_nodes_sparse_values_and_refusals() -> None:
    assert any(node["op"] == "_backward_dot" for case in CASES for node in case["symbol"]["nodes"])
    assert any("row_sparse" in str(case.get("nodes")) for case in CASES)
    assert any("refused" in case for case in CASES)


@pytest.mark.parametrize("pointers", [1, [0], [0, 1, "2", 3], [0, 1, 0, 1], [1, 2, 3, 4], [0, 1, 2, 2**20]])
def test_numbers_of_outputs_that_fit_no_nodes_are_refused(pointers: Any, tmp_path: Path) -> None:
    s = Symbols()
    s.add("relu", "b", s.add("relu", "a", s.var("x")))
    symbol = {**s.json(), "node_row_ptr": pointers}
    path = tmp_path / "net-symbol.json"
    path.write_text(json.dumps(symbol))
    with pytest.raises(GraphError, match="node_row_ptr"):
        symbol_file.read(path, Limits())


def test_an_operand_that_a_node_does_not_make_is_refused(tmp_path: Path) -> None:
    s = Symbols()
    s.add("relu", "b", (s.add("relu", "a", s.var("x")), 1))
    symbol = symbol_file.read(s.save(tmp_path), Limits())
    assert [len(node.outputs) for node in operator_graph(symbol)] == [2, 1]
