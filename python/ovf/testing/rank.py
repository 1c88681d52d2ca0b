"""One rank of a simulated step: where it stands, what strikes it, what its values are."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias

from ovf.testing import values
from ovf.testing.recorder import Recorder
from ovf.testing.step import Op, Origin
from ovf.testing.values import TensorStat
from ovf.testing.world import Request, World

if TYPE_CHECKING:
    from ovf.testing.fault import Fault, FaultPlace
    from ovf.testing.layout import Axis
    from ovf.testing.training import Training

Compute: TypeAlias = Generator[Request, TensorStat, TensorStat]
"""Work that may wait for other ranks and gives a tensor."""

GRAD_SCALE = 2.0**-5


def is_bad(stat: TensorStat) -> bool:
    """Tell whether a tensor with numeric statistics holds a NaN or an infinity.

    Args:
        stat: the statistics.

    Returns:
        What `has_non_finite` says, faster.
    """
    high, low = stat[2], stat[3]
    return high - high != 0 or low - low != 0  # type: ignore[operator]  # NaN and Inf only


class Rank:
    """What the parts of one rank's program share.

    Attributes:
        training: the step.
        rank: the global rank.
        place: where it stands in the layout.
        first: whether it belongs to the first pipeline stage; `last` likewise.
        before: the rank that sends activations to this one.
        after: the rank that takes this one's activations.
        layers: the layers of its stage.
        dtype: the dtype of its tensors.
        hidden: the shape of activations, `[batch, sequence, hidden]`.
        record: takes its calls.
        world: the other ranks.
        rng: the source of its values.
    """

    def __init__(
        self,
        training: Training,
        rank: int,
        world: World,
        sink: Callable[[Op], None],
        *,
        show: Callable[[Fault, Origin], None],
    ) -> None:
        """Find out where the rank stands and which faults strike it.

        Args:
            training: the step.
            rank: the global rank.
            world: the other ranks.
            sink: takes this rank's ops.
            show: is told where a planted fault showed.
        """
        self.training = training
        self.rank = rank
        self.world = world
        self.rng = values.seeded(training.seed, rank)
        self._show = show
        layout = training.layout
        self.place = layout.place(rank)
        self.first = self.place.pp == 0
        self.last = self.place.pp == layout.pp - 1
        stride = layout.tp * layout.dp
        self.before, self.after = rank - stride, rank + stride
        self.layers = len(training.stage_layers(self.place.pp))
        self.dtype = training.compute_dtype
        self.hidden = (training.batch, training.sequence, training.hidden)
        self.record = Recorder(
            sink,
            training.level,
            numbered_parameters_grad=training.numbered_parameters_grad,
        )
        self._due = self._faults_due()

    def _faults_due(self) -> dict[tuple[FaultPlace, int, int], Fault]:
        """Find the faults that strike this rank, by place, micro-batch and layer."""
        training, layout = self.training, self.training.layout
        due: dict[tuple[FaultPlace, int, int], Fault] = {}
        for fault in training.faults:
            axis: Axis | None = {"tp_all_reduce": "tp", "dp_all_reduce": "dp"}.get(fault.place)  # type: ignore[assignment]
            here = layout.group(axis, fault.rank).ranks if axis else (fault.rank,)
            if self.rank not in here:
                continue
            micro_batch = fault.micro_batch % training.micro_batches
            layer = fault.layer % self.layers
            if fault.place in {"weight", "dp_all_reduce", "optimizer"}:
                micro_batch = 0
            if fault.place in {"batch", "recv"}:
                layer = 0
            place: FaultPlace = "forward" if fault.place == "expert" else fault.place
            due[place, micro_batch, layer] = fault
        return due

    def fault(self, place: FaultPlace, micro_batch: int = 0, layer: int = 0) -> Fault | None:
        """Give the fault that strikes this rank somewhere.

        Args:
            place: where in the step.
            micro_batch: which micro-batch, from 0.
            layer: which layer of the stage, from 0.

        Returns:
            The fault, if one is planted there.
        """
        return self._due.get((place, micro_batch, layer)) if self._due else None

    def show_next(self, fault: Fault, api: str) -> None:
        """Tell that the next call of an API is where a fault shows.

        Args:
            fault: the fault.
            api: prefix and function, such as `Torch.exp`.
        """
        self.show_at(fault, self.record.next_name(api))

    def show_at(self, fault: Fault, op: str) -> None:
        """Tell which op shows a fault.

        Args:
            fault: the fault.
            op: the op's name.
        """
        self._show(fault, Origin(self.rank, op, fault.kind))

    def draw(self, shape: tuple[int, ...], *inputs: TensorStat, scale: float = 4.0) -> TensorStat:
        """Give the outcome of an op that mixes elements.

        Args:
            shape: the shape of the outcome.
            inputs: what is mixed.
            scale: a power of two above the elements of a finite outcome.

        Returns:
            NaN if any input is bad, fresh finite statistics otherwise.
        """
        for stat in inputs:
            if is_bad(stat):
                return values.nan(self.dtype, shape)
        return values.draw(self.rng, self.dtype, shape, scale)

    def grad(self, shape: tuple[int, ...], *inputs: TensorStat) -> TensorStat:
        """Do as `draw`, on the scale of gradients.

        Args:
            shape: the shape of the gradient.
            inputs: what it is computed from.

        Returns:
            The gradient.
        """
        return self.draw(shape, *inputs, scale=GRAD_SCALE)

    def sum(self, left: TensorStat, right: TensorStat) -> TensorStat:
        """Give left + right.

        Args:
            left: a tensor.
            right: one of the same shape.

        Returns:
            +Inf stays +Inf beside finite numbers, all else that is bad becomes NaN.
        """
        total = self.draw(left.shape)
        bad = [stat for stat in (left, right) if is_bad(stat)]
        if not bad:
            return total
        if len(bad) == 1 and bad[0].max == values.INF and not values.is_non_finite(bad[0].min):
            return values.overflown(total)
        return values.nan(self.dtype, left.shape)
