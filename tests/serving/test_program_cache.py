"""Programs of a deployed model: which are kept, and which are made before a call comes."""

import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from app.serving import program_cache
from app.serving.program_cache import Builder, Built, Programs, key_of


class _Program:
    def __init__(self, *, shares_memory: bool) -> None:
        self.shares_memory = shares_memory
        self.closed = False

    def feed(self, inputs: Mapping[str, object]) -> None:
        """Nothing is computed."""

    def step(self) -> None:
        """Nothing is computed."""

    def peek(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        self.closed = True


def test_programs_that_share_memory_do_not_displace_those_with_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program_cache, "MOST_SHARING", 3)
    programs = Programs(2, lambda ready: ready.programs[0].close())
    made = {}
    for size, sharing in enumerate((False, True, True, False, True, True, False)):
        key = key_of({"x": (size,)})
        made[size] = _Program(shares_memory=sharing)
        programs.keep(key, (made[size],))
    assert [size for size, p in made.items() if p.closed] == [0, 1]
    assert len(programs) == 5
    programs.find(key_of({"x": (2,)}))
    programs.keep(key_of({"x": (9,)}), (_Program(shares_memory=True),))
    assert [size for size, p in made.items() if p.closed] == [0, 1, 4], "2 was used since"


class _Model:
    """A region of four sizes."""

    inputs, outputs, first = (), (), {"x": (4,)}
    fixed: Mapping[str, float] = {}

    def __init__(self, fails: Callable[[int], bool]) -> None:
        self._fails = fails
        self.asked: list[int] = []

    def programs(
        self, shapes: Mapping[str, tuple[int, ...]], cores: Sequence[Sequence[int]]
    ) -> list[_Program]:
        self.asked.append(shapes["x"][0])
        return [_Program(shares_memory=True) for _ in cores]

    def ahead(self) -> Iterator[tuple[dict[str, tuple[int, ...]], list[_Program]]]:
        for size in (3, 2, 1):
            if self._fails(size):
                raise ValueError("no program")
            yield {"x": (size,)}, [_Program(shares_memory=True)]


def _found(builder: Builder, count: int) -> list[Built]:
    found: list[Built] = []
    while len(found) < count:
        assert select.select([builder.ready], [], [], 20)[0], "nothing was built"
        found += builder.built()
    return found


@pytest.mark.parametrize(("fails", "sizes"), [(0, [3, 2, 1]), (2, [3])])
def test_programs_of_a_region_are_made_before_they_are_asked_for(
    fails: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _Model(lambda size: size == fails)
    monkeypatch.setattr(Builder, "_load", lambda _self: model)
    builder = Builder(_config(), ((),))
    assert _found(builder, 1)[0].model is model
    builder.want(key_of({"x": (4,)}))
    built = _found(builder, 1 + len(sizes))
    assert [dict(b.request[0])["x"][0] for b in built if b.request] == [4, *sizes]
    assert [b.early for b in built] == [False, *[True] * len(sizes)]
    assert model.asked == [4]
    builder.want(key_of({"x": (1,)}))
    assert _found(builder, 1)[0].rejection == "", "the builder goes on"


def _config() -> Any:
    class Config:
        build_seconds = 60.0
        memory_bytes = 1 << 30

    return Config()
