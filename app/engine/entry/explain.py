"""Plan of a model in this process, with the text of the compilation after every pass.

In a Python prompt:

    import app.engine as stowplan
    plan = stowplan.plan("model.onnx", {"x": (1, 3, 224, 224)})
    print(plan.explain())
    print(plan.explain(after="infer_layouts", diff=True))
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.engine.core.pipeline import Pass
from app.engine.core.plan import Compilation
from app.engine.core.program import Program
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.planning.expansion import expanded
from app.engine.planning.timing_cache import stored
from app.engine.report import text
from app.engine.types.errors import InputError
from app.engine.types.options import Bindings, Options
from app.engine.types.target import Target, host
from app.kernels.cpu.runtime.compiler import Compiler


@dataclass(frozen=True, slots=True)
class Stage:
    """Text of the compilation after a pass; a pass that runs more than once has a stage each time."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A program and the stages that led to it."""

    program: Program
    stages: tuple[Stage, ...] = field(repr=False)

    def explain(self, after: str | None = None, *, diff: bool = False) -> str:
        """Text of the plan: of the last stage, or of the last one of a pass; with `diff`, its changes.

        Raises:
            InputError: no pass of this name ran.
        """
        if after is None:
            return self.changes() if diff else self.stages[-1].text
        at = [i for i, stage in enumerate(self.stages) if stage.name == after]
        if not at:
            names = ", ".join(dict.fromkeys(stage.name for stage in self.stages))
            raise InputError(f"no pass {after!r} ran; these did: {names}", pointer="/after")
        return self.change(at[-1]) if diff else self.stages[at[-1]].text

    def change(self, index: int) -> str:
        """Unified diff between a stage and the one before it."""
        before = self.stages[index - 1].text if index else ""
        return text.difference(before, self.stages[index].text, self.stages[index].name)

    def changes(self) -> str:
        """Diffs of all stages; a pass that changed nothing has a line that says so."""
        found = ((self.stages[i].name, self.change(i)) for i in range(1, len(self.stages)))
        return "\n".join(changed or f"{name}: no change\n" for name, changed in found)

    def dump(self, folder: Path) -> tuple[Path, ...]:
        """Write one file a stage, numbered in order, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for i, stage in enumerate(self.stages):
            paths.append(folder / f"{i:02}-{stage.name}.txt")
            paths[-1].write_text(stage.text, encoding="utf-8")
        return tuple(paths)


def plan(
    path: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | None = None,
    target: Target | None = None,
    *,
    bindings: Bindings | None = None,
    kernels: Path | None = None,
    external: Mapping[str, Path] | None = None,
) -> Planned:
    """Plan a model without running it.

    Args:
        path: an ONNX file or a symbol of MXNet, your own: it is parsed in this process, without confinement.
        shapes: dimensions by input name, beside those of `bindings`.
        options: see Options.
        target: a description of a machine; this one by default.
        bindings: what is known of the inputs.
        kernels: folder of compiled kernels, whose measured times are used; without it times are predicted.
        external: files of external data by the name the model gives them, or the parameters of a symbol.

    Raises:
        EngineError: the model or the request is refused.
    """
    options, target = options or Options(), target or host()
    known = bindings or Bindings()
    dims = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    stages: list[Stage] = []

    def observe(step: Pass, _before: Compilation, after: Compilation) -> None:
        # Passes change the graph of a compilation, so the text of a stage is made at once.
        stages.append(Stage(step.name, text.text(after)))

    bound = replace(known, shapes={**known.shapes, **dims})
    loaded = expanded(load(Path(path), external=external), bound)
    compilation = session.canonical(loaded, target, options, bound, load_registry(), observe=observe)
    if kernels is not None and target == host():
        compiler = Compiler(kernels)
        compilation = session.on_this_machine(replace(compilation, timings=stored(compiler.folder)), compiler)
    program = session.planned(compilation, options, observe=observe)
    return Planned(program, tuple(stages))
