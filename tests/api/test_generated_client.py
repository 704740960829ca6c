"""A client that others generate from our description type-checks and runs the quickstart."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.inside import description
from tests.jobs.service import ROOT, Served, serve

pytestmark = pytest.mark.last

# The README's quickstart, in the words of the generated client.
QUICKSTART = """
import io
import sys
from pathlib import Path

from generated import AuthenticatedClient
from generated.api.artifacts import get_artifact
from generated.api.jobs import create_job, get_job, list_jobs
from generated.api.models import create_model
from generated.api.targets import list_targets
from generated.models import JobAnswer, JobOptions, JobRequest, ModelAnswer, Problem
from generated.types import File


def main(url: str, key: str, path: Path) -> None:
    with AuthenticatedClient(base_url=url, token=key) as client:
        targets = list_targets.sync(client=client)
        assert targets is not None and not isinstance(targets, Problem)
        assert "host" in [target.name for target in targets.targets]
        body = File(payload=io.BytesIO(path.read_bytes()))
        model = create_model.sync(client=client, body=body, wait=60.0)
        assert isinstance(model, ModelAnswer), model
        assert model.state == "ready", model
        options = JobOptions(threads=1, benchmark_seconds=0.05)
        request = JobRequest(model=model.id, targets=["host"], options=options)
        job = create_job.sync(client=client, body=request)
        assert isinstance(job, JobAnswer), job
        while job.state not in ("succeeded", "failed", "cancelled"):
            found = get_job.sync(job.id, client=client, wait=20.0)
            assert isinstance(found, JobAnswer), found
            job = found
        assert job.state == "succeeded", job
        artifact = get_artifact.sync_detailed(job.id, "optimized.onnx", client=client)
        assert artifact.status_code == 200
        Path("optimized.onnx").write_bytes(artifact.content)
        unknown = get_job.sync("nothing", client=client)
        assert isinstance(unknown, Problem), unknown
        assert unknown.code == "job-not-found"
        listed = list_jobs.sync(client=client, limit=1)
        assert listed is not None and not isinstance(listed, Problem)
        assert [row.id for row in listed.jobs] == [job.id]


main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
"""
# The generator knows no CSV; as bytes it takes it.
CONFIG = """
package_name_override: generated
post_hooks: []
content_type_overrides: {"text/csv": application/octet-stream}
"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package `generated` and the quickstart."""
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_text(json.dumps(description()))
    (folder / "config.yaml").write_text(CONFIG)
    done = run(
        folder,
        "-m",
        "openapi_python_client",
        "generate",
        *("--path", "openapi.json", "--meta", "none", "--output-path", "generated"),
        *("--config", "config.yaml"),
    )
    left_out = re.findall(r"^WARNING parsing (.*)$", done.stdout + done.stderr, re.MULTILINE)
    assert left_out == [], done.stdout
    (folder / "quickstart.py").write_text(QUICKSTART)
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with the engine that users get, and with the kernels that other tests compiled."""
    data = tmp_path_factory.mktemp("real")
    compiled = ROOT / "build" / "kernels"
    compiled.mkdir(parents=True, exist_ok=True)
    (data / "kernels").symlink_to(compiled)
    with serve(data, engine="app.engine", workers=1) as served:
        yield served


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_it_type_checks(generated: Path) -> None:
    run(generated, "-m", "mypy", "--config-file=", "generated", "quickstart.py")


def test_it_runs_the_quickstart(generated: Path, real: Served, shared: Path) -> None:
    model = shared / "models" / "mnist_8.onnx"
    first = {"name": "quickstart", "scope": "admin", "require_keys": True}
    key = real.http.post("/v1/keys", json=first).json()["key"]
    run(generated, "quickstart.py", str(real.http.base_url), key, str(model))
    assert (generated / "optimized.onnx").stat().st_size > 1000
