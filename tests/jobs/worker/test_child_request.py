"""Orders and targets survive the way to another process; workers have ids of their own."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, presets
from app.jobs.fingerprint import fingerprint
from app.jobs.worker.child_request import ChildRequest, Limits, bindings_of, options_of, target_of
from app.jobs.worker.worker import identity


@pytest.mark.parametrize("target", presets().values(), ids=lambda t: t.name)
def test_a_target_survives_json(target: Target) -> None:
    assert target_of(json.loads(json.dumps(asdict(target)))) == target


def test_options_and_bindings_survive_json() -> None:
    options = Options(memory_budget=5, fuse=False)
    assert options_of(json.loads(json.dumps(asdict(options)))) == options
    bindings = Bindings({"x": (1, 3)}, {"sr": 16000}, {"y": "/a/b"}, {"i": (0, 7)})
    assert bindings_of(json.loads(json.dumps(asdict(bindings)))) == bindings


def test_an_order_survives_json() -> None:
    request = ChildRequest(
        "optimize", "/f", "/k", Limits(1.5, 2, 3), "/t", "/m", {"w": "/w"}, options={"threads": 2}
    )
    assert ChildRequest.from_json(request.to_json()) == request
    assert request.external_paths == {"w": Path("/w")}


def test_a_fingerprint_ignores_names_and_sees_hardware() -> None:
    target = presets()["cpu-avx2"]
    assert fingerprint(replace(target, name="mine", cpu_model="x")) == fingerprint(target)
    assert fingerprint(replace(target, cores=target.cores + 1)) != fingerprint(target)


def test_living_workers_have_different_ids_and_a_new_one_takes_the_id_that_is_free(tmp_path: Path) -> None:
    with identity(tmp_path) as first:
        with identity(tmp_path) as second:
            assert first != second
            assert first.partition(":")[0] == second.partition(":")[0]
        with identity(tmp_path) as third:
            assert third == second
    with identity(tmp_path) as again:
        assert again == first
