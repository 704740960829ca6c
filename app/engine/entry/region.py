"""The region of a job: what its memory takes at any shape, before a program of it runs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning.regions.entry import region_of_model
from app.engine.planning.regions.memory import memory_formulas
from app.engine.types.errors import EngineError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target

Json = dict[str, Any]


def region_json(
    path: Path,
    external: Mapping[str, Path],
    target: Target,
    options: Options,
    bindings: Bindings,
    tuned: Callable[[Compilation], Compilation],
) -> Json:
    """The part `region` of memory.json; nothing where the bindings have no symbol.

    `tuned` adds measured times to a canonical graph. Where no plan serves the region, its only key is
    `rejection`, the reason.
    """
    if bindings.region is None:
        return {}
    try:
        loaded = load(path, external=external)
        plan = region_of_model(loaded, target, options, bindings, load_registry(), tuned)
        return {"region": memory_formulas(plan)}
    except EngineError as error:
        return {"region": {"rejection": error.message}}


def region_summary(document: Json) -> Json:
    """The part `region` of a summary: pieces and times of a document of `region_json`, without buffers."""
    if "pieces" not in document:
        return document
    kept = ("symbols", "anchor", "points", "worst_bytes", "notes")
    pieces = [{key: piece[key] for key in kept} for piece in document["pieces"]]
    return {key: document[key] for key in ("points", "worst_bytes", "proof", "curve")} | {"pieces": pieces}
