"""Whole networks as programs for `cuda-sm90`: no node falls back, and small ones compute what they should."""

from pathlib import Path

import pytest

from app import samples
from app.engine.options import Bindings
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


def whole(name: str, folders: tuple[Path, ...], scratch: Path) -> tuple[Path, Bindings]:
    """A network's file, else a sample of it, else the small one: the same operators either way."""
    for file in FILES[name]:
        for folder in folders:
            path = folder / f"{file}.onnx"
            if path.exists():
                return path, bindings_of(recorded(folder, file)[0][0])
    path = scratch / f"{name}.onnx"
    if name in samples.SAMPLES:
        path.write_bytes(samples.build(name))
    else:
        NETWORKS[name]().save(path)
    return path, Bindings()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_a_complete_program(name: str, shared: Path, tmp_path: Path) -> None:
    folders = (shared / "models", ROOT.parent / "tools" / "models", ROOT / "build" / "models")
    path, bindings = whole(name, folders, tmp_path)
    program = planned(path, bindings=bindings)
    assert fallbacks(program) == []
    assert all(step.choice.implementation.backend == "cuda" for step in program.steps)


@pytest.mark.parametrize("name", ["resnet50", "mobilenetv2"])
def test_a_sample_is_a_complete_program(name: str, tmp_path: Path) -> None:
    path, bindings = whole(name, (), tmp_path)
    assert fallbacks(planned(path, bindings=bindings)) == []
