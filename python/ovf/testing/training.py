"""A simulated training step: one transformer over a parallel layout, with planted faults.

`Training` describes the step; `simulate` runs all ranks and hands every op to a sink as it
happens, so that a step of any size streams. Values are statistics only: finite ones are drawn,
non-finite ones are carried through each op as the real op would (NaN in, NaN out of a linear;
-inf out of `masked_fill` healed by softmax; a bad contribution spreads over its group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ovf.testing.layout import Layout
from ovf.testing.program import RankProgram
from ovf.testing.rank import Rank
from ovf.testing.step import Level, Op, Origin, Step, Truth
from ovf.testing.world import World

if TYPE_CHECKING:
    from ovf.testing.fault import Fault

Schedule: TypeAlias = Literal["gpipe", "1f1b"]
P2P: TypeAlias = Literal["send", "isend", "batch"]
Sink: TypeAlias = Callable[[Op], None]
"""Takes the ops of one rank, in execution order."""


@dataclass(frozen=True)
class Training:
    """A training step to simulate; the same fields always give the same step.

    Attributes:
        layout: the parallel layout.
        layers: transformer layers over all pipeline stages.
        micro_batches: micro-batches a rank runs in the step.
        schedule: `gpipe` (all forwards, then all backwards) or `1f1b`.
        p2p: how stages talk: `send`/`recv`, `isend`/`irecv` or `batch_isend_irecv`.
        level: `L1` (API calls) or `mix` (modules and parameter gradients too).
        dtype: dtype of activations, weights and gradients; an fp16 sum overflows in `float16`.
        hidden: hidden size, divisible by `tp`.
        sequence: tokens a sequence.
        batch: sequences a micro-batch.
        heads: attention heads, divisible by `tp`.
        vocabulary: size of the vocabulary.
        faults: what goes wrong, none for a clean step.
        warm_up: whether every other tensor-parallel group starts with one more all_reduce, which
            shifts the call numbers of its members against those of other ranks.
        garbage_buffers: whether buffers to receive into are recorded with what they held (as
            older writers did) instead of null.
        numbered_parameters_grad: whether `parameters_grad` names end in a number, as since 2025-12;
            if not, they are recorded once, with the gradients of the whole step.
        number: the number of the step.
        seed: decides every value.
    """

    layout: Layout = field(default_factory=Layout)
    layers: int = 2
    micro_batches: int = 2
    schedule: Schedule = "1f1b"
    p2p: P2P = "send"
    level: Level = "L1"
    dtype: str = "torch.bfloat16"
    hidden: int = 4096
    sequence: int = 2048
    batch: int = 1
    heads: int = 32
    vocabulary: int = 32000
    faults: tuple[Fault, ...] = ()
    warm_up: bool = False
    garbage_buffers: bool = False
    numbered_parameters_grad: bool = True
    number: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check that the step can exist and that each fault has a place in it.

        Raises:
            ValueError: it cannot, or one has not.
        """
        layout = self.layout
        if self.layers < layout.pp:
            raise ValueError(f"{self.layers} layers do not fill {layout.pp} pipeline stages")
        if self.micro_batches < 1:
            raise ValueError("a step has at least one micro-batch")
        if self.hidden % layout.tp or self.heads % layout.tp:
            raise ValueError(f"hidden and heads are multiples of tp={layout.tp}")
        for fault in self.faults:
            self._check(fault)

    def _check(self, fault: Fault) -> None:
        stage = self.layout.place(fault.rank).pp
        missing = {
            "tp_all_reduce": (self.layout.tp == 1 or self.layout.ep > 1) and "tp > 1 and no experts",
            "dp_all_reduce": self.layout.dp == 1 and "dp > 1",
            "expert": self.layout.ep == 1 and "ep > 1",
            "recv": stage == 0 and "a rank of a later stage",
            "batch": stage > 0 and "a rank of the first stage",
        }.get(fault.place)
        if missing:
            raise ValueError(f"a fault at {fault.place} needs {missing}")
        layers = len(self.stage_layers(stage))
        if not -layers <= fault.layer < layers:
            raise ValueError(f"rank {fault.rank} has {layers} layers, none is {fault.layer}")
        if not -self.micro_batches <= fault.micro_batch < self.micro_batches:
            raise ValueError(f"there are {self.micro_batches} micro-batches: {fault.micro_batch}")

    def with_faults(self, faults: Iterable[Fault]) -> Training:
        """Plant other faults in the same step.

        Args:
            faults: the faults, instead of those it has.

        Returns:
            A copy with them.
        """
        return replace(self, faults=tuple(faults))

    def stage_layers(self, stage: int) -> range:
        """Give the layers of a pipeline stage, by their number in the whole model.

        Args:
            stage: the stage, from 0.

        Returns:
            A run of layers; earlier stages take what does not divide evenly.
        """
        each, more = divmod(self.layers, self.layout.pp)
        start = stage * each + min(stage, more)
        return range(start, start + each + (stage < more))

    @property
    def compute_dtype(self) -> str:
        """The dtype in use: a planted overflow of a sum makes the step an fp16 one."""
        sums = {"tp_all_reduce", "dp_all_reduce"}
        planted = any(fault.place in sums for fault in self.faults)
        return "torch.float16" if planted else self.dtype


