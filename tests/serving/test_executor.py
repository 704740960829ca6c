"""One executor process, called without a service around it."""

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.serving import channel
from app.serving.executor import run
from app.serving.executor_client import Bounds, ExecutorClient, Reply
from app.serving.executor_config import ExecutorConfig
from app.serving.oip_codec import InferenceError
from app.serving.scheduling.run_queue import LATE, OVERDUE
from tests.jobs import fake_engine
from tests.jobs.service import ENGINE

BOUNDS = Bounds(body_nbytes=1 << 20, arena_nbytes=1 << 20, waiting=4, seconds=5.0)
WIDE = Bounds(body_nbytes=1 << 20, arena_nbytes=1 << 20, waiting=16, seconds=5.0)


@contextmanager
def executor(folder: Path, text: str, **changes: Any) -> Iterator[BaseProcess]:
    model = folder / "model"
    model.write_text(text)
    given: dict[str, Any] = {
        "id": "e",
        "name": "model",
        "version": "1",
        "data": str(folder),
        "engine": ENGINE,
        "model": str(model),
        "external": {},
        "options": {},
        "bindings": {"shapes": {"x": [1, 3]}},
        "kernels": str(folder),
        "weights": str(folder / "weights"),
        "tune": True,
        "instances": 1,
        "batches": (),
        "batch_seconds": 0.0,
        "programs": 2,
        "infer_seconds": 5.0,
        "build_seconds": 20.0,
        "memory_bytes": 1 << 30,
        "log": ("text", "warning"),
    }
    config = ExecutorConfig(**given | changes)
    assert ExecutorConfig.from_json(config.to_json()) == config
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=run, args=(config.to_json(),), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(10)


@asynccontextmanager
async def connected(folder: Path, bounds: Bounds = BOUNDS) -> AsyncIterator[ExecutorClient]:
    """A link to a model that is ready, or has failed."""
    client = ExecutorClient(channel.socket_path(folder, "e"), bounds)
    deadline = time.monotonic() + 60
    while client.state not in ("ready", "failed") and time.monotonic() < deadline:
        client.connect()
        await asyncio.sleep(0.02)
    try:
        yield client
    finally:
        client.close()


async def ask(
    client: ExecutorClient, rows: int, first: float = 1.0, seconds: float | None = None, waited: float = 0.0
) -> Reply:
    """Binary data in, JSON out."""
    size = {"binary_data_size": rows * 12}
    tensor = {"name": "x", "shape": [rows, 3], "datatype": "FP32", "parameters": size}
    limit = {} if seconds is None else {"parameters": {"timeout": round(seconds * 1e6)}}
    header = json.dumps({"inputs": [tensor]} | limit).encode()
    values = np.ones(rows * 3, np.float32)
    values[0] = first
    body = header + values.tobytes()

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    return await client.infer(pieces(), len(body), len(header), waited)


def test_a_model_that_never_loads_ends_its_process(tmp_path: Path) -> None:
    with executor(tmp_path, "load-sleep 600", build_seconds=1.0) as process:
        process.join(30)
        assert process.exitcode == 1


def test_a_model_beyond_the_limit_of_memory_fails(tmp_path: Path) -> None:
    async def detail() -> str:
        async with connected(tmp_path) as client:
            assert client.state == "failed"
            with pytest.raises(InferenceError, match="cannot be served"):
                await ask(client, 1)
            return client.detail

    with executor(tmp_path, f"load-hog {2 << 30}"):
        assert asyncio.run(detail()) == f"the model needs more than the limit of {1 << 30} byte of memory"


def test_an_answer_that_fits_nowhere_is_refused_and_holds_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path, Bounds(1 << 16, 1 << 16, 4, 5.0)) as client:
            with pytest.raises(InferenceError, match="no memory is free for an answer of"):
                await ask(client, 5000)
            assert client.waiting == 0
            assert (await ask(client, 1)).status == 200

    with executor(tmp_path, "wide"):
        asyncio.run(main())


