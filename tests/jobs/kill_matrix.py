"""Kill processes of a service at random moments under real jobs: each job must end once, succeeded.

`python -m tests.jobs.kill_matrix` runs 60 jobs of the real engine on SQLite and PostgreSQL, and
prints how long each recovery took; the test suite runs a few jobs of an engine for tests.
"""

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from app.jobs.store import job_repository
from app.jobs.store.blobs import BlobStore
from app.jobs.store.database import Database, job_events, jobs
from app.settings import Settings
from tests.jobs.postgres import Postgres, running
from tests.jobs.service import ENGINE, ROOT, free_port

KILLS = ("child", "worker", "workers", "api", "supervisor", "postgres")
ORPHAN_SECONDS = 5.0
MODELS = ("mnist_8", "silero_vad_v6", "super_resolution_10")


@dataclass
class Recovery:
    """What was killed, and how long until all was as before."""

    kill: str
    interrupted: int
    seconds: float


@dataclass
class Outcome:
    """How a run ended."""

    states: Counter[str] = field(default_factory=Counter)
    recoveries: list[Recovery] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Service:
    """A service whose supervisor is started again when it dies, as an init system does."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = Database(settings.jobs_database_url)
        self._stopped = threading.Event()
        self._process = self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{settings.port}", timeout=20.0)

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "tests.jobs.start", self.settings.to_json()]
        with (self.settings.data / "log.txt").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def _keep(self) -> None:
        while not self._stopped.wait(0.2):
            if self._process.poll() is not None:
                self._process = self._start()

    def stop(self) -> None:
        self._stopped.set()
        self._keeper.join()
        self._process.terminate()
        self._process.wait(60)
        self.http.close()
        self.database.close()

    def ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        """An answer, after as many tries as it takes."""
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = self.http.request(method, path, **how)
                if answer.status_code < 500:
                    return answer
                assert answer.status_code == 503, answer.text
            assert time.monotonic() < deadline, (self.settings.data / "log.txt").read_text()[-5000:]
            time.sleep(0.1)

    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = self.http.get("/readyz")
            return answer.status_code == 200 and answer.json()["workers"] >= self.settings.workers
        return False

    def processes(self, kind: str) -> list[psutil.Process]:
        """The processes to kill, of one kind; empty when there are none at the moment."""
        with contextlib.suppress(psutil.Error):
            supervisor = psutil.Process(self._process.pid)
            if kind == "supervisor":
                return [supervisor]
            parts = [p for p in supervisor.children() if "resource_tracker" not in " ".join(p.cmdline())]
            listening = [p for p in parts if any(c.status == "LISTEN" for c in p.net_connections())]
            workers = [p for p in parts if p not in listening and p.children()]
            if kind == "api":
                return listening
            if kind == "child":
                busy = [c for w in workers for c in w.children(recursive=True) if _job_of(c) is not None]
                return random.sample(busy, min(1, len(busy)))
            return workers if kind == "workers" else random.sample(workers, min(1, len(workers)))
        return []

    def running(self) -> dict[str, tuple[str, int]]:
        """Worker and attempt of jobs that run, by id."""
        query = sa.select(jobs.c.id, jobs.c.worker, jobs.c.attempt).where(jobs.c.state == "running")
        with self.database.read() as connection:
            return {row.id: (row.worker, row.attempt) for row in connection.execute(query)}

    def interrupted(self, kind: str, victims: list[psutil.Process]) -> dict[str, int]:
        """Attempts of the jobs that a kill interrupts, by id."""
        if kind in ("api", "postgres"):
            return {}
        found = self.running()
        if kind == "child":
            hit = {_job_of(victim) for victim in victims}
        elif kind == "supervisor":
            hit = set(found)
        else:
            slots = {slot for victim in victims for slot in _slots_of(victim)}
            hit = {job_id for job_id, (worker, _) in found.items() if worker.rpartition(":")[2] in slots}
        return {job_id: attempt for job_id, (_, attempt) in found.items() if job_id in hit}

    def go_on(self, interrupted: dict[str, int]) -> bool:
        """Whether all jobs that were interrupted have ended or run again."""
        query = sa.select(jobs.c.id, jobs.c.attempt, jobs.c.state).where(jobs.c.id.in_(interrupted))
        with contextlib.suppress(sa.exc.OperationalError), self.database.read() as connection:
            return all(
                row.state in job_repository.TERMINAL
                or (row.state == "running" and row.attempt >= interrupted[row.id])
                for row in connection.execute(query)
            )
        return False


def _job_of(child: psutil.Process) -> str | None:
    """The job that a child carries out: it keeps its log open."""
    with contextlib.suppress(psutil.Error):
        for file in child.open_files():
            if file.path.endswith("/log.txt") and "/work/" in file.path:
                return Path(file.path).parent.name
    return None


def _slots_of(worker: psutil.Process) -> list[str]:
    """The slot whose lock a worker holds."""
    with contextlib.suppress(psutil.Error):
        return [f.path.rpartition("-")[2] for f in worker.open_files() if "/locks/worker-" in f.path]
    return []


def kill(service: Service, kind: str, server: Postgres | None, outcome: Outcome) -> bool:
    """Kill, wait for the recovery, look for orphans; False when there was nothing to kill."""
    victims = [] if kind == "postgres" else service.processes(kind)
    if not victims and (kind != "postgres" or server is None):
        return False
    orphans = [child for victim in victims for child in victim.children(recursive=True)]
    interrupted = service.interrupted(kind, victims)
    began = time.monotonic()
    if server is not None and kind == "postgres":
        server.crash()
        time.sleep(0.5)
        server.start()
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.send_signal(signal.SIGKILL)
    gone, alive = psutil.wait_procs(orphans, timeout=ORPHAN_SECONDS)
    del gone
    outcome.orphans += [f"{kind}: {p}" for p in alive if p.is_running() and p.status() != "zombie"]
    deadline = time.monotonic() + 180
    while not (service.is_ready() and service.go_on(interrupted)):
        assert time.monotonic() < deadline, (
            f"no recovery from {kind}\n" + (service.settings.data / "log.txt").read_text()[-5000:]
        )
        time.sleep(0.1)
    outcome.recoveries.append(Recovery(kind, len(interrupted), time.monotonic() - began))
    return True


def run(
    settings: Settings, bodies: list[dict[str, Any]], kills: list[str], server: Postgres | None
) -> Outcome:
    """Submit jobs, kill meanwhile, and look at what came of the jobs.

    A body's `text` or `path` is uploaded as its model; the rest goes into the request.
    """
    service, outcome, began = Service(settings), Outcome(), time.monotonic()
    killing = threading.Event()
    killing.set()
    try:
        ids: list[str] = []
        sender = threading.Thread(target=_send, args=(service, bodies, ids, killing))
        sender.start()
        for kind in kills:
            deadline = time.monotonic() + 120
            while True:
                time.sleep(random.uniform(0.1, 1.0))
                if service.is_ready() and _is_busy(service) and kill(service, kind, server, outcome):
                    break
                assert time.monotonic() < deadline, f"nothing to kill: {kind}"
        killing.clear()
        sender.join()
        deadline = time.monotonic() + 1200
        states: dict[str, str] = {}
        while len(states) < len(ids):
            assert time.monotonic() < deadline, f"{len(ids) - len(states)} jobs never ended"
            for job_id in ids:
                if job_id not in states:
                    job = service.ask("GET", f"/v1/jobs/{job_id}", params={"wait": 2}).json()
                    if job["state"] in job_repository.TERMINAL:
                        states[job_id] = job["state"] if job["state"] == "succeeded" else str(job["code"])
        outcome.states.update(states.values())
        outcome.wrong += list(_wrong(service, ids))
    finally:
        killing.clear()
        service.stop()
    outcome.seconds = time.monotonic() - began
    return outcome


def _is_busy(service: Service) -> bool:
    """Whether a job runs: killing an idle service would prove little."""
    with contextlib.suppress(sa.exc.OperationalError):
        return bool(service.running())
    return False


def _send(service: Service, bodies: list[dict[str, Any]], ids: list[str], killing: threading.Event) -> None:
    """Submit every body once, and go on from the first while there is killing; few wait at a time."""
    while len(ids) < len(bodies) or killing.is_set():
        waiting = service.ask("GET", "/v1/jobs", params={"state": "queued", "limit": 10}).json()["jobs"]
        if len(waiting) >= 4 and len(ids) >= len(bodies) // 2:
            time.sleep(0.1)
            continue
        body = bodies[len(ids) % len(bodies)]
        content = body["path"].read_bytes() if "path" in body else body["text"].encode()
        model = service.ask("POST", "/v1/models", content=content).json()["id"]
        request = {"model": model, "targets": ["host"], "reuse": False}
        request |= {k: v for k, v in body.items() if k not in ("path", "text")}
        headers = {"idempotency-key": f"job-{len(ids)}"}
        answer = service.ask("POST", "/v1/jobs", json=request, headers=headers)
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])


def _wrong(service: Service, ids: list[str]) -> Iterator[str]:
    """Jobs that came twice, ended twice, or lost what they made."""
    store = BlobStore(service.settings.data / "blobs", service.database)
    with service.database.read() as connection:
        made = connection.scalars(sa.select(jobs.c.id).where(jobs.c.kind == "optimize")).all()
        if sorted(made) != sorted(ids):
            yield f"{len(ids)} jobs were asked for, {len(made)} made"
        for job_id in ids:
            events = connection.execute(sa.select(job_events.c.data).where(job_events.c.job_id == job_id))
            ends = [row.data["state"] for row in events if row.data.get("state") in job_repository.TERMINAL]
            if len(ends) != 1:
                yield f"job {job_id} ended {len(ends)} times: {ends}"
            for file in job_repository.files(connection, job_id, "artifact"):
                if not store.path(file["sha256"]).exists():
                    yield f"job {job_id} lost {file['name']}"


def settings_of(data: Path, url: str, **given: Any) -> Settings:
    """Settings of the service under test."""
    how = {"workers": 2, "dead_seconds": 5.0, "engine": ENGINE, "drain_seconds": 1.0} | given
    return Settings(data=data, port=free_port(), database_url=url, **how)  # type: ignore[arg-type]


def report(name: str, outcome: Outcome) -> str:
    """A table of the recoveries, and what was found."""
    lines = [f"{name}: {dict(outcome.states)} in {outcome.seconds:.0f} s"]
    for kind in KILLS:
        times = sorted(r.seconds for r in outcome.recoveries if r.kill == kind)
        if times:
            shown = f"median {times[len(times) // 2]:5.1f} s, most {times[-1]:5.1f} s"
            lines.append(f"  {kind:10} {len(times):2} times, recovered in {shown}")
    lines.append(f"  orphans after {ORPHAN_SECONDS:g} s: {outcome.orphans or 'none'}")
    lines.append(f"  ended twice, lost or doubled: {outcome.wrong or 'none'}")
    return "\n".join(lines)


def main() -> int:
    """Run the whole matrix; the exit code tells whether every job succeeded, once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2, help="kills of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "data" / "models")
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    failed = False
    options = {"benchmark_seconds": 0.05, "autotune": False}
    for name in arguments.databases:
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
            data = Path(place)
            kernels = ROOT / "build" / "kernels"
            kernels.mkdir(parents=True, exist_ok=True)
            (data / "kernels").symlink_to(kernels)
            server = stack.enter_context(running()) if name == "postgresql" else None
            settings = settings_of(data, server.database() if server else "", engine="app.engine")
            paths = [arguments.models / f"{model}.onnx" for model in MODELS[:1]]
            bodies = [{"path": paths[i % len(paths)], "options": options} for i in range(arguments.jobs)]
            kills = [kind for kind in KILLS if server or kind != "postgres"] * arguments.rounds
            random.shuffle(kills)
            outcome = run(settings, bodies, kills, server)
        print(report(name, outcome), flush=True)
        failed |= bool(outcome.orphans or outcome.wrong) or set(outcome.states) != {"succeeded"}
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