@dataclass
class _Sighting:
    """One planted fault where it showed: its origins and the vector clocks of each."""

    origins: list[Origin] = field(default_factory=list)
    clocks: list[list[int]] = field(default_factory=list)

    def before(self, other: _Sighting) -> bool:
        return any(
            clock[origin.rank] <= later[origin.rank]
            for origin, clock in zip(self.origins, self.clocks, strict=True)
            for later in other.clocks
        )


def simulate(training: Training, sinks: Mapping[int, Sink]) -> Truth:
    """Run a step, handing each rank's ops to its sink as they happen.

    Args:
        training: the step.
        sinks: takers of ops by rank; the ops of a rank without one are dropped.

    Returns:
        The right answer.
    """
    layout = training.layout
    world = World(layout.ranks, training.seed, track_order=len(training.faults) > 1)
    sightings: dict[Fault, _Sighting] = {}

    def show(fault: Fault, origin: Origin) -> None:
        sighting = sightings.setdefault(fault, _Sighting())
        sighting.origins.append(origin)
        sighting.clocks.append(world.tick(origin.rank))

    ranks = {
        rank: RankProgram(Rank(training, rank, world, sinks.get(rank, _drop), show=show))
        for rank in range(layout.ranks)
    }
    world.run({rank: program.run() for rank, program in ranks.items()})
    for fault, sighting in sightings.items():
        # The struck rank first: it is the one the fault was planted on.
        order = sorted(
            range(len(sighting.origins)),
            key=lambda i: (sighting.origins[i].rank != fault.rank, sighting.origins[i].rank),
        )
        sighting.origins = [sighting.origins[i] for i in order]
        sighting.clocks = [sighting.clocks[i] for i in order]
    return _truth([sightings[fault] for fault in training.faults if fault in sightings])


def _drop(op: Op) -> None:
    """Take an op of a rank that nobody reads."""


def _truth(sightings: list[_Sighting]) -> Truth:
    """Tell the faults that nothing happens before from those that come later."""
    if len(sightings) <= 1:  # one fault needs no order, and has no clocks
        origins = sightings[0].origins if sightings else []
        return Truth(origins[0], tuple(origins[1:])) if origins else Truth()
    first: list[Origin] = []
    later: list[Origin] = []
    for sighting in sightings:
        earlier = any(other is not sighting and other.before(sighting) for other in sightings)
        (later if earlier else first).extend(sighting.origins)
    return Truth(first[0], tuple(first[1:]), tuple(later))


def simulated_step(training: Training) -> Step:
    """Run a step in memory.

    Args:
        training: a small step.

    Returns:
        All ranks' ops and the right answer.
    """
    ranks: dict[int, list[Op]] = {rank: [] for rank in range(training.layout.ranks)}
    truth = simulate(training, {rank: ops.append for rank, ops in ranks.items()})
    return Step(ranks, truth, training.level, training.number, source=training)
