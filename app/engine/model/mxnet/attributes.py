"""Attributes of MXNet's nodes: all are text, read here as the kinds that operators expect."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from app.engine.model.mxnet.params_file import DTYPES
from app.engine.types.errors import GraphError

T = TypeVar("T")

# Attributes of training or of devices, which change no value of an inference.
_WITHOUT_EFFECT = """cudnn_off cudnn_tune workspace momentum num_args ctx grad_scale out_grad normalization
ignore_label use_ignore smooth_alpha valid_thresh sparse_grad lr_mult wd_mult force_mirroring name lower_bound
upper_bound infer_range forward_stype is_int lstm_state_clip_nan mirror_stage"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split())
_TRUE, _FALSE = ("True", "true", "1"), ("False", "false", "0")
_MOST = 64  # entries of a list
_NUMBER = re.compile(r"-?\d{1,18}L?")


@dataclass(slots=True)
class Attributes:
    """Attributes of one node; `title` is its name in errors, `read` which were asked for."""

    values: Mapping[str, str]
    title: str
    read: set[str] = field(default_factory=set)

    def error(self, name: str, expected: str) -> GraphError:
        """An error of an attribute."""
        return GraphError(f"{self.title}: {name}={self.values.get(name)!r}; expected {expected}")

    def text(self, name: str, default: str, allowed: Collection[str] = ()) -> str:
        """A word, one of those allowed."""
        self.read.add(name)
        found = self.values.get(name, default)
        if allowed and found not in allowed:
            raise self.error(name, f"one of {', '.join(sorted(allowed))}")
        return found

    def given(self, name: str) -> bool:
        """True if it is given and is not None."""
        return self.text(name, "None") not in ("None", "")

    def flag(self, name: str, default: bool = False) -> bool:
        """True or False."""
        return self.text(name, str(default), (*_TRUE, *_FALSE)) in _TRUE

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number.

        Raises:
            GraphError: it is none, or is absent where there is no default.
        """
        found = self.integers(name, None if default is None else (default,))
        if len(found) != 1 or found[0] is None:
            raise self.error(name, "a whole number")
        return found[0]

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        try:
            return float(self.text(name, "" if default is None else str(default)))
        except ValueError:
            raise self.error(name, "a number") from None

    def optional(self, name: str) -> int | None:
        """A whole number, or None."""
        return self.integer(name) if self.given(name) else None

    def integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """Whole numbers in parentheses or brackets, or one without."""
        found = self.some_integers(name, default)
        if any(n is None for n in found):
            raise self.error(name, "whole numbers")
        return tuple(n for n in found if n is not None)

    def some_integers(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int | None, ...]:
        """Whole numbers, or None in the place of some."""
        if default is not None and not self.given(name):
            return default
        parts = [p.strip() for p in self.text(name, "?").strip().strip("()[]").split(",")]
        parts = [p for p in parts if p]
        if len(parts) > _MOST or not all(p == "None" or _NUMBER.fullmatch(p) for p in parts):
            raise self.error(name, "whole numbers such as (1, 2)")
        return tuple(None if p == "None" else int(p.rstrip("L")) for p in parts)

    def dtype(self, name: str, default: str | None) -> np.dtype[Any] | None:
        """An element type, by its name or by MXNet's number."""
        found = self.text(name, str(default))
        if found in ("None", "-1"):
            return None
        if found.isdecimal() and int(found) in DTYPES:
            return DTYPES[int(found)]
        names = {str(d): d for d in DTYPES.values()}
        if found not in names:
            raise self.error(name, f"one of {', '.join(names)}")
        return names[found]

    def check_read(self) -> None:
        """Refuse attributes that nothing read: they might change the result.

        Raises:
            GraphError: names them.
        """
        left = [
            n for n in self.values if n not in self.read and n not in WITHOUT_EFFECT and not n.startswith("_")
        ]
        left = sorted(n for n in self.values if n not in self.read and not _is_known(n))
        if left:
            known = ", ".join(sorted(self.read)) or "none"
            raise GraphError(f"{self.title}: attributes {', '.join(left)} are not known; expected {known}")


def _is_known(name: str) -> bool:
    """True for attributes that change no value of an inference."""
    return name in WITHOUT_EFFECT or name.startswith("_") or name.endswith(("_lr_mult", "_wd_mult", "_init"))
