import onnx_ir as ir

from app.engine.core.plan import Compilation, Subgraph
from app.engine.core.plan_editor import PlanEditor
from tests.engine.plans import compilation_of, values_of

PART = Subgraph(0, "test")
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[4] x) => (float[4] y, float[4] z) {
    y = Relu(x)
    z = Exp(y)
}
"""


def edited(reads: str) -> tuple[Compilation, PlanEditor, ir.Value, ir.Node]:
    """A plan, its editor, a value, and a node that reads the value and is not in the graph."""
    compilation = compilation_of(TEXT)
    compilation = compilation.with_plan(partition=dict.fromkeys(compilation.graph, PART))
    value = values_of(compilation.model)[reads]
    made = ir.Value(name=f"{reads}:same", shape=value.shape, type=value.type)
    node = ir.Node("", "Identity", [value], outputs=[made], name=made.name)
    return compilation, PlanEditor(compilation, "partition", "fusion", "storage", "layout"), value, node


def test_a_node_stands_between_a_writer_and_its_readers():
    before, editor, y, node = edited("y")
    reader = before.plan.groups[1]
    made = editor.insert_between(y, node, [reader], PART)
    after = editor.finish()
    assert [n.op_type for n in after.graph] == ["Relu", "Identity", "Exp"]
    assert [group.inputs for group in after.plan.groups[1:]] == [(y,), (made,)]
    assert list(after.plan.partition) == list(after.plan.fusion) == list(after.graph)
    assert reader.inputs == (y,)  # the plan before is as it was


def test_what_reads_a_graph_input_is_inserted_before_all_nodes():
    before, editor, x, node = edited("x")
    editor.insert_between(x, node, before.plan.groups[:1], PART)
    assert [n.op_type for n in editor.finish().graph] == ["Identity", "Relu", "Exp"]


def test_an_output_keeps_its_name_when_another_value_is_returned():
    _, editor, y, node = edited("y")
    made = editor.insert_between(y, node, part=PART)
    editor.return_instead(y, made, "first")
    assert (y.name, made.name) == ("y:first", "y")
    assert [v.name for v in editor.finish().graph.outputs] == ["y", "z"]
    assert editor.graph.outputs[0] is made
