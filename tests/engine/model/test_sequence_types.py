"""Types of sequences and optional values, which the file does not declare, are those of onnxruntime."""

from pathlib import Path

import onnx
import onnxruntime
import pytest

from app.engine.core import graph
from app.engine.model import operand_types
from app.engine.model.load import load
from app.engine.model.shape_inference import inference

OPSET = 19
INPUTS = "float[2, 3] x, double[2, 3] d, int64 i, string[2] s, seq(float[2, 3]) q, seq(string[2]) qs"
BODIES = {
    "empty": "y = SequenceEmpty ()",
    "empty of strings": "y = SequenceEmpty <dtype = 8> ()",
    "construct": "y = SequenceConstruct (x, x)",
    "construct of double": "y = SequenceConstruct (d)",
    "construct of strings": "y = SequenceConstruct (s, s)",
    "insert": "y = SequenceInsert (q, x)",
    "insert into an empty one": "e = SequenceEmpty () y = SequenceInsert (e, x, i)",
    "erase": "y = SequenceErase (q, i)",
    "at": "y = SequenceAt (q, i)",
    "at of strings": "y = SequenceAt (qs, i)",
    "length": "y = SequenceLength (q)",
    "split": "y = SplitToSequence <axis = 1> (x)",
    "split without an axis kept": "y = SplitToSequence <axis = 0, keepdims = 0> (d)",
    "split of strings": "y = SplitToSequence (s)",
    "concat": "y = ConcatFromSequence <axis = 0> (q)",
    "concat along a new axis": "y = ConcatFromSequence <axis = 0, new_axis = 1> (q)",
    "identity": "y = Identity (q)",
    "optional of a tensor": "y = Optional (x)",
    "optional of a sequence": "y = Optional (q)",
    "empty optional": "y = Optional <type = float[2]> ()",
    "empty optional sequence": "y = Optional <type = seq(float[2])> ()",
    "element": "o = Optional (d) y = OptionalGetElement (o)",
    "element that is a sequence": "o = Optional (q) y = OptionalGetElement (o)",
    "element of what is none": "y = OptionalGetElement (x)",
    "has element": "o = Optional (x) y = OptionalHasElement (o)",
    "has element of a sequence": "y = OptionalHasElement (q)",
    "map": "y = SequenceMap <body = b (float[2, 3] a) => (double[2, 3] c) { c = Cast <to = 11> (a) }> (q)",
    "branch": """c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = t () => (seq(float[2, 3]) a) { a = SequenceConstruct (x) },
            else_branch = e () => (seq(float[2, 3]) b) { b = Identity (q) }>""",
    "loop": """c = Constant <value = bool {1}> () n = Constant <value = int64 {2}> ()
        y = Loop (n, c, q) <body = b (int64 k, bool g, seq(float[2, 3]) a) => (bool h, seq(float[2, 3]) r)
            { h = Identity (g) r = SequenceInsert (a, x) }>""",
}


def written(path: Path, body: str) -> Path:
    text = f'<ir_version: 9, opset_import: ["": {OPSET}]> g ({INPUTS}) => (float y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].ClearField("type")
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("name", BODIES)
def test_types_of_sequences_and_optionals_are_told(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", BODIES[name])
    model = load(path).model
    inference.infer(model)
    operand_types.check(model)
    (value,) = model.graph.outputs
    (expected,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).get_outputs()
    assert operand_types.title(value.type) == expected.type
    if expected.type.startswith("tensor") and all(isinstance(d, int) for d in expected.shape):
        assert graph.shape(value) in (None, tuple(expected.shape))


def test_every_operator_on_sequences_and_optionals_is_tried() -> None:
    words = ("Sequence", "Optional")
    found = {s.name for s in onnx.defs.get_all_schemas() if not s.domain and any(w in s.name for w in words)}
    tried = " ".join(BODIES.values())
    assert {op for op in found if op not in tried} == {"ReverseSequence"}  # which is one of tensors
