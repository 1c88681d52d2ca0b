"""How one rank talks to others: collectives, and sends and receives between stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.testing import values
from ovf.testing.rank import Compute, Rank, is_bad
from ovf.testing.values import P2POp, Scalar, TensorStat, Value
from ovf.testing.world import Collective, Receive, Request

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from ovf.testing.fault import Fault
    from ovf.testing.layout import Axis


class Channel:
    """Communicates and records it: the outcome of a call is known before its record is written."""

    def __init__(self, rank: Rank) -> None:
        """Take what the rank's other parts share.

        Args:
            rank: the rank.
        """
        self.at = rank

    def _group_kwargs(self, axis: Axis) -> tuple[dict[str, Value], list[Value]]:
        """Give the group argument and its copy among the outputs; none for the default group."""
        group = self.at.training.layout.group(axis, self.at.rank)
        if axis != "tp" and len(group.ranks) == self.at.training.layout.ranks:
            return {}, []
        return {"group": group}, [group]

    def all_reduce(
        self,
        value: TensorStat,
        axis: Axis,
        site: str,
        fault: Fault | None = None,
        scale: float = 4.0,
    ) -> Compute:
        """Sum a tensor over a group.

        Args:
            value: what this rank contributes.
            axis: the group.
            site: the place in the user's code.
            fault: makes the sum overflow.
            scale: a power of two above the elements of a finite sum.

        Returns:
            The sum, the same on every member.
        """
        group = self.at.training.layout.group(axis, self.at.rank)
        outcome = yield Collective((group.ranks, group.group_id), value, scale=scale, overflow=fault is not None)
        if fault and not is_bad(value) and outcome.max == values.INF:
            self.at.show_next(fault, "Distributed.all_reduce")
        kwargs, copy = self._group_kwargs(axis)
        self.at.record.call("Distributed.all_reduce", site, [value], [outcome, *copy], kwargs)
        return outcome

    def tp_reduce(self, value: TensorStat, fault: Fault | None = None, scale: float = 4.0) -> Compute:
        """Sum a tensor over the tensor-parallel group, if there is one.

        Args:
            value: what this rank contributes.
            fault: makes the sum overflow.
            scale: a power of two above the elements of a finite sum.

        Returns:
            The sum; without tensor parallelism the tensor itself.
        """
        if self.at.training.layout.tp == 1:
            return value
        return (yield from self.all_reduce(value, "tp", "tp_reduce", fault, scale))

    def all_to_all(self, value: TensorStat, scale: float = 4.0) -> Compute:
        """Exchange tokens with the expert group.

        Args:
            value: the tokens to send, `[experts, capacity, hidden]`.
            scale: a power of two above the elements of what comes back.

        Returns:
            The tokens received, of the same shape.
        """
        group = self.at.training.layout.group("ep", self.at.rank)
        outcome = yield Collective((group.ranks, group.group_id), value, shared=False, scale=scale)
        kwargs, copy = self._group_kwargs("ep")
        self.at.record.call(
            "Distributed.all_to_all_single",
            "tokens",
            [self._buffer(value.shape), value],
            [outcome, value, *copy],
            kwargs,
        )
        return outcome

    def _buffer(self, shape: tuple[int, ...]) -> TensorStat | None:
        """Give what a buffer to receive into is recorded as."""
        return self._garbage(shape) if self.at.training.garbage_buffers else None

    def _garbage(self, shape: tuple[int, ...]) -> TensorStat:
        choice = self.at.rng.randrange(3)
        if choice == 0:
            return values.nan(self.at.dtype, shape, requires_grad=False)
        scale = 2.0**15 if choice == 1 else 2.0**-14
        return values.draw(self.at.rng, self.at.dtype, shape, scale, requires_grad=False)

    def exchange(
        self,
        sends: Sequence[tuple[int, TensorStat]],
        sources: Sequence[int],
        micro_batch: int | None = None,
    ) -> Generator[Request, TensorStat, TensorStat | None]:
        """Send to and receive from neighbouring stages.

        Args:
            sends: peers and tensors.
            sources: peers to receive from, at most one.
            micro_batch: which activation is received; None for a gradient.

        Returns:
            What was received, None if nothing was to be.
        """
        for peer, value in sends:
            self.at.world.send(self.at.rank, peer, value)
        mode = self.at.training.p2p
        if mode != "batch":
            for peer, value in sends:
                to = Scalar("int", peer)
                kept = value if mode == "send" else None
                self.at.record.call(f"Distributed.{mode}", "send", [value, to], [kept, to])
        received: TensorStat | None = None
        api = {"send": "recv", "isend": "irecv", "batch": "batch_isend_irecv"}[mode]
        for source in sources:
            received = yield Receive(source)
            fault = None if micro_batch is None else self.at.fault("recv", micro_batch)
            if fault and not is_bad(received):
                received = values.nan(received.dtype, received.shape)
                self.at.show_next(fault, f"Distributed.{api}")
            if mode != "batch":
                peer_arg = Scalar("int", source)
                self.at.record.call(
                    f"Distributed.{api}",
                    "recv",
                    [self._buffer(self.at.hidden), peer_arg],
                    [received, peer_arg],
                )
        if mode == "batch" and (sends or sources):
            group = self.at.training.layout.group("world", self.at.rank).group_id
            sent = [P2POp("isend", peer, value, group) for peer, value in sends]
            before = [P2POp("irecv", peer, self._garbage(self.at.hidden), group) for peer in sources]
            after = [P2POp("irecv", peer, received, group) for peer in sources]
            self.at.record.call("Distributed.batch_isend_irecv", "exchange", [[*sent, *before]], [[*sent, *after]])
        return received
