"""The compiler: its cache, what it refuses, and what it can do without the toolkit."""

import importlib.metadata
from pathlib import Path

import pytest

from app.kernels.cuda import compiler as compilation
from app.kernels.cuda.compiler import Compiler, MissingToolkitError
from app.kernels.cuda.epilogue import Epilogue
from app.kernels.cuda.gemm import gemm
from app.kernels.cuda.kernel import Kernel, KernelError
from app.kernels.cuda.product import Product
from tests.kernels.cuda.sass import instructions
from tests.needed import numba_cuda

numba_cuda()

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


def hide(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    """Distributions as if they were not installed."""
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(compilation.importlib.metadata, "version", version)


@pytest.mark.parametrize("name", compilation.TOOLKIT)
def test_a_missing_wheel_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, name)
    with pytest.raises(
        MissingToolkitError, match=rf"'{name}', which is not installed; .*pip install 'stowplan\[cuda\]'"
    ):
        Compiler(tmp_path).compile(TRIVIAL, "sm_90")


def test_cubins_of_an_image_are_loaded_without_the_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Compiler(tmp_path).compile(TRIVIAL, "sm_90")
    hide(monkeypatch, *compilation.TOOLKIT)
    bare = Compiler(tmp_path)
    assert bare.has(TRIVIAL, "sm_90")
    assert bare.compile(TRIVIAL, "sm_90") == first
    assert not bare.has(TRIVIAL, "sm_80")
    with pytest.raises(
        MissingToolkitError,
        match=r"pip install 'stowplan\[cuda\]'; or bring the cubin of kernel 'trivial' for sm_80 into .*, "
        "which has it for sm_90: `stowplan warm --target`",
    ):
        bare.compile(TRIVIAL, "sm_80")


def test_warpgroups_multiply_without_waiting_for_each_other(tmp_path: Path) -> None:
    """ptxas would run them one by one, and say so in a report that nobody reads, if sums were moved between."""
    (step,) = gemm(Product(512, 512, 512, 512, 512, 512), "bf16", Epilogue("bfloat16"), "128x256wg")
    cubin = Compiler(tmp_path).compile(step.kernel, "sm_90")
    (found,) = instructions([cubin], tmp_path)
    told = {name: count for name, count in found.items() if name.startswith(("HGMMA", "WARPGROUP"))}
    assert told == {"HGMMA.64x256x16.F32.BF16": 4, "WARPGROUP.ARRIVE": 1, "WARPGROUP.DEPBAR.LE": 2}
    assert cubin.spills == 0
    with pytest.raises(KernelError, match="has instructions of sm_90 alone, not of sm_80"):
        Compiler(tmp_path).compile(step.kernel, "sm_80")


def test_source_that_does_not_compile_names_the_kernel(tmp_path: Path) -> None:
    wrong = Kernel("wrong", "def kernel(x):\n    x[0] = nonsense(1)\n", ("float32*",), 32)
    with pytest.raises(KernelError, match="kernel 'wrong' does not compile"):
        Compiler(tmp_path).compile(wrong, "sm_90")


def test_a_trusted_folder_is_used_whatever_is_installed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingToolkitError, match="has no toolkit.json, .* copy the whole folder"):
        Compiler(tmp_path / "nothing", trusted=True)
    assert not (tmp_path / "nothing").exists()
    first = Compiler(tmp_path).compile(TRIVIAL, "sm_90")
    other = dict.fromkeys(compilation.versions(), "99")
    monkeypatch.setattr(compilation, "versions", lambda: other)
    assert not Compiler(tmp_path).has(TRIVIAL, "sm_90")  # made by other versions
    trusting = Compiler(tmp_path, trusted=True)
    assert trusting.has(TRIVIAL, "sm_90")
    assert trusting.compile(TRIVIAL, "sm_90") == first
    with pytest.raises(
        MissingToolkitError, match="no cubin of kernel 'trivial' for sm_80 .* for sm_90: compile"
    ):
        trusting.compile(TRIVIAL, "sm_80")
