"""The ranks of a simulated step together: who waits for whom, and what each communication gives.

A rank's program is a generator that yields a `Receive` or a `Collective` and is resumed with the
outcome. Sends never wait. The order in which the ranks run does not change what any of them sees.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ovf.testing import values
from ovf.testing.values import TensorStat

if TYPE_CHECKING:
    from random import Random


class Receive(NamedTuple):
    """Wait for the next tensor from a rank.

    Attributes:
        src: the sending rank.
    """

    src: int


class Collective(NamedTuple):
    """Wait for all members of a group.

    Attributes:
        group: the ranks of the group and its identity.
        value: what this member contributes.
        shared: whether every member gets the same tensor (all_reduce) or its own (all_to_all).
        scale: a power of two above the elements of the outcome.
        overflow: whether the sum overflows although every contribution is finite.
    """

    group: tuple[tuple[int, ...], str]
    value: TensorStat
    shared: bool = True
    scale: float = 4.0
    overflow: bool = False


Request: TypeAlias = "Receive | Collective"
Program: TypeAlias = Generator[Request, TensorStat, None]


class World:
    """The shared part of a simulated step.

    Attributes:
        clocks: a vector clock a rank, empty when no order is asked for.
    """

    def __init__(self, ranks: int, seed: int, *, track_order: bool = False) -> None:
        """Start with nothing in flight.

        Args:
            ranks: the number of ranks.
            seed: decides the values that collectives give.
            track_order: whether to keep vector clocks, at a cost a communication of one list.
        """
        self._seed = seed
        self._mail: dict[tuple[int, int], deque[tuple[TensorStat, list[int]]]] = {}
        self._waiting: dict[object, dict[int, Collective]] = {}
        self._rngs: dict[object, Random] = {}
        self.clocks = [[0] * ranks for _ in range(ranks)] if track_order else []

    def send(self, src: int, dst: int, value: TensorStat) -> None:
        """Put a tensor on its way.

        Args:
            src: the sending rank.
            dst: the receiving rank.
            value: the tensor.
        """
        clock = self.tick(src)
        self._mail.setdefault((src, dst), deque()).append((value, clock))

    def tick(self, rank: int) -> list[int]:
        """Count one event of a rank.

        Args:
            rank: where it happens.

        Returns:
            A copy of the rank's vector clock at the event; empty when no order is kept.
        """
        if not self.clocks:
            return []
        self.clocks[rank][rank] += 1
        return list(self.clocks[rank])

    def run(self, programs: Mapping[int, Program]) -> None:
        """Run every rank's program to its end.

        Args:
            programs: the programs by rank.

        Raises:
            RuntimeError: all unfinished programs wait for something that nobody will send.
        """
        ready: deque[tuple[int, TensorStat | None]] = deque((rank, None) for rank in programs)
        receiving: dict[int, int] = {}
        unfinished = set(programs)
        while ready:
            rank, outcome = ready.popleft()
            program = programs[rank]
            while True:
                try:
                    request = program.send(outcome)  # type: ignore[arg-type]  # None starts it
                except StopIteration:
                    unfinished.discard(rank)
                    break
                if isinstance(request, Receive):
                    outcome = self._take(request.src, rank)
                    if outcome is None:
                        receiving[rank] = request.src
                        break
                else:
                    ready.extend(self._join(rank, request))
                    break
            for waiting, src in list(receiving.items()):
                arrived = self._take(src, waiting)
                if arrived is not None:
                    del receiving[waiting]
                    ready.append((waiting, arrived))
        if unfinished:
            raise RuntimeError(f"ranks {sorted(unfinished)} wait for each other")

    def _take(self, src: int, dst: int) -> TensorStat | None:
        mail = self._mail.get((src, dst))
        if not mail:
            return None
        value, clock = mail.popleft()
        self._merge([dst], clock)
        return value

    def _merge(self, ranks: Iterable[int], *clocks: list[int]) -> None:
        if self.clocks:
            for rank in ranks:
                self.clocks[rank] = [max(times) for times in zip(self.clocks[rank], *clocks, strict=True)]

    def _join(self, rank: int, request: Collective) -> list[tuple[int, TensorStat]]:
        """Add a member; when it is the last one, give all members their outcomes."""
        members = request.group[0]
        arrived = self._waiting.setdefault(request.group, {})
        arrived[rank] = request
        if len(arrived) < len(members):
            return []
        del self._waiting[request.group]
        if self.clocks:
            clocks = [self.tick(member) for member in members]
            self._merge(members, *clocks)
        rng = self._rngs.get(request.group)
        if rng is None:
            rng = self._rngs[request.group] = values.seeded(self._seed, request.group)
        outcomes = []
        shared = _outcome(rng, arrived, members[0])
        for member in members:
            value = shared if request.shared else _outcome(rng, arrived, member)
            outcomes.append((member, value))
        return outcomes


def _outcome(rng: Random, arrived: Mapping[int, Collective], member: int) -> TensorStat:
    """Give what a member gets: bad if any contribution is bad, else a fresh finite tensor."""
    request = arrived[member]
    if not request.value.shape:
        # Scalars are few and get compared: they are really summed.
        total = sum(float(item.value.max or 0.0) for item in arrived.values())
        return values.constant(request.value.dtype, (), total)
    fresh = values.draw(
        rng,
        request.value.dtype,
        request.value.shape,
        request.scale,
        requires_grad=request.value.requires_grad,
    )
    bad = [item.value for item in arrived.values() if values.has_non_finite(item.value)]
    if bad:
        highest = [stat.max for stat in bad if stat.max != stat.max or stat.max == values.INF]
        only_inf = len(highest) == len(bad) and all(top == values.INF for top in highest)
        if only_inf:
            return values.overflown(fresh)
        return values.nan(fresh.dtype, fresh.shape, requires_grad=fresh.requires_grad)
    if any(item.overflow for item in arrived.values()):
        return values.overflown(fresh)
    return fresh
