"""Every kernel and generator that a row names exists, and generated modules find what they import."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from app.kernels.cpu.runtime.compiler import resolve

ROOT = Path(__file__).resolve().parents[2]
NAMED = sorted(
    {
        name
        for path in (ROOT / "app" / "engine").rglob("*.py")
        for name in re.findall(r'"(app\.kernels\.[\w.]+:\w+)"', path.read_text())
    }
)
# Imports that generated modules begin with stand in string literals of the kernels' sources.
IMPORTS = sorted(
    {
        (match.group(1), name.strip())
        for path in (ROOT / "app" / "kernels").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for match in re.finditer(r"from (app\.kernels\.[\w.]+) import (\([^)]*\)|[\w, ]+)", node.value)
        for name in match.group(2).strip("()").split(",")
        if name.strip()
    }
)


@pytest.mark.parametrize("name", NAMED)
def test_a_kernel_that_a_row_names_exists(name: str) -> None:
    assert callable(resolve(name))


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_what_generated_modules_import_exists(module: str, name: str) -> None:
    owner = importlib.import_module(module)
    assert hasattr(owner, name) or importlib.util.find_spec(f"{module}.{name}") is not None
