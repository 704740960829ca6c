"""Whole networks as programs for `cuda-sm90`: no node falls back, and small ones compute what they should."""

import os
from pathlib import Path

import pytest

from benchmarks.models import bindings_of, recorded
from tests.engine.cuda.models import NETWORKS, inputs
from tests.engine.cuda.programs import check, fallbacks, planned

ROOT = Path(__file__).resolve().parents[3]
# Names of the files that hold a network of the same operators.
FILES = {
    "resnet50": ("resnet50",),
    "mobilenetv2": ("mobilenetv2",),
    "bert_mini": ("bert_mini", "bert_base"),
    "gpt2_mini_decode": ("gpt2_mini_decode", "gpt2_decode"),
    "ppocrv4_det": ("ppocrv4_det",),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_small_network_computes_on_the_device_what_it_should(name: str, tmp_path: Path) -> None:
    path = NETWORKS[name]().save(tmp_path / f"{name}.onnx")
    check(path, inputs()[name], tolerance=2e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_a_complete_program(name: str, shared: Path) -> None:
    folders = (shared / "models", ROOT.parent / "tools" / "models", ROOT / "build" / "models")
    found = [f / f"{n}.onnx" for n in FILES[name] for f in folders if (f / f"{n}.onnx").exists()]
    if not found:
        reason = f"no {name}.onnx in {', '.join(map(str, folders))}; make_models.py builds it"
        if os.environ.get("CI") == "true":  # noqa: TID251
            pytest.fail(reason)
        pytest.skip(reason)
    path = found[0]
    program = planned(path, bindings=bindings_of(recorded(path.parent, path.stem)[0][0]))
    assert fallbacks(program) == []
    assert all(step.choice.implementation.backend == "cuda" for step in program.steps)
