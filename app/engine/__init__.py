"""The public door of the engine: inspect a model, or optimize it for a target.

Everything behind it works on paths and values: no HTTP, no database, no clock but the
benchmark's. An uploaded model must only be given to these functions inside a limited process.
They are loaded on first use, so that whoever only needs a Target loads no compiler.
"""

from typing import TYPE_CHECKING, Any

from app.engine.types.options import Bindings, Options
from app.engine.types.target import Memory, Target

if TYPE_CHECKING:
    from app.engine.entry.capacity import capacity
    from app.engine.entry.derive import derive
    from app.engine.entry.explain import plan
    from app.engine.entry.optimize import ARTIFACTS, inspect, optimize, validate
    from app.engine.entry.preload import prepare
    from app.engine.entry.run_operator import run_operator, try_operator
    from app.engine.entry.served_model import ServedModel

__all__ = [
    "ARTIFACTS",
    "Bindings",
    "Memory",
    "Options",
    "ServedModel",
    "Target",
    "capacity",
    "derive",
    "inspect",
    "optimize",
    "plan",
    "prepare",
    "run_operator",
    "try_operator",
    "validate",
]

PRELOAD = ("app.engine.entry.optimize", "app.engine.entry.preload")

MODULES = {
    "capacity": "capacity",
    "derive": "derive",
    "plan": "explain",
    "prepare": "preload",
    "run_operator": "run_operator",
    "ServedModel": "served_model",
    "try_operator": "run_operator",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'app.engine' has no attribute {name!r}")
    from importlib import import_module

    module = MODULES.get(name, "optimize")
    return getattr(import_module(f"app.engine.entry.{module}"), name)
