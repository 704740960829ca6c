"""A worker lets a child compile what any job needs, beside the jobs."""

import time
from pathlib import Path

from tests.jobs.service import serve


def test_a_worker_that_starts_prepares_the_folder_of_kernels(tmp_path: Path) -> None:
    with serve(tmp_path, workers=1) as service:
        deadline = time.monotonic() + 120
        while not (tmp_path / "kernels" / "prepared").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (tmp_path / "kernels" / "prepared").exists(), service.log()
        assert service.end(service.submit("ok after"))["state"] == "succeeded"
