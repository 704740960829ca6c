"""Size limits of files, folders and functions of the product, and of assertions in the place of types."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "app").rglob("*.py"))
LARGEST_FILE = 500  # lines
LONGEST_FUNCTION = 60  # lines; generators of kernels hold the text of a kernel
FULLEST_FOLDER = 14  # files beside __init__.py
# Tables of families: one file for each kind of operator or kernel.
FAMILIES = ("engine/operators", "engine/backends/cpu", "engine/backends/cuda", "kernels/cpu", "kernels/cuda")
ASSERTIONS = 20
EXCEPTIONS = {
    ("0001_first_tables.py", "upgrade"),  # a list of tables, never to be changed
}


def test_no_file_is_too_long():
    counts = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in FILES}
    assert {name: count for name, count in counts.items() if count > LARGEST_FILE} == {}


def test_no_function_is_too_long():
    found = set()
    for path in FILES:
        if "kernels" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= LONGEST_FUNCTION:
                    found.add((path.name, node.name))
    assert found == EXCEPTIONS


def test_no_folder_is_too_full():
    counts = {
        folder.relative_to(ROOT / "app").as_posix(): sum(1 for path in folder.glob("*.py")) - 1
        for folder in {path.parent for path in FILES}
    }
    full = {name for name, count in counts.items() if count > FULLEST_FOLDER}
    assert full <= set(FAMILIES)


def test_the_engine_has_no_loose_file():
    assert [path.name for path in (ROOT / "app" / "engine").glob("*.py")] == ["__init__.py"]


def test_types_stand_where_assertions_would():
    engine = [path for path in FILES if "engine" in path.parts]
    lines = [line for path in engine for line in path.read_text().splitlines()]
    assert sum(line.strip().startswith("assert ") and "is not None" in line for line in lines) <= ASSERTIONS
