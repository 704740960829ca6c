"""A dependency is used through its public interface: nothing reads a name of it that begins with `_`."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("app", "benchmarks", "docker", "tests")
OWN = frozenset(FOLDERS) | sys.stdlib_module_names


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def imported(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, dotted name and local name of everything that is imported from a dependency."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds a; `import a.b as c` binds a.b.
                bound = alias.name if alias.asname else alias.name.partition(".")[0]
                yield node.lineno, alias.name, alias.asname or bound
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}", alias.asname or alias.name


def private_names(source: str) -> list[str]:
    """Private names of dependencies that a source text imports, or reads from what it imported."""
    tree = ast.parse(source)
    foreign = [(i, name, local) for i, name, local in imported(tree) if name.partition(".")[0] not in OWN]
    found = [f"{i}: {name}" for i, name, _ in foreign if any(map(is_private, name.split(".")))]
    locals_ = {local for _, _, local in foreign}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in locals_:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_private_name_of_a_dependency_is_used(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{name}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in private_names(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "import dbos._core",
        "from dbos import _queue",
        "from dbos._queue import Queue",
        "from dbos._queue import Queue as Q",
        "import numpy as np\nnp._core.multiarray",
        "from onnx import numpy_helper as n\nn._unpack(b'')",
        "def late():\n    import dbos._core",
    ],
)
def test_private_names_are_found(source: str) -> None:
    assert private_names(source)


@pytest.mark.parametrize(
    "source",
    [
        "from app.engine.core.plan import _private",
        "import os\nos._exit(1)",
        "import numpy as np\nnp.__version__",
        "class A:\n    def f(self):\n        return self._g",
    ],
)
def test_own_names_and_those_of_the_standard_library_are_allowed(source: str) -> None:
    assert not private_names(source)
