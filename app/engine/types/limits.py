"""How large an uploaded model may be, and how much memory there is."""

import os
import resource
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


def memory_bytes() -> int:
    """Bytes that this process may use: the limit of a job, at most the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return physical if limit == resource.RLIM_INFINITY else min(limit, physical)
