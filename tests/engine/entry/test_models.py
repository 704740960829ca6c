"""The development models, end to end in this process: loaded, planned, run in poisoned memory, verified."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.report.onnx import export
from app.engine.runtime.oracle import runtime
from app.engine.types.options import Options
from app.kernels.cpu.runtime.compiler import Compiler
from benchmarks.models import bindings_of, recorded
from tests.session import Session

pytestmark = pytest.mark.long

# Outputs are compared with the recorded ones, as a fraction of each output's maximum.
TOLERANCE = 1e-4
MODELS = (
    "aecmos_gru",
    "attacut_sc",
    "basic_pitch",
    "chars2vec_en300_loop",
    "darts_v2",
    "deepcut_thai",
    "dlrm",
    "dnsmos_sig_bak_ovr",
    "gcn",
    "magika_v3_3",
    "mnist_8",
    "mtcnn_pnet",
    "mtcnn_rnet",
    "ppocr_cls_v2",
    "ppocrv4_det",
    "ppocrv4_rec",
    "randwire",
    "silero_vad_16k_sequence",
    "silero_vad_v6",
    "super_resolution_10",
    "tashkeel_rawi_v3_int8",
    "ultraface_rfb320",
)


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "unfused"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_was_recorded(
    name: str, fuse: bool, shared: Path, compiler: Compiler, tmp_path: Path
) -> None:
    folder = shared / "models"
    cases = recorded(folder, name)
    for inputs, outputs in cases if fuse else cases[:1]:
        session = Session(
            folder / f"{name}.onnx",
            compiler,
            options=Options(fuse=fuse),
            bindings=bindings_of(inputs),
            poison=True,
        )
        for _ in range(2):  # the second run meets what the first one left behind
            found = session.run(inputs)
        session.close()
        assert_recorded(found, outputs)
        if fuse:
            exported = tmp_path / "optimized.onnx"
            export(session.compilation.model, exported)
            # Not with the recorded ones: on some CPUs onnxruntime's own 8-bit products differ from those.
            raw = runtime(folder / f"{name}.onnx", threads=1, optimized=False)(inputs)
            assert_recorded(runtime(exported, threads=1, optimized=False)(inputs), raw)


def assert_recorded(found: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    for key, expected in outputs.items():
        assert found[key].shape == expected.shape
        scale = max(float(np.max(np.abs(expected), initial=0)), 1e-30)
        np.testing.assert_allclose(found[key], expected, rtol=0, atol=TOLERANCE * scale, err_msg=key)


def test_every_development_model_is_listed(shared: Path) -> None:
    manifest = json.loads((shared / "models" / "manifest.json").read_text())
    assert len(MODELS) == len(set(MODELS)) == 22
    assert {p.name.removesuffix(".onnx") for p in (shared / "models").glob("*.onnx")} == set(MODELS)
    assert manifest
