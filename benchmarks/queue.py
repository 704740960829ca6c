"""Overhead of the queue for small jobs: `python -m benchmarks.queue`, or `make bench-queue`.

Many jobs of one small model are queued before any worker runs. A turn of a worker lasts from the end
of its job before to the end of this one; its overhead is what the turn took beyond the engine's own
time: taking the job, handing it to a child, keeping its artifacts, ending it. Then: how long a lone
job waits for an idle worker, and what idle workers burn.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import onnx
import psutil
import sqlalchemy as sa

from app.client import Client, UnreachableError
from app.jobs.store import job_repository
from app.jobs.store.database import Database, jobs
from app.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
ENGINE = "benchmarks.timed_engine"
MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
small (float[1, 64] x) => (float[1, 64] y)
<float[64, 64] w = {WEIGHTS}> { h = MatMul(x, w)  y = Relu(h) }
"""
WARM_UP = 3  # turns of each worker that do not count: it starts its first children meanwhile


@contextlib.contextmanager
def part_of_service(part: str, settings: Settings) -> Iterator[psutil.Process]:
    """One part of the service, until the context is left."""
    command = [sys.executable, "-m", "benchmarks.part", part, settings.to_json()]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(30)


def wait_until_ready(client: Client) -> None:
    """Return when the API answers."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(UnreachableError):
            client.targets()
            return
        time.sleep(0.1)
    raise TimeoutError("the API did not start")


def _ended(database: Database, count: int) -> None:
    ended = sa.select(sa.func.count()).where(
        jobs.c.kind == "optimize", jobs.c.state.in_(job_repository.TERMINAL)
    )
    while True:
        with database.read() as connection:
            if (connection.scalar(ended) or 0) >= count:
                return
        time.sleep(0.5)


def overheads(rows: Sequence[tuple[str, float, float]]) -> list[float]:
    """Seconds beyond the engine's of each turn but the first ones; rows are (worker, end, engine's)."""
    found = []
    for worker in sorted({row[0] for row in rows}):
        ends = sorted((end, engine) for name, end, engine in rows if name == worker)[WARM_UP - 1 :]
        found += [end - before - engine for (before, _), (end, engine) in pairwise(ends)]
    return found


def _quantiles(seconds: Sequence[float]) -> str:
    cuts = statistics.quantiles(seconds, n=20, method="inclusive")
    return f"p50 {statistics.median(seconds) * 1e3:6.1f} ms, p95 {cuts[18] * 1e3:6.1f} ms"


def _queued(database: Database) -> tuple[float, list[tuple[str, float, float]]]:
    """Wall seconds from the first start to the last end, and a row for each job."""
    query = sa.select(
        jobs.c.state, jobs.c.code, jobs.c.worker, jobs.c.started, jobs.c.finished, jobs.c.summary
    )
    with database.read() as connection:
        found = connection.execute(query.where(jobs.c.kind == "optimize")).all()
    failed = [f"{row.state} {row.code}" for row in found if row.state != "succeeded"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(found)} jobs did not succeed: {failed[0]}")
    wall = max(row.finished for row in found) - min(row.started for row in found)
    return wall, [(row.worker, row.finished, row.summary["engine_seconds"]) for row in found]


def measure(settings: Settings, model: bytes, count: int, lone: int, idle_seconds: float) -> Iterator[str]:
    """Lines of the report."""
    database = Database(settings.jobs_database_url)
    request = {"options": {"benchmark_seconds": 0.0, "autotune": False}, "reuse": False}
    path = settings.data / "model.onnx"
    path.write_bytes(model)
    with part_of_service("api", settings), Client(f"http://127.0.0.1:{settings.port}") as client:
        wait_until_ready(client)
        identifier = client.upload(path).id
        for _ in range(count):
            client.submit(identifier, **request)
        with part_of_service("workers", settings) as workers:
            _ended(database, WARM_UP * settings.workers)
            before = _beyond(database, workers)
            _ended(database, count)
            after = _beyond(database, workers)
            wall, rows = _queued(database)
            engine = sum(row[2] for row in rows)
            yield f"{count} jobs, {settings.workers} workers: {wall:.1f} s, {count / wall:.1f} jobs/s"
            share = engine / settings.workers
            yield f"  the engine alone: {engine:.1f} s, so {share:.1f} s of each worker, {share / wall:.0%}"
            yield f"  queue overhead of a job: {_quantiles(overheads(rows))}"
            beyond = (after[1] - before[1]) / max(1, after[0] - before[0])
            yield f"  CPU of workers and children beyond the engine's: {beyond * 1e3:.1f} ms a job"
            time.sleep(2.0)
            waits, turns = [], []
            for _ in range(lone):
                began = time.time()
                job = client.wait(client.submit(identifier, **request).id)
                turns.append(time.time() - began)
                with database.read() as connection:
                    waits.append(job_repository.find(connection, job.id)["started"] - began)
                time.sleep(0.3)
            yield f"  a lone job starts after  {_quantiles(waits)}; its answer after {_quantiles(turns)}"
            time.sleep(5.0)
            before = _burnt(workers)
            time.sleep(idle_seconds)
            share = (_burnt(workers) - before) / idle_seconds
            yield f"  idle workers burn {share:.2%} of a core"
    database.close()


def _beyond(database: Database, workers: psutil.Process) -> tuple[int, float]:
    """Jobs that ended, and CPU seconds that workers and children spent besides the engine's."""
    with database.read() as connection:
        ended = sa.select(jobs.c.summary).where(jobs.c.kind == "optimize", jobs.c.state == "succeeded")
        engine = [summary["engine_cpu_seconds"] for summary in connection.scalars(ended)]
    return len(engine), _burnt(workers) - sum(engine)


def _burnt(process: psutil.Process) -> float:
    """CPU seconds of a process and all below it, those that ended too."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(each.cpu_times()[:4])
    return total


def _model() -> bytes:
    weights = ", ".join(f"{(i * 7 % 13 - 6) / 16:.6f}" for i in range(64 * 64))
    return onnx.parser.parse_model(MODEL.replace("WEIGHTS", weights)).SerializeToString()


def main() -> int:
    """Measure on each database that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--lone", type=int, default=20, help="jobs that come one at a time")
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", type=Path, help="ONNX file (default: a matrix product and a ReLU)")
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgresql"])
    arguments = parser.parse_args()
    from tests.jobs.postgres import running
    from tests.jobs.service import free_port

    model = arguments.model.read_bytes() if arguments.model else _model()
    for name in arguments.databases:
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
            server = stack.enter_context(running()) if name == "postgresql" else None
            settings = Settings(
                data=Path(place),
                port=free_port(),
                database_url=server.database() if server else "",
                workers=arguments.workers,
                max_jobs_per_key=10 * arguments.jobs,
                engine=ENGINE,
            )
            print(f"{name}:", flush=True)
            for line in measure(settings, model, arguments.jobs, arguments.lone, arguments.idle_seconds):
                print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
