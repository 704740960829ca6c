"""Writes the text of a kernel, with its indentation."""

from collections.abc import Iterator
from contextlib import contextmanager


class Source:
    """Lines of a kernel: `s("x = 1")` adds one, `with s.block("if x:")` indents what follows."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0

    def __call__(self, *lines: str) -> None:
        """Add lines."""
        self._lines += ["    " * self._depth + line for line in lines]

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Indent under the header the lines that are added inside."""
        self(header)
        self._depth += 1
        yield
        self._depth -= 1

    @property
    def text(self) -> str:
        """The lines that were added so far."""
        return "\n".join(self._lines) + "\n"


def zeros(count: int) -> tuple[str, str]:
    """Lines that define `zeros`, a tuple of so many: numba takes long for texts that repeat them."""
    return "zero = float32(0)", f"zeros = ({', '.join(['zero'] * count)})"
