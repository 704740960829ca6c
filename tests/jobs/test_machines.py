"""Two machines that share a database and a bucket, and no folder."""

from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.jobs.service import serve

pytestmark = pytest.mark.long

if TYPE_CHECKING:
    from tests.jobs.postgres import Postgres
    from tests.jobs.s3 import S3


def objects(s3: "S3", bucket: str) -> int:
    listed = httpx.get(f"{s3.url}/{bucket.removeprefix('s3://')}", params={"list-type": "2"})
    return listed.text.count("<Key>")


def test_a_job_sent_to_one_machine_runs_on_the_other_and_its_artifacts_come_back(
    postgres: "Postgres", s3: "S3", tmp_path: Path
) -> None:
    bucket = s3.bucket()
    how = {"database_url": postgres.database(), "blobs": bucket, "workers": 1}
    for name in "ab":
        (tmp_path / name).mkdir()
    with (
        serve(tmp_path / "a", queues=("inspect",), **how) as ours,
        serve(tmp_path / "b", queues=("cpu",), **how) as theirs,
    ):
        job_id = ours.submit("ok elsewhere")
        assert ours.end(job_id)["state"] == "succeeded"
        address = f"/v1/jobs/{job_id}/artifacts/plan.json"
        for machine in (ours, theirs):
            assert machine.http.get(address).text == '{"schema": 1}'
            part = machine.http.get(address, headers={"range": "bytes=2-7"})
            assert (part.status_code, part.text) == (206, "schema")
        assert objects(s3, bucket) == 4, "the model and three artifacts"
        assert not list((tmp_path / "a" / "blobs").glob("sha256"))
        assert ours.http.delete(f"/v1/jobs/{job_id}").status_code == 204
        assert objects(s3, bucket) == 1
        assert theirs.http.get(address).status_code == 404
