"""Compiled methods that are loaded ahead are those that plans use, for the types that they are given."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

from app.engine.core.registry import load as load_registry
from app.engine.memory import compiled, greedy_core, optimal_order
from app.engine.memory.rows import demand_core
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.types.options import Bindings
from app.engine.types.target import host
from tests.engine.passes.streams.chains import OPTIONS, inverted_residuals

MODULES = (optimal_order, demand_core, greedy_core)


def versions(module: ModuleType) -> dict[str, int]:
    """Versions of each compiled function of a module, one for each set of types."""
    return {name: len(f.signatures) for name, f in vars(module).items() if hasattr(f, "signatures")}


def test_no_plan_compiles_what_was_loaded(tmp_path: Path) -> None:
    compiled.load()
    before = [versions(module) for module in MODULES]
    assert all(sum(found.values()) for found in before)
    graph = session.canonical(
        load(inverted_residuals(3).save(tmp_path)), host(), OPTIONS, Bindings(), load_registry()
    )
    small = session.planned(graph, replace(OPTIONS, prefer="memory"))
    assert small.compilation.concessions.streams
    assert [versions(module) for module in MODULES] == before
