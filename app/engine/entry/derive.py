"""Operations that look into stored models or make new ones of them: one row each.

The first model is that of the request; models beside it come as files whose names are `1/` for the graph of
the second and `1/<location>` for its external data.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from app.engine.entry import training
from app.engine.entry.symbols import to_symbol
from app.engine.model import manipulation
from app.engine.model.load import load, read
from app.engine.model.mxnet.symbol_file import is_symbol
from app.engine.planning.expansion import expanded, expanded_model
from app.engine.report.mxnet.convert import Written
from app.engine.report.onnx import export
from app.engine.types.errors import OpsetError
from app.engine.types.options import Bindings

# The new model in the folder of the job: a graph, or a symbol and its parameters.
MADE = "model.onnx"
SYMBOL, PARAMETERS = "model-symbol.json", "model-0000.params"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Source:
    """The files of a model.

    Attributes:
        path: of the graph.
        external: of its external data, by the names that it uses.
    """

    path: Path
    external: Mapping[str, Path] = field(default_factory=dict)

    def read(self, opset: int | None = None) -> ir.Model:
        """The model with types, as its file spells it, or raised to an opset.

        Raises:
            OpsetError: it cannot be raised to that opset.
        """
        if opset is None:
            model = read(self.path, self.external)
            # Nodes that backward operators of a symbol become have no spelling in a file.
            return manipulation.typed(expanded_model(model) if is_symbol(self.path) else model)
        loaded = expanded(load(self.path, external=self.external, floor=opset))
        if loaded.model.opset_imports[""] != opset:
            raise OpsetError("; ".join(loaded.notes))
        return manipulation.typed(loaded.model)


@dataclass(frozen=True, slots=True)
class Derived:
    """Result of an operation: a new model, as a graph or a symbol, or an answer, or both."""

    model: ir.Model | None = None
    symbol: Written | None = None
    answer: Json = field(default_factory=dict)


def _values(models: Sequence[Source], request: Mapping[str, Any]) -> Derived:
    """Rows of values from `offset` on, at most `limit`, of one role if `role` is given."""
    rows = manipulation.values(models[0].read())
    if role := request.get("role"):
        rows = [row for row in rows if role in row.roles]
    begin = request.get("offset", 0)
    page = rows[begin : begin + request.get("limit", len(rows))]
    return Derived(answer={"total": len(rows), "values": [dataclasses.asdict(row) for row in page]})


def _extract(models: Sequence[Source], request: Mapping[str, Any]) -> Derived:
    model = models[0].read()
    return Derived(manipulation.extract(model, request["inputs"], request["outputs"]))


def _compose(models: Sequence[Source], request: Mapping[str, Any]) -> Derived:
    """The older of two opsets is raised to the newer."""
    first, second = (source.read() for source in models)
    versions = [first.opset_imports.get("", 0), second.opset_imports.get("", 0)]
    if 0 < versions[0] < versions[1]:
        first = models[0].read(versions[1])
    if 0 < versions[1] < versions[0]:
        second = models[1].read(versions[0])
    return Derived(manipulation.compose(first, second, request["connect"], request["prefix"]))


def _gradient(models: Sequence[Source], request: Mapping[str, Any]) -> Derived:
    """The training graph of a model whose inputs have static shapes then."""
    source, bindings = models[0], _bindings(request)
    made = training.training(
        source.path, request["loss"], request["wrt"], bindings, source.external, request["row_sparse"]
    )
    return Derived(made.model)


def _symbol(models: Sequence[Source], request: Mapping[str, Any]) -> Derived:
    return Derived(symbol=to_symbol(models[0].path, models[0].external, _bindings(request)))


def _bindings(request: Mapping[str, Any]) -> Bindings:
    return Bindings(
        shapes={name: tuple(dims) for name, dims in request["input_shapes"].items()},
        values=request["input_values"],
    )


OPERATIONS: Mapping[str, Callable[[Sequence[Source], Mapping[str, Any]], Derived]] = {
    "values": _values,
    "extract": _extract,
    "compose": _compose,
    "gradient": _gradient,
    "symbol": _symbol,
}


def derive(
    path: Path,
    external: Mapping[str, Path],
    request: Mapping[str, Any],
    beside: Mapping[str, str],
    folder: Path,
) -> Json:
    """Carry out the operation that the request names; write the model that it makes into `folder`.

    Args:
        path: the graph of the first model.
        external: its external data.
        request: `operation`, a key of `OPERATIONS`, and what that takes.
        beside: paths of the files of other models, by the names that the module describes.
        folder: where `MADE` goes, or `SYMBOL` and `PARAMETERS`.

    Raises:
        EngineError: a model or the request is refused; `code` says why.
    """
    models = [Source(path, external), *_sources(beside)]
    derived = OPERATIONS[request["operation"]](models, request)
    if derived.model is not None:
        export(derived.model, folder / MADE, notes=True)
    if derived.symbol is not None:
        derived.symbol.save(folder / SYMBOL, folder / PARAMETERS)
    return derived.answer


def _sources(beside: Mapping[str, str]) -> list[Source]:
    files: dict[int, dict[str, Path]] = {}
    for name, path in beside.items():
        number, _, location = name.partition("/")
        files.setdefault(int(number), {})[location] = Path(path)
    return [Source(of.pop(""), of) for _, of in sorted(files.items())]
