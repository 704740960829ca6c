"""Connections of a busy model are read in turn."""

import asyncio
from collections.abc import Callable

import pytest

from app.serving.scheduling.connection_queue import ConnectionQueue


class Model:
    """A model that four requests may wait for, with connections that note when they are read."""

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        self.connections = ConnectionQueue(4, lambda: self.waiting, seconds=30.0)
        self.read: list[str] = []

    def add(self, *names: str, has_request: bool = True) -> None:
        for name in names:
            self.connections.add(name, self._reader(name, has_request))

    def _reader(self, name: str, has_request: bool) -> Callable[[], None]:
        def read() -> None:
            self.read.append(name)
            if has_request:
                asyncio.get_running_loop().call_soon(self._arrive)

        return read

    def _arrive(self) -> None:
        self.connections.note_arrival()
        self.waiting += 1

    async def answer(self) -> None:
        """One request is answered; what follows of it happens."""
        self.waiting -= 1
        self.connections.call()
        for _ in range(6):
            await asyncio.sleep(0)


@pytest.mark.parametrize("most", [1, 2, 32])
def test_a_model_that_can_take_more_needs_no_turns(most: int) -> None:
    connections = ConnectionQueue(most, lambda: 0, seconds=30.0)
    assert not connections.is_needed


def test_connections_are_read_in_their_order_and_as_many_as_there_is_room_for() -> None:
    async def go() -> None:
        model = Model(waiting=4)
        model.add("a", "b", "c", "d", "e")
        assert model.read == []
        await model.answer()
        assert model.read == [], "three wait, which is enough"
        await model.answer()
        assert (model.read, model.waiting) == (["a"], 3)
        await model.answer()
        await model.answer()
        assert (model.read, model.waiting) == (["a", "b", "c"], 3)
        assert model.connections.is_needed

    asyncio.run(go())


def test_answers_that_come_at_once_call_no_more_than_there_is_room_for() -> None:
    async def go() -> None:
        model = Model(waiting=4)
        model.add(*"abcdefgh")
        for _ in range(4):
            model.waiting -= 1
            model.connections.call()
        assert model.read == ["a", "b", "c"], "none has arrived yet"
        for _ in range(6):
            await asyncio.sleep(0)
        assert (model.read, model.waiting) == (["a", "b", "c"], 3)

    asyncio.run(go())


def test_connections_without_a_request_hold_up_nobody() -> None:
    async def go() -> None:
        model = Model(waiting=3)
        model.add(*"abcdefgh", has_request=False)
        model.add("y", "z")
        await model.answer()
        for _ in range(40):
            await asyncio.sleep(0)
        assert model.read == list("abcdefghy")
        assert model.waiting == 3

    asyncio.run(go())


def test_a_connection_that_was_taken_out_is_not_called() -> None:
    async def go() -> None:
        model = Model(waiting=3)
        model.add("a", "b")
        model.connections.remove("a")
        model.connections.remove("none")
        await model.answer()
        assert model.read == ["b"]
        assert len(model.connections) == 0

    asyncio.run(go())


def test_patience_goes_by_the_shortest_time_limit_of_late() -> None:
    connections = ConnectionQueue(4, lambda: 0, seconds=30.0)
    assert connections.patience == 1.0
    connections.note_limit(0.2)
    assert connections.patience == 0.1
    connections.note_limit(30.0)
    assert 0.1 < connections.patience < 0.2, "others with short limits may follow"
    for _ in range(200):
        connections.note_limit(30.0)
    assert connections.patience == 1.0
