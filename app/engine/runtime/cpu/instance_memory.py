"""Memory and threads of an instance: programs of several shapes, of which one runs at a time."""

from collections.abc import Sequence

from app.engine.runtime.cpu.body_runner import Surroundings
from app.engine.runtime.cpu.memory import aligned
from app.kernels.cpu.runtime.driver import Team

# By which an arena outgrows the one before, whose programs keep it: all together are at most twice the last.
GROWTH = 2


class InstanceMemory:
    """One arena and one team for the programs of an instance.

    No value in an arena outlasts a run: inputs, outputs and weights lie elsewhere.

    Args:
        threads: of every program.
        cores: cores to pin the team to; empty leaves threads where they are.
    """

    def __init__(self, threads: int, cores: Sequence[int]) -> None:
        self._team = Team(threads, cores)
        self._arena = aligned(0)

    def around(self, nbytes: int) -> Surroundings:
        """What a program with an arena of so many bytes runs in."""
        if nbytes > self._arena.size:
            # Pages that no program reaches are not resident.
            self._arena = aligned(max(nbytes, GROWTH * self._arena.size))
        return Surroundings(self._arena, {}, self._team)

    def close(self) -> None:
        """End the threads."""
        self._team.close()
