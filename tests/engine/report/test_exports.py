"""Files of a job: a plan without blocked tensors is one file, which a later attempt leaves alone."""

from pathlib import Path

import onnx
import onnx.parser

from app.engine.core.plan import Compilation
from app.engine.core.registry import load as load_registry
from app.engine.model.load import load
from app.engine.planning import session
from app.engine.report.exports import Exported, write_plain, write_plan
from app.engine.types.options import Bindings, Options
from app.engine.types.target import host
from tests.engine.passes.streams.chains import OPTIONS, inverted_residuals

TEXT = """<ir_version: 10, opset_import: ["": 21]>
    net (float[4, 6] x) => (float[4, 6] y) { a = Sigmoid(x) y = Mul(a, x) }"""


def planned(path: Path, options: Options) -> Compilation:
    graph = session.canonical(load(path), host(), options, Bindings(), load_registry())
    return session.planned(graph, options).compilation


def plain_of(path: Path, folder: Path) -> Exported:
    return write_plain(load(path).model, folder, Options())


def test_a_plan_of_plain_tensors_is_one_file_that_later_attempts_do_not_write(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    plain = plain_of(path, tmp_path)
    before = plain.path.read_bytes()
    for _ in range(2):
        found = write_plan(planned(path, Options()), plain)
        assert {export.path.stat().st_ino for export in found.values()} == {plain.path.stat().st_ino}
        assert len({export.path for export in found.values()}) == 3
    blocked = write_plan(planned(inverted_residuals(1).save(tmp_path), OPTIONS), plain)
    assert len({export.path.stat().st_ino for export in blocked.values()}) == 3
    assert plain.path.read_bytes() == before
