"""Whole networks as programs for `cuda-sm90`: no node falls back, and small ones compute what they should."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from app import samples
from app.engine.runtime.cuda.driver import Gpu
from app.engine.runtime.cuda.executor import DeviceExecutor
from app.engine.types.options import Bindings, Options
from benchmarks.models import FOLDERS, bindings_of, recorded
from tests.engine.runtime.cuda.models import (
    BERT_MINI,
    GPT2_MINI,
    NETWORKS,
    bert_mini,
    gpt2_mini_decode,
    inputs,
)
from tests.engine.runtime.cuda.programs import check, fallbacks, planned

POLICIES = ("f32", "tf32", "bf16", "fp16")
# Networks as large as they are, those that no file is needed for.
BUILT: Mapping[str, Callable[[Path], object]] = {
    **{
        name: lambda path, name=name: path.write_bytes(samples.build(name))
        for name in ("resnet50", "mobilenetv2")
    },
    "bert_mini": lambda path: bert_mini(BERT_MINI).save(path),
    "gpt2_mini_decode": lambda path: gpt2_mini_decode(GPT2_MINI).save(path),
}
# Exported files that are looked at where they are.
FILES = ("resnet50", "mobilenetv2", "bert_mini", "bert_base", "gpt2_mini_decode", "gpt2_decode")
# Of an output's maximum. Each value that is stored in bfloat16 is off by 2^-9 of its size at most; the
# longest of these networks stores 40 one after another, whose errors add up like random ones.
TOLERANCE = {"f32": 2e-5, "bf16": 40**0.5 * 2.0**-9}
RECORDED_TOLERANCE = 1e-4  # of an output's maximum: float32 sums in another order, layer after layer
# Recorded models of the shared data that are complete programs.
RECORDED = (
    *("aecmos_gru", "attacut_sc", "basic_pitch", "darts_v2", "deepcut_thai", "dlrm", "dnsmos_sig_bak_ovr"),
    *("gcn", "magika_v3_3", "mnist_8", "mtcnn_pnet", "mtcnn_rnet", "ppocr_cls_v2", "ppocrv4_det"),
    *("ppocrv4_rec", "randwire", "silero_vad_16k_sequence", "silero_vad_v6", "super_resolution_10"),
    "ultraface_rfb320",
)


@pytest.mark.simulated
@pytest.mark.parametrize("policy", TOLERANCE)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_small_network_computes_on_the_device_what_it_should(
    name: str, policy: str, tmp_path: Path
) -> None:
    path = NETWORKS[name]().save(tmp_path / f"{name}.onnx")
    check(path, inputs()[name], Options(precision=policy), TOLERANCE[policy])


def is_complete(path: Path, bindings: Bindings, policy: str) -> None:
    program = planned(path, Options(precision=policy), bindings)
    assert fallbacks(program) == []
    assert all(step.choice.implementation.backend == "cuda" for step in program.steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where networks are built once for all policies."""
    return tmp_path_factory.mktemp("networks")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", BUILT)
def test_a_whole_network_is_a_complete_program(name: str, policy: str, folder: Path) -> None:
    path = folder / f"{name}.onnx"
    if not path.exists():
        BUILT[name](path)
    is_complete(path, Bindings(), policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_ppocrv4_det_is_a_complete_program(policy: str, shared: Path) -> None:
    is_complete(*exported(shared / "models", "ppocrv4_det"), policy)


def exported(folder: Path, name: str) -> tuple[Path, Bindings]:
    return folder / f"{name}.onnx", bindings_of(recorded(folder, name)[0][0])


@pytest.mark.parametrize("name", FILES)
def test_an_exported_network_is_a_complete_program(name: str) -> None:
    folder = next((f for f in FOLDERS if (f / f"{name}.onnx").exists()), None)
    if folder is None:
        pytest.skip(f"no {name}.onnx in {FOLDERS}; what is built above has its operators")
    is_complete(*exported(folder, name), "f32")


@pytest.mark.simulated
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_model_computes_on_a_gpu_what_was_recorded(name: str, gpu: Gpu, shared: Path) -> None:
    """In poisoned memory launch by launch, and as a graph, which meets what the runs before left behind."""
    folder = shared / "models"
    for given, outputs in recorded(folder, name):
        program = planned(folder / f"{name}.onnx", Options(precision="f32"), bindings_of(given))
        assert fallbacks(program) == []
        for poison in (True, False):
            executor = DeviceExecutor(program, gpu, poison=poison)
            try:
                for _ in range(1 if poison else 3):
                    assert_recorded(executor.run(given), outputs)
            finally:
                executor.close()


def assert_recorded(found: Mapping[str, object], outputs: Mapping[str, object]) -> None:
    for key, expected in outputs.items():
        scale = max(float(np.max(np.abs(expected), initial=0)), 1e-30)
        np.testing.assert_allclose(found[key], expected, rtol=0, atol=RECORDED_TOLERANCE * scale, err_msg=key)
