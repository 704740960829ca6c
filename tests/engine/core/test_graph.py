"""Facts about values and nodes."""

import onnx_ir as ir
import pytest

from app.engine.core import graph


def test_operands_are_the_inputs_in_order() -> None:
    a, b = ir.Value(name="a"), ir.Value(name="b")
    assert graph.operands(ir.Node("", "Concat", [a, b, a])) == (a, b, a)


def test_an_omitted_operand_is_named_by_its_position() -> None:
    node = ir.Node("", "Concat", [ir.Value(name="a"), None], name="joined")
    with pytest.raises(ValueError, match="Concat 'joined': expected an input at position 1, found none"):
        graph.operands(node)
