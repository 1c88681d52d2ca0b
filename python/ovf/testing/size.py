"""How large a simulated step gets on disk, and how to make it a given size."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ovf.testing.encoding import Encoder, Encoding
from ovf.testing.training import Training, simulate

if TYPE_CHECKING:
    from ovf.testing.step import Op

# Layers a pipeline stage is given at most before micro-batches are added instead.
_MOST_LAYERS = 24


class _Counter:
    """Counts the ops of one rank and their characters."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self.size = 0
        self.ops = 0

    def __call__(self, op: Op) -> None:
        # A key, its quotes, colon and indentation are about 10 characters beside the name.
        self.size += len(self._encoder.text(op.body, 2)) + len(op.name) + 10
        self.ops += 1


def measure(training: Training, encoding: Encoding | None = None) -> tuple[float, float]:
    """Measure a step without writing it.

    Args:
        training: a step, not too large: it is simulated.
        encoding: the spelling.

    Returns:
        The mean size of `dump.json` in bytes and the mean number of ops, over the ranks.
    """
    encoder = Encoder(encoding or Encoding())
    counters = [_Counter(encoder) for _ in range(training.layout.ranks)]
    simulate(training, dict(enumerate(counters)))
    ranks = len(counters)
    return sum(c.size for c in counters) / ranks, sum(c.ops for c in counters) / ranks


def scaled(
    training: Training,
    *,
    rank_mb: float | None = None,
    ops_per_rank: int | None = None,
    encoding: Encoding | None = None,
) -> Training:
    """Add layers, then micro-batches, until ranks reach a size; never fewer than given.

    Args:
        training: the step to enlarge. Faults stay at the micro-batches and layers they name.
        rank_mb: the mean size of a rank's `dump.json`, in megabytes (10^6 bytes).
        ops_per_rank: the mean number of ops a rank, if no size is given.
        encoding: the spelling the size is meant for.

    Returns:
        The enlarged step.
    """
    if rank_mb is None and ops_per_rank is None:
        return training
    which = 0 if rank_mb is not None else 1
    wanted = rank_mb * 1e6 if rank_mb is not None else float(ops_per_rank or 0)
    stages = training.layout.pp

    def amount(layers: int, batches: int) -> float:
        small = replace(training, layers=layers * stages, micro_batches=batches, faults=())
        return measure(small, encoding)[which]

    # Four small steps tell the shares: of a layer in a micro-batch, of a layer's update, of the
    # ends of a micro-batch (embedding, loss) and of the rest.
    corners = {key: amount(*key) for key in ((1, 1), (2, 1), (1, 2), (2, 2))}
    layer = corners[2, 2] - corners[2, 1] - corners[1, 2] + corners[1, 1]
    update = corners[2, 1] - corners[1, 1] - layer
    ends = corners[1, 2] - corners[1, 1] - layer
    rest = corners[1, 1] - update - ends - layer

    batches = training.micro_batches
    layers = max(training.layers // stages, 1)
    fitting = (wanted - rest - batches * ends) / (update + batches * layer)
    layers = max(layers, min(round(fitting), _MOST_LAYERS))
    batches = max(batches, round((wanted - rest - layers * update) / (ends + layers * layer)))
    return replace(
        training,
        layers=max(layers * stages, training.layers),
        micro_batches=batches,
    )


def percent(text: str, count: int) -> int:
    """Read an index that may be a percentage, such as `50%` of `count`.

    Args:
        text: a whole number or a percentage below 100.
        count: how many there are.

    Returns:
        The index.
    """
    if text.endswith("%"):
        return min(int(float(text[:-1]) / 100 * count), count - 1)
    return int(text)


__all__ = ["measure", "percent", "scaled"]
