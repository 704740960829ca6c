"""Plan models with the checkout whose `app` comes first on the path: the child of `tests.same_plans`.

Reads one request a line (see `write`), answers each with an empty line. Runs in any version of the project
whose modules are at one of the PLACES; nothing is measured, and no model is run.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PLACES = {  # where a module is, newest version first
    "load": ("app.engine.model.load", "app.engine.load"),
    "registry": ("app.engine.core.registry", "app.engine.registry"),
    "decisions": ("app.engine.report.decisions", "app.engine.report.report", "app.engine.exchange.report"),
    "report": ("app.engine.report.report", "app.engine.exchange.report"),
    "session": ("app.engine.planning.session", "app.engine.session"),
    "target": ("app.engine.types.target", "app.engine.target"),
}


def module(name: str) -> Any:
    """The module of that name in this checkout.

    Raises:
        ImportError: it is at none of its places.
    """
    for place in PLACES[name]:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as missing:
            if not f"{place}.".startswith(f"{missing.name}."):
                raise  # the module is there, what it imports is not
    raise ImportError(f"no module of {', '.join(PLACES[name])}; add its place to {Path(__file__).name}")


def write(request: Mapping[str, Any]) -> None:
    """Write plan.json, memory.json and decisions.json into `request["folder"]`, or refused.json."""
    from app.engine import Bindings, Options

    decisions, report = module("decisions"), module("report")
    session, target = module("session"), module("target")
    options, shapes = Options(timings="predicted", **request["options"]), request["shapes"]
    bindings = Bindings(shapes={k: tuple(s) for k, s in shapes.items()}, values=request["values"])
    try:
        loaded = module("load").load(Path(request["path"]))
        chosen = target.find(request["target"])
        registry = module("registry").load()
        canonical = session.canonical(loaded, chosen, options, bindings, registry)
        planned = session.planned(canonical, options).compilation
        documents = {
            "plan": report.plan_json(planned),
            "memory": report.memory_json(planned),
            "decisions": decisions.decisions_json(planned),
        }
    except Exception as error:  # both checkouts must refuse a model for the same reason
        documents = {"refused": {"type": type(error).__name__, "message": str(error)}}
    for name, document in documents.items():
        (Path(request["folder"]) / f"{name}.json").write_text(json.dumps(document, allow_nan=False))


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    for line in sys.stdin:
        write(json.loads(line))
        print(file=replies, flush=True)


if __name__ == "__main__":
    main()