def test_a_shape_that_takes_long_to_compile_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path, Bounds(1 << 20, 1 << 20, 4, 0.5)) as client:
            with pytest.raises(InferenceError, match="still being compiled") as failure:
                await ask(client, fake_engine.SLOW)
            assert (failure.value.status, failure.value.retry_after) == (503, 5)
            assert client.waiting == 1, "the executor still has it"
            while client.waiting:
                await asyncio.sleep(0.02)
            assert (await ask(client, fake_engine.SLOW)).status == 200

    with executor(tmp_path, "slow"):
        asyncio.run(main())


def test_several_callers_have_memory_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as one:
            async with connected(tmp_path) as other:
                for rows in (1, 2):
                    replies = await asyncio.gather(ask(one, rows), ask(other, rows))
                    assert all(json.loads(r.body)["outputs"][1]["data"] == [rows] for r in replies)
            assert (await ask(one, 1)).status == 200

    with executor(tmp_path, "shared"):
        asyncio.run(main())


def test_two_instances_run_at_once_and_share_a_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            replies = await asyncio.gather(*(ask(client, 1, fake_engine.MEET) for _ in range(4)))
            assert [r.status for r in replies] == [200] * 4

    with executor(tmp_path, "pair", instances=2):
        asyncio.run(main())


@pytest.mark.parametrize(("instances", "threads", "cores"), [(1, 1, len(os.sched_getaffinity(0))), (2, 1, 1)])
def test_several_instances_have_cores_of_their_own(
    instances: int, threads: int, cores: int, tmp_path: Path
) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            for _ in range(3):
                reply = await ask(client, 1, fake_engine.CORES)
                assert json.loads(reply.body)["outputs"][0]["data"] == [cores] * 3

    with executor(tmp_path, "pinned", instances=instances, options={"threads": threads}):
        asyncio.run(main())


def test_a_request_is_answered_at_its_deadline_though_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            reply = await ask(client, 1, fake_engine.SLEEP, seconds=0.05)
            assert (reply.status, json.loads(reply.body)["error"]) == (504, LATE)
            reply = await ask(client, 1)
            assert json.loads(reply.body)["outputs"][0]["data"] == [2.0, 2.0, 2.0]
            reply = await ask(client, 1, fake_engine.MEET, seconds=0.1)  # nobody else comes
            assert reply.status == 504

    with executor(tmp_path, "late"):
        asyncio.run(main())


