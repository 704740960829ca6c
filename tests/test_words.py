"""Words of the project: names that were replaced by the terms of the field do not come back."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = frozenset({".py", ".md", ".html", ".js", ".css", ".sh", ".toml", ".yaml", ".json", ".ini", ".mako"})
FOREIGN = ("echarts", "swagger-ui", "requirements")
# They name what was renamed: this table, the history, and the tables that undo and record a renaming.
HISTORY = ("tests/test_words.py", "tests/data/renames.json", "tests/test_same_plans.py", "CHANGELOG.md")
HISTORY += ("app/jobs/store/migrations/versions/",)

# A regular expression for a word of its own (not part of a longer one), and the term in its place.
# Words with another, ordinary meaning (parts, order, search, known) are left to reviews.
REPLACED = {
    # serving
    "Ring": "SharedArena",
    "Fleet": "ModelRepository",
    "Link": "ExecutorClient",
    "wishes": "build_requests; in partitioning: candidates",
    "parked": "waiting_requests; of threads: blocked",
    # planning
    "FRONT": "FRONTEND_PASSES",
    "StorageGraph": "BufferAssignment",
    "Thrift": "MemoryConcessions",
    "thrift": "concessions",
    "Known": "PlanningContext",
    "Readings": "LayoutOptions",
    "StoreHalves": "NarrowStorage",
    "store_halves": "narrow_storage",
    "realize": "insert_conversions",
    "sensitivity": "mixed_precision",
    "modelled": "cost_only",
    # model and rewrites
    "wellformed": "validate_proto",
    "misfit": "rejection",
    "unfit": "rejection",
    "unsuited": "rejection",
    "why_not": "rejection",
    "distrust": "rejection",
    "refusal": "rejection",
    "cost_of_alike": "signature",
    "_once_alike": "cached",
    # memory
    "ladder": "portfolio",
    "downsets?": "optimal_order; of steps: order ideal",
    # drivers
    "Stretch": "KernelSequence",
    "rouse": "wake",
    "_attend": "run_helper",
    "mail": "mailbox",
    # backends and kernels
    "last_conv": "nhwc_conv",
    "last_pool": "nhwc_pool",
    "last_depthwise": "nhwc_depthwise",
    "blocked_(?:conv|conv_transpose|copy|depthwise|movement|pool|reduce|resize|tile)": "nchwc_*",
    "fusing": "epilogue",
    "numba_cpu": "app.engine.backends.cpu",
    # jobs
    "nursery": "prefork_pool",
    "forker": "forkserver_preload; fork server",
    "lifeline": "parent_death",
    "doorbell": "queue_notify",
    "tallies": "counters",
    "ledger": "job_repository",
    "catalog": "model_repository",
    "engine_door": "engine_protocol",
    # api and telemetry
    "Gauges": "Metrics",
    "Meter": "HttpMetrics",
    "express": "fast_path",
}
WORD = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(REPLACED)})(?![A-Za-z0-9_])")
# Modules that got other names; as words these are ordinary English.
MODULES = re.compile(
    "allocation|sequences|usage|feeding|merging|folding|permuted|fit|recompute|machines|rigid|packing|walk|alike"
    "|single|nested|ordered|images|launching|tensors|watch|turns|places|callers|orders|gate|heads|waiting|parts"
)
PACKAGES = ("app/engine", "app/kernels", "app/jobs", "app/api", "app/serving")

OPENINGS = re.compile(r"(?:What|Whether|Why|Of)\b")
MOST_OPENINGS = 20


def texts() -> list[Path]:
    """Files that people read or write."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]
    for folder in ("app", "benchmarks", "docker", "docs", "tests"):
        found += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in TEXT]
    names = [(path, str(path.relative_to(ROOT))) for path in found]
    return [p for p, name in names if not name.startswith(HISTORY) and not p.name.startswith(FOREIGN)]


def uses(text: str) -> list[str]:
    """Replaced words in a text, each with its line and the term in its place."""
    return [
        f"{number}: {word}: {term}"
        for number, line in enumerate(text.splitlines(), 1)
        for word in WORD.findall(line)
        for pattern, term in REPLACED.items()
        if re.fullmatch(pattern, word)
    ]


def openings(source: str) -> list[str]:
    """First lines of docstrings that begin with What, Whether, Why or Of."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    documented = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    firsts = [(ast.get_docstring(node) or "").partition("\n")[0] for node in documented]
    return [line for line in firsts if OPENINGS.match(line)]


def test_replaced_words_are_not_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{use}"
        for path in texts()
        for use in uses(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"{len(found)}\n" + "\n".join(found)


def test_replaced_names_of_modules_are_not_used() -> None:
    found = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if MODULES.fullmatch(path.stem) or WORD.fullmatch(path.stem)
    ]
    assert not found, found


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "app").rglob("*.py"))
        for line in openings(path.read_text(encoding="utf-8"))
    ]
    assert len(found) <= MOST_OPENINGS, f"{len(found)}\n" + "\n".join(found)


@pytest.mark.parametrize("text", ["class Ring:", "x = Known(1)", "import numba_cpu", "a ladder of methods"])
def test_a_replaced_word_is_found(text: str) -> None:
    assert len(uses(text)) == 1


@pytest.mark.parametrize("text", ["Ringing", "known", "_mail_slot", "unknown", "expression"])
def test_a_longer_word_is_another(text: str) -> None:
    assert not uses(text)


def test_an_opening_is_found() -> None:
    assert openings('def f():\n    """Why not.\n\n    More.\n    """') == ["Why not."]
    assert not openings('def f():\n    """Offset of a buffer."""')
