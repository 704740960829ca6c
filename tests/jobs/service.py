"""A real service in processes of its own, with an engine that does what the model's text says."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from app.settings import Settings

ENGINE = "tests.jobs.fake_engine"
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def serve(data: Path, **given: Any) -> Iterator["Served"]:
    """A running service; it is stopped as Ctrl-C would, and must leave no process behind."""
    settings = replace(
        Settings(
            data=data,
            port=free_port(),
            engine=ENGINE,
            benchmark_lock=data / "benchmark.lock",  # tests beside this one have services too
            workers=2,
            job_memory_bytes=4 << 30,
            max_model_bytes=8 << 20,
            max_json_bytes=1 << 20,
        ),
        **given,
    )
    with (data / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.start", settings.to_json()],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    served = Served(settings, process)
    try:
        served.wait_until_ready()
        yield served
    finally:
        served.close()


class Served:
    """A running service and a client of it."""

    def __init__(self, settings: Settings, process: "subprocess.Popen[bytes]") -> None:
        self.settings = settings
        self.process = process
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=60.0)

    def wait_until_ready(self, workers: int | None = None) -> None:
        wanted = self.settings.workers if workers is None else workers
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.get("/readyz")
                if answer.status_code == 200 and answer.json()["workers"] >= wanted:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the service did not become ready\n{self.log()}")

    def log(self) -> str:
        return (self.settings.data / "log.txt").read_text()

    def close(self) -> None:
        self.http.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def model(self, text: str) -> str:
        answer = self.http.post("/v1/models", content=text.encode())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["id"])

    def submit(self, text: str, **body: Any) -> str:
        request = {"model": self.model(text), "targets": ["host"], "reuse": False} | body
        answer = self.http.post("/v1/jobs", json=request)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def blob(self, text: str) -> str:
        """The hash of an uploaded blob."""
        answer = self.http.post("/v1/blobs", content=text.encode())
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["sha256"])

    def job(self, job_id: str, wait: float = 0) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job_id}", params={"wait": wait})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def end(self, job_id: str, seconds: float = 40) -> dict[str, Any]:
        job = self.job(job_id, wait=seconds)
        assert job["state"] in ("succeeded", "failed", "cancelled"), job
        return job

    def wait_for_phase(self, job_id: str, phase: str, seconds: float = 40) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            job = self.job(job_id)
            if job["progress"]["phase"].startswith(phase) or job["finished"]:
                return job
            time.sleep(0.02)
        raise AssertionError(f"job {job_id} did not reach phase {phase}: {job}")
