"""Einsum as diagonals, sums and products, against NumPy in float64."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.backends.cpu.einsum import parsed
from app.engine.types.target import find
from app.kernels.cpu.runtime.compiler import Compiler
from tests.session import on_own_kernels

SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "i": 6, "j": 7, "k": 3}
# Equations, with the shapes that a letter alone does not tell.
EQUATIONS: list[tuple[str, tuple[tuple[int, ...], ...] | None]] = [
    ("ij->ji", None),
    ("ij->i", None),
    ("ij->", None),
    ("ij", None),
    ("ba", None),
    ("->", ((),)),
    (",->", ((), ())),
    (",i->i", ((), (6,))),
    ("i,i", None),
    ("i,j->ji", None),
    ("ij,jk", None),
    ("bij, bjk -> bik", None),
    ("bij,bkj->bki", None),
    ("aij,bjk->abik", None),
    ("aib,bjc->acji", None),
    ("ii->i", ((6, 6),)),
    ("ii", ((6, 6),)),
    ("iji->j", ((6, 7, 6),)),
    ("iii->i", ((4, 4, 4),)),
    ("...ii ->...i", ((3, 5, 5),)),
    ("...ii,...i->...", ((2, 3, 5, 5), (1, 3, 5))),
    ("...ij,...jk->...ik", ((2, 1, 6, 7), (1, 4, 7, 3))),
    ("...ij,jk", ((2, 6, 7), (7, 3))),
    ("i...->...", ((3, 4, 5),)),
    ("ab,bc,cd->ad", None),
    ("ab,ab,ab->ab", None),
    ("ab,bc,ac->b", None),
    ("a,b,c->cab", None),
    ("aij,bj->ab", None),
]


@pytest.mark.parametrize("machine", ["host", "cpu-avx2"])
@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_equations(
    compiler: Compiler,
    tmp_path: Path,
    equation: str,
    shapes: tuple[tuple[int, ...], ...] | None,
    dtype: type,
    machine: str,
) -> None:
    terms = equation.replace(" ", "").split("->")[0].split(",")
    given = shapes or tuple(tuple(SIZES[c] for c in t) for t in terms)
    random = np.random.default_rng(6)
    arrays = [random.integers(-4, 5, s).astype(dtype) for s in given]
    kind = {np.float64: "double", np.float32: "float", np.int64: "int64"}[dtype]
    declared = ", ".join(
        f"{kind}{f'[{chr(44).join(map(str, s))}]' if s else ''} x{i}" for i, s in enumerate(given)
    )
    text = f"""<ir_version: 10, opset_import: ["": 21]> g ({declared}) => ({kind} y) {{
        y = Einsum <equation = "{equation}"> ({", ".join(f"x{i}" for i in range(len(given)))}) }}"""
    session = on_own_kernels(compiler, tmp_path, text, None if machine == "host" else find(machine))
    found = session.run({f"x{i}": a for i, a in enumerate(arrays)})["y"]
    session.close()
    expected = np.einsum(equation.replace(" ", ""), *(a.astype(np.float64) for a in arrays))
    np.testing.assert_array_equal(found, expected.astype(dtype))  # sums of small integers are exact
    assert isinstance(found, np.ndarray)
    assert found.dtype == dtype


def test_labels_of_an_ellipsis_count_from_the_right() -> None:
    assert parsed("...ij,j...->...", [4, 2]) == (
        [("...1", "...0", "i", "j"), ("j", "...0")],
        ("...1", "...0"),
    )
    assert parsed("b...a", [3]) == ([("b", "...0", "a")], ("...0", "a", "b"))
