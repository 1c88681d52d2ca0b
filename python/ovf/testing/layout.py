"""Which rank does what: the process groups of a tensor x pipeline x data (x expert) layout."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

from ovf.testing.values import ProcessGroup

Axis: TypeAlias = Literal["tp", "dp", "pp", "ep", "expert_dp", "model", "world"]


class Place(NamedTuple):
    """Where a rank stands in the layout: its index along each axis."""

    tp: int
    dp: int
    pp: int


@dataclass(frozen=True)
class Layout:
    """The sizes of a parallel layout.

    Ranks are numbered as Megatron does: tensor first, then data, then pipeline, so that
    `rank = tp + size_tp * (dp + size_dp * pp)`. Expert groups are runs of `ep` data-parallel ranks.

    Attributes:
        tp: tensor-parallel size.
        pp: pipeline-parallel size, the number of stages.
        dp: data-parallel size.
        ep: expert-parallel size, a divisor of `dp`; 1 for a dense model.
        seed: makes group identities differ between runs.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: a size is below 1, or `ep` does not divide `dp`.
        """
        if min(self.tp, self.pp, self.dp, self.ep) < 1:
            raise ValueError(f"sizes of a layout are at least 1: {self}")
        if self.dp % self.ep:
            raise ValueError(f"ep={self.ep} does not divide dp={self.dp}")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.tp * self.pp * self.dp

    @property
    def name(self) -> str:
        """A short name such as `tp2_pp4_dp2`, of the axes longer than 1."""
        sizes = {"tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep}
        return "_".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "single"

    def place(self, rank: int) -> Place:
        """Give a rank's coordinates.

        Args:
            rank: a global rank.

        Returns:
            Its index along each axis.

        Raises:
            ValueError: there is no such rank.
        """
        if not 0 <= rank < self.ranks:
            raise ValueError(f"rank {rank} is not among the {self.ranks} of {self.name}")
        return Place(
            rank % self.tp,
            rank // self.tp % self.dp,
            rank // (self.tp * self.dp),
        )

    def rank(self, place: Place) -> int:
        """Give the rank at a place; the opposite of `place`."""
        return place.tp + self.tp * (place.dp + self.dp * place.pp)

    def group(self, axis: Axis, rank: int) -> ProcessGroup:
        """Give the process group along an axis that a rank belongs to.

        Args:
            axis: `tp`, `dp`, `pp`; `ep` (the ranks that exchange tokens), `expert_dp` (those that
                hold the same expert), `model` (all that hold one replica), `world`.
            rank: a global rank.

        Returns:
            The group; equal for all its members.
        """
        return self._groups[axis, self._group_key(axis, self.place(rank))]

    def _group_key(self, axis: Axis, at: Place) -> tuple[int, ...]:
        """Give the coordinates that the members of a group share."""
        if axis == "tp":
            return at.dp, at.pp
        if axis == "dp":
            return at.tp, at.pp
        if axis == "pp":
            return at.tp, at.dp
        if axis == "ep":
            return at.tp, at.dp // self.ep, at.pp
        if axis == "expert_dp":
            return at.tp, at.dp % self.ep, at.pp
        return (at.dp,) if axis == "model" else ()

    @cached_property
    def _groups(self) -> dict[tuple[Axis, tuple[int, ...]], ProcessGroup]:
        members: dict[tuple[Axis, tuple[int, ...]], list[int]] = {}
        for rank in range(self.ranks):
            for axis in get_args(Axis):
                key = self._group_key(axis, self.place(rank))
                members.setdefault((axis, key), []).append(rank)
        return {key: ProcessGroup(tuple(ranks), _group_id(self.seed, key[0], ranks)) for key, ranks in members.items()}


def _group_id(seed: int, axis: str, ranks: list[int]) -> str:
    # Two groups of the same members are two groups: the axis is part of the identity.
    return hashlib.sha256(f"{seed} {axis} {ranks}".encode()).hexdigest()[:8]
