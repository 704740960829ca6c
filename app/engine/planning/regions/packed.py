"""Packed weights of the programs of a region: one copy of those that are the same at several shapes."""

from collections.abc import Collection
from dataclasses import replace

import onnx_ir as ir

from app.engine.core.calls import Call, Constant, KernelCall, same
from app.engine.core.group import Group

MIN_SHARED = 4096  # byte of an array from which on it is looked for: tables of sizes differ at every shape
VARIANTS = 4  # arrays of one argument that are kept; a row that cuts its work by the shape packs by the shape


class Packed:
    """Constants by row, call and argument; what is the same as before is taken from there.

    Args:
        varying: constants of the graph that depend on the shape; what is made of them is not shared.
    """

    def __init__(self, varying: Collection[ir.Value] = ()) -> None:
        self._varying = frozenset(varying)
        self._known: dict[tuple[str, str, int, int], list[Constant]] = {}
        self._shared_ids: set[int] = set()

    def has(self, constant: Constant) -> bool:
        """True if programs of several shapes may have a constant, which stays."""
        return id(constant) in self._shared_ids

    def kept(self, group: Group, row: str, index: int, call: Call) -> Call:
        """A call of a row for a group with its constants from earlier shapes, where they are the same."""
        if not isinstance(call, KernelCall) or not self._varying.isdisjoint(group.inputs):
            return call
        arguments = list(call.arguments)
        for at, argument in enumerate(arguments):
            if isinstance(argument, Constant) and _is_large(argument):
                arguments[at] = self._shared((group.name, row, index, at), argument)
        return replace(call, arguments=tuple(arguments))

    def _shared(self, key: tuple[str, str, int, int], constant: Constant) -> Constant:
        found = self._known.setdefault(key, [])
        for known in found:
            if same(known.source, constant.source):
                return known
        if len(found) < VARIANTS:
            found.append(constant)
            self._shared_ids.add(id(constant))
        return constant


def _is_large(constant: Constant) -> bool:
    return callable(constant.source) or constant.source.nbytes >= MIN_SHARED
