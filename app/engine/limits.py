"""How large an uploaded model may be."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a model may be.

    Attributes:
        nbytes: of the file and its external data together.
        nodes: nested graphs and functions included.
        depth: of graphs nested in attributes.
        elements: of one tensor.
    """

    nbytes: int = 2**31 - 1
    nodes: int = 100_000
    depth: int = 16
    elements: int = 2**31 - 1
