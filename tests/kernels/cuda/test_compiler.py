"""Offline compilation for sm_80 and sm_90: no spills, registers within budget, the instructions that are claimed."""

import importlib.metadata
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine.backends.cuda.dispatch import offered
from app.kernels.cuda import compiler as compilation
from app.kernels.cuda.compiler import Compiler
from app.kernels.cuda.conv import Conv, conv
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.gemm import dtype_of, gemm
from app.kernels.cuda.gemv import gemv
from app.kernels.cuda.kernel import Kernel, KernelError
from app.kernels.cuda.product import Product
from tests.kernels.cuda.sass import instructions

pytest.importorskip("numba_cuda", reason="pip install 'stowplan[cuda]'")

SQUARE = Product(512, 512, 512, 512, 512, 512, 512)
BF16 = Epilogue("bfloat16", bias=True, residual="before", activation=("relu",))
TENSOR = {"HMMA", "LDGSTS", "LDSM"}
# The longest epilogue of each precision; fp16 differs from bf16 in the names of instructions only.
WHOLE = {
    p: Epilogue(dtype_of(p), bias=True, residual="before", activation=("relu",))
    for p in ("bf16", "tf32", "3xtf32", "f32")
}

# Kernel, registers of a thread at most, instructions that must be there.
KERNELS = [
    (gemm(SQUARE, "bf16", BF16, "128x128"), 128, TENSOR),
    (gemm(SQUARE, "bf16", BF16, "128x256"), 255, TENSOR),
    (gemm(SQUARE, "3xtf32", Epilogue(), "64x64", 2), 232, TENSOR),
    (gemm(SQUARE, "f32", Epilogue(bias=True), "128x128"), 184, {"FFMA", "LDGSTS"}),
    (
        conv(Conv(1, 56, 56, 64, 64, (3, 3), (1, 1), (1, 1, 1, 1)), "fp16", Epilogue("float16"), "64x64"),
        168,
        TENSOR,
    ),
    *(
        (gemm(replace(SQUARE, k=depth), p, WHOLE[p], tile), 255, TENSOR if p != "f32" else {"FFMA", "LDGSTS"})
        for p in WHOLE
        for depth in (512, 509)
        for tile in offered(p, depth)
    ),
    (gemv(Product(8, 512, 512, 512, 512, 512), "bfloat16", BF16, 512), 96, {"LDG", "FFMA"}),
]


@pytest.fixture(scope="module")
def offline() -> Compiler:
    root = Path(__file__).resolve().parents[3]
    return Compiler(root / "build" / "kernels")


@pytest.mark.parametrize(
    ("launches", "registers", "expected"),
    KERNELS,
    ids=lambda x: getattr(x, "steps", [None])[0] and x.steps[0].kernel.name,
)
def test_kernels_compile_without_spills(launches, registers, expected, offline, tmp_path) -> None:
    for step in launches.steps:
        for sm in ("sm_80", "sm_90"):
            cubin = offline.compile(step.kernel, sm)
            assert cubin.spills == 0, sm
            assert cubin.registers <= registers, sm
    found = instructions(offline.compile(launches.steps[0].kernel, "sm_90"), tmp_path)
    assert expected <= set(found)
    assert not {"LDL", "STL", "CALL"} & set(found)


TRIVIAL = Kernel("trivial", "def kernel(x):\n    x[thread()] = float32(1)\n", ("float32*",), 32)


def test_a_cubin_is_read_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Compiler(tmp_path).compile(TRIVIAL, "sm_90")
    monkeypatch.setattr(compilation, "ptx", lambda kernel: pytest.fail("compiled again"))
    again = Compiler(tmp_path)
    assert again.has(TRIVIAL, "sm_90")
    assert not again.has(TRIVIAL, "sm_80")
    assert again.compile(TRIVIAL, "sm_90") == first
    assert first.code[:4] == b"\x7fELF"


@pytest.mark.parametrize("sm", ["sm_75", "sm_61"])
def test_a_generation_that_is_too_old_is_refused(sm: str, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="expected sm_80 or later"):
        Compiler(tmp_path).compile(TRIVIAL, sm)


def test_a_generation_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="unknown GPU generation"):
        Compiler(tmp_path).compile(TRIVIAL, "hopper")
    with pytest.raises(KernelError, match="nvJitLink"):
        Compiler(tmp_path).compile(TRIVIAL, "sm_777")


def test_a_missing_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "nvidia-nvvm":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(compilation.importlib.metadata, "version", version)
    with pytest.raises(
        KernelError, match=r"'nvidia-nvvm', which is not installed; .*pip install 'stowplan\[cuda\]'"
    ):
        Compiler(tmp_path).compile(TRIVIAL, "sm_90")


def test_source_that_does_not_compile_names_the_kernel(tmp_path: Path) -> None:
    wrong = Kernel("wrong", "def kernel(x):\n    x[0] = nonsense(1)\n", ("float32*",), 32)
    with pytest.raises(KernelError, match="kernel 'wrong' does not compile"):
        Compiler(tmp_path).compile(wrong, "sm_90")
