"""The C of libraries in builds that watch memory, undefined behavior and threads."""

import shutil
import subprocess
from pathlib import Path

import pytest

from app.kernels.library.object_file import HERE

CHECK = Path(__file__).with_name("runtime_check.c")
COMPILER = shutil.which("clang-16") or shutil.which("clang") or shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine")
@pytest.mark.parametrize("watched", ["address,undefined", "thread"])
def test_the_runtime_is_clean(watched: str, tmp_path: Path) -> None:
    assert COMPILER is not None
    for compiler in dict.fromkeys((COMPILER, shutil.which("cc") or COMPILER)):
        build = [compiler, "-g", "-O1", f"-fsanitize={watched}", "-fno-sanitize-recover=all"]
        made = subprocess.run(
            [*build, f"-I{HERE}", str(CHECK), "-o", "check", "-lpthread"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        if made.returncode == 0:
            break
    else:
        if "cannot find" not in made.stderr:
            pytest.fail(made.stderr)
        pytest.skip(f"no compiler of this machine has the runtime of -fsanitize={watched}")
    # Addresses that the system draws may lie where the watchers want to be.
    fixed = ["setarch", "-R"] if shutil.which("setarch") else []
    done = subprocess.run([*fixed, "./check"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
