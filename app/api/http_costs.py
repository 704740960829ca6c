"""Processor time of inferences over HTTP besides their runs, measured once on a machine.

A service of its own, an API process and an executor whose model computes nothing, answers requests of several
sizes one after the other. Counted are processor seconds of both processes and of the client, whose two halves
`app.engine.planning.capacity.http` takes apart.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPConnection
from importlib.metadata import version
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from app.engine.types.target import host
from app.jobs.fingerprint import fingerprint
from app.jobs.store.database import Database, deployments, migrate
from app.serving.executor_config import ExecutorConfig
from app.settings import Settings, environment_of_jobs

ENGINE = "app.serving.empty_engine"
# Bytes of inputs and outputs; the first has the fewest of both, and answers grow where requests have grown.
SIZES = ((1 << 10, 1 << 10), (1 << 19, 1 << 10), (1 << 22, 1 << 10), (1 << 19, 1 << 19), (1 << 22, 1 << 22))
_WARM, _REQUESTS = 20, 100  # requests of each size
_TRIES = 3
_READY_SECONDS = 120.0
_MEASURING_SECONDS = 240.0
_FILE = "http-costs.json"
_NAME = "empty"
_SPAWN = multiprocessing.get_context("spawn")

Row = dict[str, float]


def costs(settings: Settings) -> list[Row]:
    """Rows of this machine and release: those of the data folder, else measured and kept there.

    Raises:
        subprocess.SubprocessError: they could not be measured.
    """
    path = settings.data / _FILE
    machine = [fingerprint(host()), version("stowplan")]
    with contextlib.suppress(FileNotFoundError, ValueError):
        found: Mapping[str, Any] = json.loads(path.read_text())
        if found["machine"] == machine:
            return list(found["rows"])
    with environment_of_jobs():
        command = [sys.executable, "-m", "app.api.http_costs"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        text, _ = process.communicate(timeout=_MEASURING_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    rows: list[Row] = json.loads(text)
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps({"machine": machine, "rows": rows}))
    part.rename(path)
    return rows


def measured() -> list[Row]:
    """Rows by sizes: bytes of `request` and `answer`, seconds `sent`, `received`, of `api` and `executor`."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        settings = Settings(data=Path(folder), port=port, engine=ENGINE)
        with _processes(settings) as (api, executor):
            _await_model(port, executor)
            return [_row(port, api, executor, *sizes) for sizes in SIZES]


@contextlib.contextmanager
def _processes(settings: Settings) -> Iterator[tuple[BaseProcess, BaseProcess]]:
    """An API process and the executor of a deployment that it knows."""
    from app.api.main import run as api
    from app.serving.executor import run as executor

    migrate(settings)
    config = _config(settings)
    database = Database(settings.jobs_database_url)
    with database.write() as connection:
        row = {"id": config.id, "owner": "", "name": _NAME, "version": 1, "job_id": "", "model_id": ""}
        connection.execute(deployments.insert().values(**row, request={}, created=time.time()))
    database.close()
    started = [
        _SPAWN.Process(target=executor, args=(config.to_json(),)),
        _SPAWN.Process(target=api, args=(settings.to_json(),)),
    ]
    for process in started:
        process.start()
    try:
        yield started[1], started[0]
    finally:
        for process in started:
            process.kill()
            process.join()


def _config(settings: Settings) -> ExecutorConfig:
    folder = settings.data.absolute()
    model = folder / "model"
    model.touch()
    return ExecutorConfig(
        id=_NAME,
        name=_NAME,
        version="1",
        data=str(folder),
        engine=ENGINE,
        model=str(model),
        external={},
        options={},
        bindings={},
        kernels=str(folder / "kernels"),
        weights=str(folder / "weights"),
        tune=False,
        instances=1,
        batches=(),
        batch_seconds=0.0,
        programs=2 * len(SIZES),
        infer_seconds=settings.infer_seconds,
        build_seconds=settings.job_seconds,
        memory_bytes=settings.executor_memory_bytes,
        log=("text", "warning"),
    )


def _await_model(port: int, executor: BaseProcess) -> None:
    """Wait until the model is ready."""
    end = time.monotonic() + _READY_SECONDS
    while time.monotonic() < end and executor.is_alive():
        with contextlib.suppress(OSError), _connected(port) as connection:
            connection.request("GET", f"/v2/models/{_NAME}/ready")
            if connection.getresponse().status == HTTPStatus.OK:
                return
        time.sleep(0.05)
    raise TimeoutError("the service did not become ready")


def _connected(port: int) -> contextlib.closing[HTTPConnection]:
    return contextlib.closing(HTTPConnection("127.0.0.1", port))


def _row(port: int, api: BaseProcess, executor: BaseProcess, nbytes: int, answer: int) -> Row:
    """Seconds of a request of these sizes, tried again where the API hung up on a client that was stopped."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(ConnectionError), _connected(port) as connection:
            return _means(connection, api, executor, nbytes, answer)
    with _connected(port) as connection:
        return _means(connection, api, executor, nbytes, answer)


def _means(
    connection: HTTPConnection, api: BaseProcess, executor: BaseProcess, nbytes: int, answer: int
) -> Row:
    """Seconds of a request of these sizes: means of many."""
    body, headers = _request(nbytes, answer)
    for _ in range(_WARM):
        _exchange(connection, body, headers)
    sent = received = 0.0
    before = _processor_seconds(api), _processor_seconds(executor)
    for _ in range(_REQUESTS):
        halves = _exchange(connection, body, headers)
        sent, received = sent + halves[0], received + halves[1]
    after = _processor_seconds(api), _processor_seconds(executor)
    return {
        "request": nbytes,
        "answer": answer,
        "sent": sent / _REQUESTS,
        "received": received / _REQUESTS,
        "api": (after[0] - before[0]) / _REQUESTS,
        "executor": (after[1] - before[1]) / _REQUESTS,
    }


def _request(nbytes: int, answer: int) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an inference with so many bytes of binary data, whose answer has so many."""
    shape = [answer, nbytes // answer]
    tensor = {"name": "x", "shape": shape, "datatype": "UINT8", "parameters": {"binary_data_size": nbytes}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return header + bytes(nbytes), {"inference-header-content-length": str(len(header))}


def _exchange(connection: HTTPConnection, body: bytes, headers: dict[str, str]) -> tuple[float, float]:
    """Send a request and read its answer; processor seconds of both.

    Raises:
        ConnectionError: the answer is none of success.
    """
    began = time.thread_time()
    connection.request("POST", f"/v2/models/{_NAME}/infer", body, headers)
    sent = time.thread_time()
    answer = connection.getresponse()
    content = answer.read()
    ended = time.thread_time()
    if answer.status != HTTPStatus.OK:
        raise ConnectionError(f"{answer.status}: {content.decode(errors='replace')}")
    return sent - began, ended - sent


def _processor_seconds(process: BaseProcess) -> float:
    """Processor time of all threads of a process. Source: the kernel's sched-stats.rst."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) * 1e-9


if __name__ == "__main__":
    print(json.dumps(measured()))
