"""Memory of the programs of a configuration."""

import math
from dataclasses import dataclass
from typing import Any, cast

import pytest

from app.engine.planning.capacity.configuration import Configuration
from app.engine.planning.capacity.study import Study

OTHERS = 100  # byte of inputs and outputs for each request


@dataclass
class Sized:
    """A program with an arena of so many bytes."""

    arena_bytes: int
    own_bytes: int


def study(arenas: dict[int, int]) -> Study:
    never = cast(Any, None)
    planned = {(1, size): [Sized(nbytes, nbytes + OTHERS * size)] for size, nbytes in arenas.items()}
    return Study(never, {}, never, {1: 2}, math.inf, planned=cast(Any, planned))


@pytest.mark.parametrize(
    ("sizes", "nbytes"),
    [
        ((1,), 1000 + OTHERS),
        ((1, 2), 1000 + 2000 + 3 * OTHERS),
        # Programs of four and two requests use the arena of eight.
        ((1, 2, 4, 8), 1000 + 8000 + 15 * OTHERS),
    ],
)
def test_programs_of_an_instance_share_the_largest_arena(sizes: tuple[int, ...], nbytes: int) -> None:
    known = study({1: 1000, 2: 2000, 8: 8000})
    assert known.own_bytes(Configuration(1, 1, sizes)) == nbytes
    assert known.own_bytes(Configuration(2, 1, sizes)) == 2 * nbytes
    assert known.own_bytes(Configuration(2, 4, sizes)) == 2 * nbytes, "threads share an arena"


def test_a_program_of_several_requests_may_need_no_more_than_that_of_one() -> None:
    assert study({1: 1000, 2: 800}).own_bytes(Configuration(1, 1, (1, 2))) == 1000 + 3 * OTHERS
