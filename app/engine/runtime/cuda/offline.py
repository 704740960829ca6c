"""Machine code of a program without a device: what a kernel takes is known before it runs."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine.core.calls import LaunchCall
from app.engine.core.program import Program
from app.engine.runtime.cuda.driver import sm_of
from app.engine.runtime.cuda.executor import kernels_of, launch_of
from app.engine.types.errors import KernelError
from app.kernels.cuda.compiler import Compiler, MissingToolkitError
from app.kernels.cuda.kernel import KernelError as CompileError

Json = dict[str, Any]


def compiled(program: Program, folder: Path, progress: Callable[[int, int], None]) -> Json:
    """The resources of every kernel of a program, compiled into the cache; or why it is not compiled.

    Where the compiler is not installed and the cache lacks a kernel, the program stays a plan. A kernel that
    the compiler refuses is an error.

    Raises:
        KernelError: a kernel does not compile for the target.
    """
    sm = sm_of(program.compilation.target)
    calls = [c for s in program.steps for c in s.calls if isinstance(c, LaunchCall)]
    compiler, wanted = Compiler(folder), kernels_of(program)
    launches = Counter(launch_of(c).kernel for c in calls)
    rows = []
    for done, kernel in enumerate(wanted):
        progress(done, len(wanted))
        try:
            cubin = compiler.compile(kernel, sm)
        except MissingToolkitError as missing:
            return {"sm": sm, "launches": len(calls), "uncompiled": str(missing)}
        except CompileError as cause:
            raise KernelError(f"kernel {kernel.name!r} does not compile for {sm}: {cause}") from cause
        rows.append(
            {
                "name": kernel.name,
                "launches": launches[kernel],
                "blocks": max(math.prod(launch_of(c).grid) for c in calls if launch_of(c).kernel == kernel),
                "threads": kernel.threads,
                "registers": cubin.registers,
                "spilled_bytes": cubin.spills,
                "shared_bytes": kernel.shared_bytes + cubin.shared_bytes,
                "code_bytes": len(cubin.code),
            }
        )
    toolkit = compiler.toolkit() if rows else {}
    return {"sm": sm, "launches": len(calls), "toolkit": toolkit, "kernels": rows}
