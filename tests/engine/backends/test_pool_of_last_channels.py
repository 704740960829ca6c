"""MaxPool of bytes between transposes: pooled with channels last, and the outputs stay the same."""

from pathlib import Path

import pytest

from app.engine.backends.cpu.rewrites import pool_of_last_channels
from app.engine.core.rewriter import RewriteRule
from tests.engine.canonical import assert_same_outputs, canonical, saved

RULE = RewriteRule(pool_of_last_channels, ("Transpose",), nested=False, backends=("numba-cpu",))
FIRST, LAST = "i = Transpose<perm = [0, 3, 1, 2]>(x)", "y = Transpose<perm = [0, 2, 3, 1]>(p)"


def operators(body: str, kind: str, folder: Path) -> list[str]:
    text = (
        f'<ir_version: 10, opset_import: ["": 21]> g ({kind}[2,8,7,5] x) => ({kind}[a,b,c,d] y) {{ {body} }}'
    )
    path = saved(text, folder, {})
    compilation = canonical(path, rewrites=(RULE,))
    assert_same_outputs(path, compilation)
    return [n.op_type for n in compilation.graph]


@pytest.mark.parametrize("kind", ["uint8", "int8"])
@pytest.mark.parametrize(
    "attributes",
    [
        "", ", strides = [2, 2], pads = [1, 1, 1, 1]", ", strides = [2, 3], ceil_mode = 1",
        ', auto_pad = "SAME_UPPER"', ", dilations = [2, 1], pads = [1, 0, 0, 1]",
    ],
)  # fmt: skip
def test_bytes_are_pooled_as_they_lie(attributes: str, kind: str, tmp_path: Path) -> None:
    body = f"{FIRST} p = MaxPool<kernel_shape = [3, 2]{attributes}>(i) {LAST}"
    assert operators(body, kind, tmp_path) == ["Reshape", "MaxPool", "Reshape"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (f"{FIRST} p = MaxPool<kernel_shape = [3, 2]>(i) {LAST}", "float"),
        (f"{FIRST} p = MaxPool<kernel_shape = [3, 2]>(i) y = Transpose<perm = [0, 3, 2, 1]>(p)", "uint8"),
    ],
)
def test_other_images_keep_their_transposes(body: str, kind: str, tmp_path: Path) -> None:
    assert operators(body, kind, tmp_path) == ["Transpose", "MaxPool", "Transpose"]
