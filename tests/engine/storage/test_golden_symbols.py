"""Every row of MXNet's golden table as an upload: a symbol, whose report says storage types and dispatch mode."""

import ast
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.entry import optimize
from app.engine.types.options import Bindings, Options
from app.engine.types.target import find
from tests.engine.model.mxnet.writing import Symbols, params
from tests.engine.storage.test_inference import GOLDEN, MODES, operator_of

STYPES = {"default": "0", "row_sparse": "1", "csr": "2"}
OPTIONS = Options(semantics="mxnet-1.9", autotune=False, verify=False, choose="first")
SQUARE = (4, 4)
# By operator: shapes of operands that are not 4 x 4, and attributes beside those of the label.
SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "batch_dot": ((2, 4, 4), (2, 4, 4)),
    "Convolution": ((1, 4, 8, 8), (4, 4, 3, 3)),
    "Pooling": ((1, 4, 8, 8),),
    "take": (SQUARE, (2,)),
    "sparse_retain": (SQUARE, (2,)),
}
ATTRIBUTES: dict[str, dict[str, str]] = {
    "clip": {"a_min": "0", "a_max": "1"},
    "reshape": {"shape": "(2, 8)"},
    "FullyConnected": {"num_hidden": "4", "no_bias": "True"},
    "Convolution": {"num_filter": "4", "kernel": "(3, 3)", "no_bias": "True"},
    "Embedding": {"input_dim": "4", "output_dim": "4"},
    "Pooling": {"kernel": "(2, 2)"},
    **{op: {"scalar": "2"} for op in ("_mul_scalar", "_plus_scalar", "_div_scalar")},
}
LABELS = [(label, list(rows)) for label, rows in itertools.groupby(GOLDEN, key=lambda row: row["op"])]


def add(s: Symbols, row: dict[str, Any], index: int) -> int:
    """A node of a row, with variables of its own."""
    op, attributes = operator_of(row["op"])
    shapes = SHAPES.get(op, (SQUARE,) * len(row["in"]))
    variables = [
        s.var(f"x{index}_{i}", shape=str(shape), storage_type=STYPES[kind])
        for i, (shape, kind) in enumerate(zip(shapes, row["in"]))
    ]
    spelled = {"sparse_retain": "_sparse_retain", "concat": "Concat"}.get(op, op)
    return s.add(spelled, f"n{index}", *variables, **{**ATTRIBUTES.get(op, {}), **attributes})


def weights(s: Symbols, folder: Path) -> dict[str, Path]:
    """Parameters for the variables that layers have as weights."""
    shapes = {
        s.nodes[entry[0]]["name"]: ast.literal_eval(s.nodes[entry[0]]["attrs"]["__shape__"])
        for node in s.nodes
        if node["op"] in ("FullyConnected", "Convolution", "Embedding")
        for entry in node["inputs"][1:]
    }
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return {"net-0000.params": params(folder, arrays)} if arrays else {}


def test_all_rows_are_covered() -> None:
    assert sum(len(rows) for _, rows in LABELS) == len(GOLDEN) == 369


@pytest.mark.parametrize(("label", "rows"), LABELS, ids=[label for label, _ in LABELS])
def test_a_row_is_reported_of_an_uploaded_symbol(
    label: str, rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    s = Symbols()
    taken = [row for row in rows if row["dispatch"] != "error"]
    nodes = [add(s, row, i) for i, row in enumerate(taken)]
    path, external = s.save(tmp_path, *nodes), weights(s, tmp_path)
    optimize.optimize(
        path, find("cpu-avx2"), OPTIONS, Bindings(), tmp_path, kernels=tmp_path / "k", external=external
    )
    told = json.loads((tmp_path / "decisions.json").read_text())["symbol"]
    assert [(n["inputs"], n["outputs"], n["dispatch"]) for n in told] == [
        (row["in"], row["out"], MODES[row["dispatch"]].value) for row in taken
    ]


@pytest.mark.parametrize(
    "row",
    [row for row in GOLDEN if row["dispatch"] == "error"],
    ids=lambda row: f"{row['op']} {','.join(row['in'])}",
)
def test_a_row_that_mxnet_refuses_is_refused(row: dict[str, Any], tmp_path: Path) -> None:
    s = Symbols()
    add(s, row, 0)
    path, external = s.save(tmp_path), weights(s, tmp_path)
    told = optimize.validate(path, find("cpu-avx2"), OPTIONS, Bindings(), external)
    assert [problem["pointer"] for problem in told] == ["node:n0"]
    assert "takes storage types" in told[0]["detail"]
