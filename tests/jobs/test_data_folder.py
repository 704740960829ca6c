"""Other users of the machine can read nothing of the service's data."""

import contextlib
import logging
import os
import stat
from pathlib import Path

import pytest

from app.jobs import data_folder
from tests.jobs.service import serve

pytestmark = pytest.mark.long


def open_to_others(folder: Path) -> list[str]:
    """Paths that others may read, less those that the service removes meanwhile."""
    found = []
    for path in (folder, *folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and stat.S_IMODE(mode) & 0o077:
                found.append(str(path))
    return found


def test_other_users_can_read_nothing_of_a_running_service(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with serve(data, workers=1, benchmark_lock=tmp_path / "lock") as service:
        assert service.end(service.submit("steps 1 ok"))["state"] == "succeeded"
        (data / "log.txt").unlink()  # of the test
        assert open_to_others(data) == []


def test_a_data_folder_that_was_open_is_closed_with_a_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "data" / "blobs").mkdir(parents=True)
    (tmp_path / "data").chmod(0o755)
    for name, mode in (("stowplan.db", 0o644), ("blobs/aa", 0o444)):
        (tmp_path / "data" / name).write_text("x")
        (tmp_path / "data" / name).chmod(mode)
    before = os.umask(0o022)
    try:
        with caplog.at_level(logging.WARNING):
            data_folder.prepare(tmp_path / "data")
            data_folder.prepare(tmp_path / "data")
        assert os.umask(0o022) == 0o077
    finally:
        os.umask(before)
    assert open_to_others(tmp_path / "data") == []
    assert stat.S_IMODE((tmp_path / "data" / "blobs" / "aa").stat().st_mode) == 0o400
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "0755" in messages[0]
