"""Rules."""
from collections import Counter
import onnx_ir as ir
ROWS = ()
def merge(main: ir.Graph) -> Counter[str]:
    return Counter()
