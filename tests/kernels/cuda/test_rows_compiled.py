"""Kernels of rows, windows and attention compile for sm_90 without spills, with wide accesses."""

from pathlib import Path

import pytest

from app.kernels.cuda.attention import Attention, Heads, attention
from app.kernels.cuda.attention_decode import attention_decode
from app.kernels.cuda.elementwise import elementwise
from app.kernels.cuda.geometry import Strided
from app.kernels.cuda.kernel import Launches
from app.kernels.cuda.normalize import layer_norm
from app.kernels.cuda.recurrent import Recurrent, recurrent
from app.kernels.cuda.reduce import argument, reduce
from app.kernels.cuda.transpose import transpose
from app.kernels.cuda.windows import Axis, depthwise, pool

pytest.importorskip("numba_cuda")

from app.kernels.cuda.compiler import Compiler
from tests.kernels.cuda.sass import instructions

IMAGE = (Axis(56, 3, 56, 1, 1, 1, 1), Axis(56, 3, 56, 1, 1, 1, 1))


def _chain() -> Launches:
    rows, row = Strided("bfloat16", (768, 1)), Strided("bfloat16", (0, 1))
    return elementwise((("Add", (0, 1), ()), ("Gelu", (2,), ())), (128, 768), (rows, row), ((3, rows),))


def _layer(cell: str) -> Recurrent:
    wants = ("y", "y_h", "y_c")[: 2 + (cell == "LSTM")]
    return Recurrent(
        cell, 10, 4, 256, 2, (4, 1), (2048, 1024, 256), (1024, 256), lengths=True, initial_h=True,
        initial_c=cell == "LSTM", peepholes=cell == "LSTM", clip=3.0, resets_after=True, wants=wants,
    )  # fmt: skip


def _attention(rows: int, keys: int, width: int) -> Attention:
    q, k = (Heads(12 * n * width, n * width, width) for n in (rows, keys))
    return Attention(1, 12, 12, rows, keys, width, width, "bfloat16", q, k, k, q, 0.125, causal=rows > 1)


CASES = {
    # made by, registers at most, instructions that must be there
    "elementwise": (_chain, 64, ("LDG.E.128", "STG.E.128")),
    "layer_norm": (
        lambda: layer_norm(128, 768, "bfloat16", 1e-5, residual=True),
        96,
        ("LDG.E.128", "SHFL.BFLY"),
    ),
    "reduce": (lambda: reduce("mean", (8, 49, 2048), (1,), "bfloat16"), 64, ("LDG.E.128",)),
    "argument": (lambda: argument(True, 4, 50257, 1, "float32"), 64, ("SHFL.BFLY",)),
    "transpose": (lambda: transpose((8, 256, 196), (0, 2, 1), "bfloat16"), 64, ("LDG.E.U16", "STS")),
    "pool": (lambda: pool("max", 8, 64, IMAGE, "bfloat16", last=True), 64, ("LDG.E.128",)),
    "depthwise": (lambda: depthwise(64, 144, IMAGE, "bfloat16"), 128, ("LDG.E.128", "STG.E.128")),
    "attention": (
        lambda: attention(_attention(128, 128, 64)),
        168,
        ("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS.E.BYPASS.LTC128B.128"),
    ),
    **{
        f"{cell.lower()}": (lambda cell=cell: recurrent(_layer(cell)), 64, ("LDG.E", "BAR.SYNC"))
        for cell in ("LSTM", "GRU", "RNN")
    },
    "decode": (lambda: attention_decode(_attention(1, 1024, 64)), 128, ("LDG.E.128",)),
}


@pytest.fixture(scope="module")
def offline() -> Compiler:
    root = Path(__file__).resolve().parents[3]
    return Compiler(root / "build" / "kernels")


@pytest.mark.parametrize("name", CASES)
def test_no_spills_and_wide_accesses(name: str, offline: Compiler, tmp_path: Path) -> None:
    make, registers, expected = CASES[name]
    kernel = make().steps[0].kernel
    for sm in ("sm_80", "sm_90"):
        cubin = offline.compile(kernel, sm)
        assert cubin.spills == 0, sm
        assert sm == "sm_80" or cubin.registers <= registers
    found = instructions(offline.compile(kernel, "sm_90"), tmp_path, modifiers=True)
    assert not [i for i in expected if not any(f.startswith(i) for f in found)], sorted(found)
    assert not {"LDL", "STL"} & {f.split(".")[0] for f in found}
