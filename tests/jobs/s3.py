"""An S3-compatible server for tests, in a process of its own."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import httpx

from tests.jobs.service import free_port


class S3:
    """One server; every `bucket` is empty at first."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._count = 0

    def bucket(self) -> str:
        """The address of a new bucket."""
        self._count += 1
        name = f"stowplan-{self._count}"
        httpx.put(f"{self.url}/{name}").raise_for_status()
        return f"s3://{name}"


@contextlib.contextmanager
def running() -> Iterator[S3]:
    """A server, which the variables of the environment name until the context is left."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    server = S3(port)
    given = {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    before = {name: os.environ.get(name) for name in given}  # noqa: TID251  how tools of S3 are told
    os.environ.update(given)  # noqa: TID251
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(server.url)
                break
            assert time.monotonic() < deadline, "moto did not start"
            time.sleep(0.1)
        yield server
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})  # noqa: TID251
        process.terminate()
        process.wait(20)
