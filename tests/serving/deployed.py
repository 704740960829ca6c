"""A service with a deployed model of the engine for tests, and the inference client of the package index."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton

from tests.jobs.service import Served


def deploy(service: Served, name: str, text: str = "", **body: Any) -> dict[str, Any]:
    """Deploy a job of a model text, and wait until its process answers."""
    job = service.submit(text or name, input_shapes={"x": [1, 3]})
    assert service.end(job)["state"] == "succeeded"
    answer = service.http.post(f"/v1/jobs/{job}/deploy", json={"name": name} | body)
    assert answer.status_code == 201, answer.text
    return wait_until(service, name, answer.json()["version"])


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


def executors(service: Served) -> dict[str, int]:
    """Process ids by the name of the deployment's socket."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
            parent = int(stat.rpartition(")")[2].split()[1])
            if parent != service.process.pid:
                continue
            for fd in (entry / "fd").iterdir():
                if os.readlink(fd) == "/memfd:stowplan-ring (deleted)":
                    found[entry.name] = int(entry.name)
        except OSError:
            continue
    return found
