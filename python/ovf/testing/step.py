"""The in-memory model of a dumped step: ranks, their ops in order, and what went wrong first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from ovf.testing.damage import Damage
from ovf.testing.encoding import Encoding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ovf.testing.values import Value

Kind: TypeAlias = Literal["compute", "communication", "parameter", "input", "corruption"]
Level: TypeAlias = Literal["L0", "L1", "mix"]


class Op(NamedTuple):
    """One entry of `dump.json`.

    Attributes:
        name: the key, such as `Torch.exp.0.forward`.
        body: the record: `input_args`, `input_kwargs` and `output` of a forward call; `input` and
            `output` of a backward one; names of parameters for `parameters_grad`.
        parent: the module that called it, as `construct.json` tells; None at the top.
        frames: the stack, innermost first, as `stack.json` tells; empty for a backward op.
    """

    name: str
    body: Mapping[str, Value]
    parent: str | None = None
    frames: tuple[str, ...] = ()


class Origin(NamedTuple):
    """An op on a rank that first showed a planted fault.

    Attributes:
        rank: the global rank.
        op: the op's name in that rank's dump.
        kind: what the fault is.
    """

    rank: int
    op: str
    kind: Kind


@dataclass(frozen=True)
class Truth:
    """The right answer for a step.

    Attributes:
        first: the first overflow, None for a clean step.
        also_acceptable: answers as good as `first`: the other members of the same communication
            and faults that no happens-before order puts after it.
        later: planted faults that happen after `first`, with values that were finite on entry.
    """

    first: Origin | None = None
    also_acceptable: tuple[Origin, ...] = ()
    later: tuple[Origin, ...] = ()

    def to_json(self, step: int = 0, *, visible: bool = True, **described: object) -> dict[str, object]:
        """Give the object of a `truth.json`.

        Args:
            step: the number of the step.
            visible: whether the dumps hold `first`'s op: its rank may be missing or cut.
            described: further entries that describe the case, put first.

        Returns:
            The keys `answer`, `rank`, `op`, `kind`, `step`, `visible`, `also_acceptable`, `later`.
        """
        first = self.first
        return {
            **described,
            "answer": "found" if first else "none",
            "rank": first.rank if first else None,
            "op": first.op if first else None,
            "kind": first.kind if first else None,
            "step": step if first else None,
            "visible": visible,
            "also_acceptable": [{"rank": at.rank, "op": at.op} for at in self.also_acceptable],
            "later": [{"rank": at.rank, "op": at.op} for at in self.later],
        }


@dataclass(repr=False)
class Step:
    """A step of some ranks, small enough to hold.

    Attributes:
        ranks: the ops of every dumped rank, in execution order.
        truth: the right answer.
        level: the dump level its headers tell.
        number: the number of the step.
        headers: other header entries, over the defaults.
        encoding: how it is spelled on disk.
        damage: what its folders lack.
        source: what it was made from, which stands for the ops when the step is printed.
    """

    ranks: dict[int, list[Op]]
    truth: Truth = field(default_factory=Truth)
    level: Level = "L1"
    number: int = 0
    headers: Mapping[str, Value] = field(default_factory=dict)
    encoding: Encoding = field(default_factory=Encoding)
    damage: Damage = field(default_factory=Damage)
    source: object = None

    def __repr__(self) -> str:
        """Show what the step was made from, or its ops if they were drawn one by one."""
        made = self.ranks if self.source is None else self.source
        return f"Step({made!r}, {self.truth!r}, {self.encoding!r}, {self.damage!r})"
