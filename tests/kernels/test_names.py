"""Every kernel and generator that a row names exists, and generated modules find what they import."""

import ast
import importlib
import importlib.util
import re
from pathlib import Path

from app.kernels.cpu.runtime.compiler import resolve

ROOT = Path(__file__).resolve().parents[2]


def named() -> set[str]:
    """Kernels and generators that rows name."""
    return {
        name
        for path in (ROOT / "app" / "engine").rglob("*.py")
        for name in re.findall(r'"(app\.kernels\.[\w.]+:\w+)"', path.read_text())
    }


def imports() -> set[tuple[str, str]]:
    """Imports that generated modules begin with: they stand in string literals of the kernels' sources."""
    return {
        (match.group(1), name.strip())
        for path in (ROOT / "app" / "kernels").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for match in re.finditer(r"from (app\.kernels\.[\w.]+) import (\([^)]*\)|[\w, ]+)", node.value)
        for name in match.group(2).strip("()").split(",")
        if name.strip()
    }


def test_kernels_that_rows_name_exist() -> None:
    found = sorted(named())
    assert len(found) > 100
    assert [name for name in found if not callable(resolve(name))] == []


def test_what_generated_modules_import_exists() -> None:
    found = sorted(imports())
    assert len(found) > 100

    def exists(module: str, name: str) -> bool:
        owner = importlib.import_module(module)
        return hasattr(owner, name) or importlib.util.find_spec(f"{module}.{name}") is not None

    assert [(module, name) for module, name in found if not exists(module, name)] == []
