"""What goes wrong in a simulated step: one planted fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

if TYPE_CHECKING:
    from ovf.testing.step import Kind

FaultPlace: TypeAlias = Literal[
    "forward",
    "masked_row",
    "corruption",
    "expert",
    "backward",
    "tp_all_reduce",
    "dp_all_reduce",
    "recv",
    "weight",
    "batch",
    "optimizer",
]

PLACES: dict[FaultPlace, str] = {
    "forward": "an exp, log or division between the MLP's layers (which one: by the seed)",
    "masked_row": "softmax over a fully masked row: -inf that was asked for becomes NaN",
    "corruption": "a buffer changes between the op that wrote it and the op that reads it",
    "expert": "an exp inside the rank's MoE expert (needs ep > 1)",
    "backward": "the backward of the MLP's activation",
    "tp_all_reduce": "an fp16 sum over the tensor-parallel group (needs tp > 1 and ep = 1)",
    "dp_all_reduce": "an fp16 sum of one gradient bucket over the data-parallel group (dp > 1)",
    "recv": "the activation a pipeline stage receives, sent finite (needs a stage > 0)",
    "weight": "a weight of the MLP is NaN before the step",
    "batch": "a NaN in the micro-batch (only the first stage reads it)",
    "optimizer": "a division by zero in the update of a layer's MLP weight",
}


_NUMBERS = ("RANK", "MICRO_BATCH", "LAYER")


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Attributes:
        place: where in the step, a key of `PLACES`.
        rank: the global rank it strikes; a group's overflow strikes the group of that rank.
        micro_batch: which micro-batch, counted from 0; negative counts from the last. Ignored by
            `weight`, `dp_all_reduce` and `optimizer`.
        layer: which layer of the rank's own stage, likewise. Ignored by `batch` and `recv`.
    """

    place: FaultPlace
    rank: int = 0
    micro_batch: int = 0
    layer: int = 0

    def __str__(self) -> str:
        """Give the text that `parse` reads."""
        return f"{self.place}:{self.rank}:{self.micro_batch}:{self.layer}"

    @property
    def kind(self) -> Kind:
        """The kind of fault that an analysis should name."""
        if self.place in {"tp_all_reduce", "dp_all_reduce", "recv"}:
            return "communication"
        if self.place == "weight":
            return "parameter"
        if self.place == "batch":
            return "input"
        return "corruption" if self.place == "corruption" else "compute"

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read `PLACE:RANK[:MICRO_BATCH[:LAYER]]`.

        Args:
            text: for example `forward:5:2:0`.

        Returns:
            The fault.

        Raises:
            ValueError: the text has another form.
        """
        place, *numbers = text.split(":")
        if place not in get_args(FaultPlace):
            raise ValueError(f"unknown fault {place!r}: one of {', '.join(PLACES)}")
        if not 1 <= len(numbers) <= len(_NUMBERS):
            raise ValueError(f"expected {place}:RANK[:MICRO_BATCH[:LAYER]], found {text!r}")
        return cls(place, *map(int, numbers))  # type: ignore[arg-type]
