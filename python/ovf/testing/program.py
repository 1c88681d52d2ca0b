"""What one rank does in a step, from the first micro-batch to the update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.testing import values
from ovf.testing.channel import Channel
from ovf.testing.modules import Modules
from ovf.testing.stage import Stage
from ovf.testing.update import Update

if TYPE_CHECKING:
    from ovf.testing.rank import Rank
    from ovf.testing.world import Program


class RankProgram:
    """The order of one rank: the schedule of its micro-batches, then the update."""

    def __init__(self, rank: Rank) -> None:
        """Take what the rank's other parts share.

        Args:
            rank: the rank.
        """
        self.at = rank
        modules = Modules(rank)
        self.channel = Channel(rank)
        self.stage = Stage(rank, modules, self.channel)
        self.update = Update(rank, modules, self.channel)

    def run(self) -> Program:
        """Do the step: micro-batches in the order of the schedule, then the update.

        Yields:
            What this rank waits for.
        """
        yield from self._warm_up()
        if self.at.training.schedule == "gpipe":
            yield from self._gpipe()
        else:
            yield from self._one_forward_one_backward()
        yield from self.update.run()

    def _warm_up(self) -> Program:
        layout = self.at.training.layout
        index = self.at.place.dp + layout.dp * self.at.place.pp
        if self.at.training.warm_up and index % 2 == 0 and layout.tp > 1:
            ones = values.constant("torch.float32", (1,), 1.0)
            yield from self.channel.all_reduce(ones, "tp", "warm_up")

    def _gpipe(self) -> Program:
        batches = range(self.at.training.micro_batches)
        for batch in batches:
            received = yield from self.channel.exchange([], [] if self.at.first else [self.at.before], batch)
            out = yield from self.stage.forward(batch, received)
            if not self.at.last:
                yield from self.channel.exchange([(self.at.after, out)], [])
        for batch in batches:
            received = yield from self.channel.exchange([], [] if self.at.last else [self.at.after])
            grad = yield from self.stage.backward(batch, received)
            if not self.at.first:
                yield from self.channel.exchange([(self.at.before, grad)], [])

    def _one_forward_one_backward(self) -> Program:
        batches = self.at.training.micro_batches
        ahead = min(self.at.training.layout.pp - self.at.place.pp - 1, batches)
        before = [] if self.at.first else [self.at.before]
        after = [] if self.at.last else [self.at.after]
        for batch in range(ahead):
            received = yield from self.channel.exchange([], before, batch)
            out = yield from self.stage.forward(batch, received)
            yield from self.channel.exchange([(peer, out) for peer in after], [])
        received = None
        if ahead < batches:
            received = yield from self.channel.exchange([], before, ahead)
        for batch in range(ahead, batches):
            out = yield from self.stage.forward(batch, received)
            grad_out = yield from self.channel.exchange([(peer, out) for peer in after], after)
            grad = yield from self.stage.backward(batch - ahead, grad_out)
            more = before if batch + 1 < batches else []
            received = yield from self.channel.exchange([(peer, grad) for peer in before], more, batch + 1)
        for batch in range(batches - ahead, batches):
            grad_out = yield from self.channel.exchange([], after)
            grad = yield from self.stage.backward(batch, grad_out)
            yield from self.channel.exchange([(peer, grad) for peer in before], [])