def test_time_before_a_request_was_read_counts_against_its_limit(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            reply = await ask(client, 1, seconds=1.0, waited=1.5)
            assert (reply.status, reply.retry_after) == (503, 1)
            assert json.loads(reply.body)["error"] == OVERDUE
            assert (await ask(client, 1, seconds=30.0, waited=1.5)).status == 200

    with executor(tmp_path, "overdue"):
        asyncio.run(main())


def test_a_request_that_waits_for_its_program_is_answered_at_its_deadline(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            reply = await ask(client, fake_engine.SLOW, seconds=0.1)
            assert (reply.status, reply.retry_after) == (503, 5)
            assert "still being compiled" in json.loads(reply.body)["error"]
            assert (await ask(client, fake_engine.SLOW)).status == 200

    with executor(tmp_path, "slow"):
        asyncio.run(main())


def test_a_request_that_cannot_be_answered_in_time_is_refused_when_it_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path, WIDE) as client:
            await ask(client, 1, fake_engine.SLEEP)  # a run takes 0.2 s
            waiting = [asyncio.create_task(ask(client, 1, fake_engine.SLEEP)) for _ in range(15)]
            await asyncio.sleep(0.05)
            # Fifteen wait for about 3 s. A busy machine may have run seven of them before this one comes.
            reply = await ask(client, 1, seconds=1.2)
            assert reply.status == 503
            assert reply.retry_after >= 1
            assert "requests wait for the model, for about" in json.loads(reply.body)["error"]
            assert [(await task).status for task in waiting] == [200] * 15

    with executor(tmp_path, "busy"):
        asyncio.run(main())


def test_a_program_that_is_replaced_while_it_runs_ends_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            running = [asyncio.create_task(ask(client, 2, fake_engine.SLEEP)) for _ in range(2)]
            await asyncio.sleep(0.05)
            assert (await ask(client, 1)).status == 200
            for task in running:
                assert json.loads((await task).body)["outputs"][0]["data"] == [-2.0, 2.0, 2.0, 2.0, 2.0, 2.0]
            assert client.programs == 1

    with executor(tmp_path, "replaced", programs=1):
        asyncio.run(main())


def test_a_caller_that_has_gone_leaves_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as here:
            async with connected(tmp_path) as gone:
                lost = [asyncio.create_task(ask(gone, 1, x)) for x in (fake_engine.SLEEP, fake_engine.MEET)]
                await asyncio.sleep(0.05)
            assert all(
                isinstance(e, InferenceError) for e in await asyncio.gather(*lost, return_exceptions=True)
            )
            assert (await ask(here, 1)).status == 200, "nobody meets the one that has gone"

    with executor(tmp_path, "gone"):
        asyncio.run(main())


def data_of(reply: Reply, output: int) -> list[float]:
    return list(json.loads(reply.body)["outputs"][output]["data"])


def test_requests_are_computed_together_up_to_the_largest_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path, WIDE) as client:
            firsts = [fake_engine.SLEEP, *range(10, 16)]  # while the first runs the others come
            replies = await asyncio.gather(*(ask(client, 1, first) for first in firsts))
            assert [data_of(r, 0) for r in replies] == [[2.0 * first, 2.0, 2.0] for first in firsts]
            rows = [data_of(r, 1)[0] for r in replies]  # of the program that computed each
            assert max(rows) == 4
            assert rows.count(4) % 4 == rows.count(2) % 2 == 0

    with executor(tmp_path, "batches", batches=(2, 4)):
        asyncio.run(main())


def test_a_request_waits_for_others_as_long_as_it_may(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            rows: list[list[float]] = []
            while rows != [[4], [4], [1]]:  # of other shapes there is one; programs of two rows come first
                replies = await asyncio.gather(ask(client, 2), ask(client, 2), ask(client, 1))
                rows = [data_of(r, 1) for r in replies]
            reply = await ask(client, 1)
            assert data_of(reply, 1) == [1]
            assert reply.waited is not None
            assert reply.waited >= 0.5, "its delay, less what threads wake late"

    with executor(tmp_path, "waits", batches=(2,), batch_seconds=1.0):
        asyncio.run(main())


def test_a_model_that_mixes_requests_is_not_served_in_batches(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            assert client.state == "failed"
            assert client.detail == "ReduceMean 'mean' may mix requests: it reduces axis 0"

    with executor(tmp_path, "mixes", batches=(2,)):
        asyncio.run(main())


def test_what_one_request_wants_of_a_batch_is_refused_to_it_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            replies = await asyncio.gather(ask(client, 1, np.inf), ask(client, 1))
            assert [r.status for r in replies] == [400, 200]
            assert data_of(replies[1], 1) == [2]

    with executor(tmp_path, "wants", batches=(2,), batch_seconds=4.0):
        asyncio.run(main())


def test_a_request_that_will_be_late_makes_way_for_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(tmp_path) as client:
            first = asyncio.create_task(ask(client, 1, fake_engine.SLEEP))  # no mean is known: all may wait
            await asyncio.sleep(0.05)
            late = asyncio.create_task(ask(client, 1, fake_engine.MEET, seconds=0.3))  # nobody else comes
            await asyncio.sleep(0.0)
            last = asyncio.create_task(ask(client, 1, 7.0))
            replies = [await task for task in (first, late, last)]
            assert [r.status for r in replies] == [200, 504, 200]
            assert data_of(replies[2], 0) == [14.0, 2.0, 2.0]

    with executor(tmp_path, "hopeless", batches=()):
        asyncio.run(main())
