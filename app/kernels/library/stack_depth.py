"""Stack that compiled functions take, read from their assembly.

Bounds, not measurements: every reservation of a function counts, and an alignment as its whole size.

Source: System V ABI, AMD64 supplement 1.0, section 3.2.2 (frames and the red zone); Procedure Call Standard
for the Arm 64-bit Architecture (AAPCS64), section 6.4.5.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from app.kernels.library.elf import LinkError

# Instructions that take stack, and the bytes of each.
_Taking: TypeAlias = tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], int]], ...]


class _Architecture(NamedTuple):
    """Instructions of an architecture, as LLVM writes them.

    Attributes:
        taking: those that take stack.
        call: of a function by name, calls in the place of a return included.
        unknown: those whose stack or whose function nothing tells.
        address: bytes that a call leaves.
        red_zone: bytes below the stack pointer that a function without calls may use.
    """

    taking: _Taking
    call: re.Pattern[str]
    unknown: re.Pattern[str]
    address: int
    red_zone: int


def _number(found: re.Match[str]) -> int:
    return int(found[1])


_NAME = r'"?([A-Za-z_][^\s"@]*)"?(?:@PLT)?$'
_ARCHITECTURES: Mapping[str, _Architecture] = {
    "x86_64": _Architecture(
        (
            (re.compile(r"pushq?\s"), lambda _: 8),
            (re.compile(r"subq\s+\$(\d+), %rsp"), _number),
            (re.compile(r"addq\s+\$-(\d+), %rsp"), _number),
            (re.compile(r"andq\s+\$-(\d+), %rsp"), _number),
        ),
        re.compile(r"(?:callq?|jmpq?)\s+" + _NAME),
        re.compile(r"callq?\s+\*|subq\s+%\w+, %rsp|jmpq?\s+\*[^%]"),
        address=8,
        red_zone=128,
    ),
    "aarch64": _Architecture(
        (
            (
                re.compile(r"sub\s+sp, sp, #(\d+)(, lsl #12)?"),
                lambda found: int(found[1]) << (12 if found[2] else 0),
            ),
            (re.compile(r"\w+\s.*\[sp, #-(\d+)\]!"), _number),
            (re.compile(r"and\s+sp, \w+, #0x([0-9a-f]{16})"), lambda found: (1 << 64) - int(found[1], 16)),
        ),
        re.compile(r"bl?\s+" + _NAME),
        re.compile(r"blr\s|sub\s+sp, \w+, [wx]\d"),
        address=0,
        red_zone=0,
    ),
}


class StackUse(NamedTuple):
    """Stack of a function and of those of its module that it calls, at most.

    Attributes:
        own: bytes.
        calls: bytes in use where a function of another module is called, by its name.
    """

    own: int
    calls: Mapping[str, int]


def stack_use(assembly: str, entry: str, architecture: str) -> StackUse:
    """Stack of a function of a module.

    Raises:
        LinkError: its depth is not fixed: it calls itself, or by address, or takes stack by a variable.
    """
    row = _ARCHITECTURES[architecture]
    lines: dict[str, list[str]] = {}
    for line in assembly.splitlines():
        if found := re.match(r'"?([A-Za-z_][^\s":]*)"?:', line):
            lines[found[1]] = body = []
        elif lines and line.startswith("\t") and not line.startswith("\t."):
            body.append(line.strip())
    return _Module(lines, row).use(entry, ())


class _Module:
    def __init__(self, lines: Mapping[str, list[str]], row: _Architecture) -> None:
        self._lines, self._row = lines, row
        self._found: dict[str, StackUse] = {}

    def use(self, name: str, callers: tuple[str, ...]) -> StackUse:
        if name in callers:
            raise LinkError(f"function {name!r} calls itself; the depth of its stack is not known")
        if name not in self._found:
            self._found[name] = self._use(name, (*callers, name))
        return self._found[name]

    def _use(self, name: str, callers: tuple[str, ...]) -> StackUse:
        frame, called = 0, set[str]()
        for line in self._lines[name]:
            if self._row.unknown.match(line):
                raise LinkError(f"function {name!r}: the depth of its stack is not known ({line})")
            frame += next((size(m) for p, size in self._row.taking if (m := p.match(line))), 0)
            if found := self._row.call.match(line):
                called.add(found[1])
        own = frame if called else frame + self._row.red_zone
        calls: dict[str, int] = {}
        at = frame + self._row.address
        for callee in sorted(called):
            if callee not in self._lines:
                calls[callee] = max(calls.get(callee, 0), at)
                continue
            inner = self.use(callee, callers)
            own = max(own, at + inner.own)
            for further, depth in inner.calls.items():
                calls[further] = max(calls.get(further, 0), at + depth)
        return StackUse(max(own, at if called else 0), calls)


def deepest(uses: Mapping[str, StackUse], entry: str) -> int:
    """Bytes of stack of a function and all that it calls, at most; those that are not in `uses` take none.

    Raises:
        LinkError: functions call each other in a circle.
    """
    found: dict[str, int] = {}

    def depth(name: str, callers: tuple[str, ...]) -> int:
        if name in callers:
            raise LinkError(f"function {name!r} calls itself; the depth of its stack is not known")
        if name not in uses:
            return 0
        if name not in found:
            use = uses[name]
            inner = (at + depth(callee, (*callers, name)) for callee, at in use.calls.items())
            found[name] = max(use.own, *inner) if use.calls else use.own
        return found[name]

    return depth(entry, ())
