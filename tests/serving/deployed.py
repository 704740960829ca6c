"""A service with a deployed model of the engine for tests, and the inference client of the package index."""

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.http as triton

from app.jobs.store import deployments
from app.jobs.store.database import Database
from app.serving import channel
from tests.jobs.service import Served


def deploy(service: Served, name: str, text: str = "", **body: Any) -> dict[str, Any]:
    """Deploy a job of a model text, and wait until its process answers."""
    job = service.submit(text or name, input_shapes={"x": [1, 3]})
    assert service.end(job)["state"] == "succeeded"
    answer = service.http.post(f"/v1/jobs/{job}/deploy", json={"name": name} | body)
    assert answer.status_code == 201, answer.text
    return wait_until(service, name, answer.json()["version"])


def undeploy(service: Served) -> None:
    """Take back all deployments: a service that many tests share has room for eight."""
    for name in {row["name"] for row in service.http.get("/v1/deployments").json()["deployments"]}:
        assert service.http.delete(f"/v1/deployments/{name}").status_code == 204


def wait_until(
    service: Served, name: str, version: str = "1", state: str = "ready", seconds: float = 60
) -> dict[str, Any]:
    """The deployment in a state."""
    deadline = time.monotonic() + seconds
    row: dict[str, Any] = {}
    while time.monotonic() < deadline:
        for row in service.http.get("/v1/deployments").json()["deployments"]:
            if (row["name"], row["version"], row["state"]) == (name, version, state):
                return dict(row)
        time.sleep(0.05)
    raise AssertionError(f"{name} is {row}, not {state}\n{service.log()}")


def client(service: Served, **how: Any) -> "triton.InferenceServerClient":
    return triton.InferenceServerClient(f"127.0.0.1:{service.settings.port}", **how)


def tensor(values: Any, *, binary: bool = True, name: str = "x", kind: str = "FP32") -> "triton.InferInput":
    array = np.asarray(values, np.float32)
    found = triton.InferInput(name, list(array.shape), kind)
    found.set_data_from_numpy(array, binary_data=binary)
    return found


def process_of(service: Served, name: str) -> int:
    """The process id of the latest version of a deployed model: the one that listens for it."""
    rows = [r for r in service.http.get("/v1/deployments").json()["deployments"] if r["name"] == name]
    database = Database(service.settings.jobs_database_url)
    with database.read() as connection:
        version = int(rows[-1]["version"])
        (wanted,) = (
            r["id"] for r in deployments.listed(connection) if (r["name"], r["version"]) == (name, version)
        )
    database.close()
    path = channel.socket_path(service.settings.data, wanted)
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[-1].endswith(path.name) and fields[3] == "00010000":  # it listens
            return _holder(service.process.pid, fields[6])
    raise AssertionError(f"nobody listens at {path}")


def _holder(supervisor: int, inode: str) -> int:
    for child in psutil.Process(supervisor).children():
        for entry in Path(f"/proc/{child.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(entry.readlink()) == f"socket:[{inode}]":
                    return int(child.pid)
    raise AssertionError(f"no child of {supervisor} holds socket {inode}")
