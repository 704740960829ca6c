"""Generated requests never make the service fail, and it answers as it says."""

import random
import subprocess
import sys

import pytest

from tests.api import fuzz
from tests.jobs.service import ROOT, Served

pytestmark = pytest.mark.long


def test_no_request_makes_the_service_fail() -> None:
    """The tests of `described_requests.py`, in a process of their own.

    Every process of the suite would collect them: four seconds and 130 MB of each, for the one that runs them.
    """
    command = [sys.executable, "-m", "pytest", "-n", "0", "tests/api/described_requests.py"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_broken_uploads_are_refused_or_found_invalid(service: Served) -> None:
    found = fuzz.send(service, fuzz.mutations(150, random.Random(0)), inspected=0.1)
    print(fuzz.report("mutations", found))
    assert found.failures == []
    assert set(found.answers) <= {200, 201, 413}
    assert found.lost_workers == 0
    assert found.grown_bytes < 200 << 20
