"""docs/adding.md followed to the letter in a copy of the project: its changes, its commands, their output."""

import ast
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.engine.core.registry import Implementation
from tests.conftest import KERNELS

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
GUIDE = ROOT / "docs" / "adding.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.py)\n")
SECONDS = 120  # of one command, on a loaded machine


@dataclass(frozen=True)
class Block:
    """A fenced block, with the heading that it stands under."""

    section: str
    language: str
    text: str


def blocks() -> tuple[Block, ...]:
    found = []
    for section in re.split(r"^## ", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        found += [Block(title, language, text) for language, text in FENCE.findall(body)]
    return tuple(found)


def change(text: str) -> tuple[str, str, str]:
    """The file that a diff block changes, the lines that it replaces, and those in their place."""
    header, *lines = text.splitlines(keepends=True)
    assert header.startswith("--- "), header
    old = "".join(line[1:] or "\n" for line in lines if not line.startswith("+"))
    new = "".join(line[1:] or "\n" for line in lines if not line.startswith("-"))
    return header[4:].strip(), old, new


def replace_once(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path} has {text.count(old)} times:\n{old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


@dataclass(frozen=True)
class Copy:
    """A copy of the project that the guide is followed in."""

    root: Path

    def apply(self, block: Block) -> None:
        """Make the change, or write the file, of a block; a block of neither kind is an illustration."""
        if block.language == "diff":
            name, old, new = change(block.text)
            replace_once(self.root / name, old, new)
        elif named := FILE.match(block.text):
            (self.root / named[1]).write_text(block.text, encoding="utf-8")

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """The result of a command line; `stowplan` and `pytest` are those of the copy."""
        program, *arguments = command.split()
        tests = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "xdist.plugin"]
        modules = {"stowplan": ["-m", "app.cli.main"], "pytest": tests}
        environment = {
            **os.environ,  # noqa: TID251
            "PYTHONPATH": str(self.root),
            "STOWPLAN_DATA": str(self.root / "data"),
            "STOWPLAN_KERNELS": str(KERNELS),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # of all plugins the tests there need one
        }
        line = [sys.executable, *modules.get(program, []), *arguments]
        return subprocess.run(
            line, cwd=self.root, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def check(self, transcript: str) -> None:
        """Run the commands of a transcript: each succeeds and prints the lines below it."""
        for part in re.split(r"^\$ ", transcript, flags=re.MULTILINE)[1:]:
            command, *expected = part.strip().splitlines()
            ended = self.run(command)
            output = ended.stdout + ended.stderr
            assert ended.returncode == 0, f"$ {command}\n{output}"
            for line in expected:
                assert line in output, f"$ {command}\nprints no {line!r}:\n{output}"


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A copy of the project in which the whole guide was followed, from top to bottom."""
    copy = Copy(tmp_path_factory.mktemp("guide"))
    for folder in ("app", "tests"):
        shutil.copytree(ROOT / folder, copy.root / folder)
    shutil.copy(ROOT / "pyproject.toml", copy.root)
    for block in blocks():
        if block.language == "console":
            copy.check(block.text)
        else:
            copy.apply(block)
    return copy


def test_the_guide_shows_all_four_tasks() -> None:
    commands = [b.section for b in blocks() if b.language == "console"]
    assert {"An operator", "A rewrite", "A backend", "The plan after each pass"} <= set(commands)


def test_what_the_guide_adds_passes_the_linter(followed: Copy) -> None:
    names = {change(b.text)[0] for b in blocks() if b.language == "diff"}
    names |= {m[1] for b in blocks() if (m := FILE.match(b.text)) and "/" in m[1]}
    files = [str(followed.root / name) for name in sorted(names)]
    for command in (["check"], ["format", "--check"]):
        line = [sys.executable, "-m", "ruff", *command, "--no-cache", *files]
        ended = subprocess.run(line, cwd=followed.root, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("table", ["app/engine/operators/elementwise.py", "app/kernels/expressions.py"])
def test_the_operators_test_fails_without_a_row(followed: Copy, table: str) -> None:
    (block,) = (b for b in blocks() if b.language == "diff" and change(b.text)[0] == table)
    _, old, new = change(block.text)
    path = followed.root / table
    replace_once(path, new, old)
    try:
        ended = followed.run("pytest -n 0 -x tests/kernels/test_swiglu.py")
    finally:
        replace_once(path, old, new)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "SwiGLU" in ended.stdout


def test_the_illustrated_row_has_fields_that_exist() -> None:
    (block,) = (b for b in blocks() if b.section == "An implementation" and "Implementation(" in b.text)
    (statement,) = ast.parse(block.text).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    named = {keyword.arg for keyword in statement.value.keywords}
    assert named <= {field.name for field in dataclasses.fields(Implementation)}
