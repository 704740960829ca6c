"""The limited process: the only place where an uploaded model is parsed and run.

A child is started ahead of time from a process that has imported what is slow. It waits for one
request, carries it out and is gone. It dies with its worker, has a process group of its own, limits on
memory and files, and is confined as `confinement` says.
"""

import contextlib
import faulthandler
import importlib
import json
import os
import resource
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from app.jobs.worker import confinement
from app.jobs.worker.parent_death import end_with
from app.settings import use_home

PROGRESS_SECONDS = 0.1  # between two messages about the same phase


def serve_one(engine: str, requests: Connection, events: Connection) -> None:
    """Take one request from `requests` and answer on `events`, each message one JSON text.

    Messages: `{"pid", "measures"}` and `{"ready"}` first, then `{"progress": [phase, done, total]}`, at last
    `{"result"}` or `{"error": {code, detail, pointer}}`.
    """
    from app.jobs.worker import forkserver_preload  # here only: it ties whoever imports it to its parent

    end_with(forkserver_preload.PID, signal.SIGKILL)
    os.setsid()
    _send(events, {"pid": os.getpid(), "measures": [str(measure) for measure in forkserver_preload.MEASURES]})
    confinement.restrict_calls(forkserver_preload.MEASURES)
    # The engine may put off what is slow to import until one of its functions is named.
    _ = importlib.import_module(engine).optimize
    _send(events, {"ready": True})
    try:
        request = requests.recv_bytes()
    except EOFError:
        return
    _send(events, _carry_out(engine, request, events))


def _send(events: Connection, message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        events.send_bytes(json.dumps(message).encode())


def _carry_out(engine: str, text: bytes, events: Connection) -> dict[str, Any]:
    from app.engine.types.errors import EngineError
    from app.jobs.worker.child_request import ChildRequest

    request = ChildRequest.from_json(text)
    _restrict_files(request, engine)
    _limit(request.limits.memory_bytes, request.limits.file_bytes)
    use_home(request.folder)
    tempfile.tempdir = request.folder  # so that nothing is left when the process is killed
    _log_to(os.path.join(request.folder, "log.txt"))  # noqa: PTH118  pathlib would come before the limits
    try:
        return {"result": _call(engine, request, events)}
    except Exception as error:  # the border of the process: whatever it was must be told, not lost
        if _is_out_of_memory(error):
            limit = request.limits.memory_bytes
            return _failure(
                "memory-limit", f"the job needs more than its limit of {limit} byte of memory", ""
            )
        if isinstance(error, EngineError):
            return _failure(error.code, error.message, error.pointer)
        import traceback

        traceback.print_exc()
        return _failure("internal-error", f"{type(error).__name__}: {error}", "")


def _call(name: str, request: Any, events: Connection) -> Any:
    """Call the engine's function that the request asks for."""
    from pathlib import Path

    from app.engine.types.target import host
    from app.jobs.worker.benchmark_lock import BenchmarkLock
    from app.jobs.worker.child_request import bindings_of, options_of, target_of

    engine = importlib.import_module(name)
    model = Path(request.model)
    if request.kind == "prepare":
        return engine.prepare(Path(request.kernels))
    if request.kind == "inspect":
        return engine.inspect(model, request.external_paths)
    if request.kind == "derive":
        beside = request.bindings.get("tensors", {})
        return engine.derive(model, request.external_paths, request.operation, beside, Path(request.folder))
    if request.kind == "operator":
        options = options_of(request.options)
        return engine.run_operator(request.operator, options, Path(request.folder), Path(request.kernels))
    target = host() if request.target is None else target_of(request.target)
    options, bindings = options_of(request.options), bindings_of(request.bindings)
    if request.kind == "validate":
        return engine.validate(model, target, options, bindings, request.external_paths)

    told, at = "", 0.0

    def tell(phase: str, done: int, total: int) -> None:
        nonlocal told, at
        now = time.monotonic()
        if phase == told and now < at + PROGRESS_SECONDS and done < total:
            return
        told, at = phase, now
        _send(events, {"progress": [phase, done, total]})

    folder = Path(request.folder)
    how = {
        "kernels": Path(request.kernels),
        "external": request.external_paths,
        "progress": BenchmarkLock(Path(request.benchmark_lock), tell).progress,
    }
    if request.kind == "capacity":
        return engine.capacity(model, options, bindings, request.capacity, folder, **how)
    return engine.optimize(model, target, options, bindings, folder, **how)


def _restrict_files(request: Any, engine: str) -> None:
    from app.jobs.worker import forkserver_preload  # as above

    models = [path for path in (request.model, *request.external.values()) if path]
    samples = request.bindings.get("samples")
    readable = [*models, *request.bindings.get("tensors", {}).values(), *([samples] if samples else [])]
    writable = (request.folder, request.kernels, request.benchmark_lock)
    private = request.private or request.folder
    confinement.restrict_files(forkserver_preload.MEASURES, readable, writable, private, ("app", engine))


def _limit(memory_bytes: int, file_bytes: int) -> None:
    # Not the address space: accelerator runtimes reserve far more of it than they use.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _log_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()  # a crash in native code tells where


def _is_out_of_memory(error: BaseException | None) -> bool:
    seen = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, MemoryError) or "bad allocation" in str(error) or "bad_alloc" in str(error):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _failure(code: str, detail: str, pointer: str) -> dict[str, Any]:
    return {"error": {"code": code, "detail": detail, "pointer": pointer}}
