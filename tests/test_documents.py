"""Documents name things that exist: files, modules, links, make targets, commands."""

import importlib
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from app.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))
IN_GUIDE = frozenset({"tests/kernels/test_swiglu.py"})  # written by who follows docs/adding.md

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"\b(?:app|tests|benchmarks)(?:\.[a-z_0-9]+)+\b")
COMMAND = re.compile(r"\bstowplan ([a-z][a-z-]*)")
TARGET = re.compile(r"^make ([a-z][a-z0-9-]*)", re.MULTILINE)
RUN_MODULE = re.compile(r"python -m ((?:app|tests|benchmarks)[.\w]*)")
FILE = re.compile(
    r"[\w./{},*<>-]+\.(?:py|sh|c|toml|yaml|html|js|css|md)|(?:app|tests|docs|docker|benchmarks)/[\w./-]*"
)


@cache
def tracked() -> tuple[str, ...]:
    """Files of the project, by path."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return tuple(listed.stdout.splitlines())
    return tuple(str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file())


def missing_file(name: str) -> bool:
    """Whether no file or folder of the project has this path, or this end of a path."""
    if any(c in name for c in "{}*<>"):
        stem = re.split(r"[{}*<>]", name)[0]
        return not any(f.startswith(stem) or f"/{stem}" in f for f in tracked())
    name = name.rstrip("/")
    return not any(f == name or f.endswith(f"/{name}") or f"/{name}/" in f"/{f}" for f in tracked())


def names_module(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        if not (path.with_suffix(".py").exists() or (path / "__init__.py").exists()):
            continue
        found: object = importlib.import_module(".".join(parts[:count]))
        return all((found := getattr(found, part, None)) is not None for part in parts[count:])
    return False


def make_targets() -> set[str]:
    return set(
        re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )


def prose(document: Path) -> str:
    """Text without what CHANGELOG.md says of names that are gone."""
    return document.read_text(encoding="utf-8").partition("\n### Renamed")[0]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    links = LINK.findall(CODE.sub("", FENCE.sub("", document.read_text(encoding="utf-8"))))
    wrong = [link for link in links if "://" not in link and not (document.parent / link).exists()]
    assert not wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_modules_that_are_named_exist(document: Path) -> None:
    text = prose(document)
    wrong = []
    for code in CODE.findall(FENCE.sub("", text)):
        if code.startswith(("http", "STOWPLAN_", "pip ")):
            continue
        files = [f for f in FILE.findall(code) if f.count("/") or code == f]
        own = [
            f for f in files if f.startswith(("app/", "tests/", "docs/", "docker/", "benchmarks/", "engine/"))
        ]
        bare = [f for f in files if "/" not in f and f.endswith(".py")]
        wrong += [f for f in (*own, *bare) if f not in IN_GUIDE and missing_file(f)]
        wrong += [m for m in MODULE.findall(code) if "/" not in code and not names_module(m)]
    assert not wrong, wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_make_targets_that_are_named_exist(document: Path) -> None:
    text = prose(document)
    code = "\n".join((*CODE.findall(FENCE.sub("", text)), *FENCE.findall(text)))
    code = re.sub(r"^\$ ", "", code, flags=re.MULTILINE)
    commands = {row.name for row in COMMANDS}
    assert set(COMMAND.findall(code)) <= commands
    assert set(TARGET.findall(code)) <= make_targets()
    wrong = [name for name in RUN_MODULE.findall(code) if not names_module(name)]
    assert not wrong


def test_every_make_target_is_phony_and_every_phony_target_exists() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert set(phony.split()) == make_targets()


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("app/engine/core/plan.py", False),
        ("docs/", False),
        ("app/engine/passes/", False),
        ("app/engine/ops/", True),
        ("app/engine/core/plann.py", True),
        ("plann.py", True),
    ],
)
def test_a_file_that_does_not_exist_is_found(name: str, absent: bool) -> None:
    assert missing_file(name) == absent


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("app.engine.core.registry.load", True),
        ("app.engine.core.registry.lode", False),
        ("app.engine.ops", False),
        ("benchmarks.latency", True),
    ],
)
def test_a_module_that_does_not_exist_is_found(name: str, exists: bool) -> None:
    assert names_module(name) == exists
