"""The steps of a dump root side by side: frozen tuples with names, views of what `ovf steps --json` prints (see docs/report.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reading(NamedTuple):
    """A number that people follow from step to step.

    Attributes:
        value: Loss: the mean over micro batches and ranks. Gradient norm: the largest over ranks.
        count: Numbers it was made of.
        rank, op_name, exec_order: The first op whose number is not finite, else the first; `op_name` is `None` where
            the number is computed from the gradients of the weights.
    """

    value: float
    count: int  # type: ignore[assignment]  # a field that a tuple has as a method
    rank: int
    op_name: str | None
    exec_order: int | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Reading | None:
        """From the JSON contract."""
        if data is None:
            return None
        return cls(float(data["value"]), data["count"], data["rank"], data["op_name"], data["exec_order"])


class FirstSummary(NamedTuple):
    """The first overflow of a step in short; the fields of a `Finding`."""

    rank: int
    op_name: str
    exec_order: int
    kind: str
    certainty: str
    severity: str
    module: str | None


class StepSummary(NamedTuple):
    """One step in short.

    Attributes:
        step: Step number, `None` when the path names no step.
        step_label: Folder of the step below the path that was given.
        verdict: `overflow`, `clean` or `no_evidence`.
        incomplete: Whether evidence is missing.
        first: The first overflow, or `None`.
        findings: Number of origins.
        ranks: Ranks with a readable dump.
        ranks_reached: Ranks the first overflow reaches.
        ops: Ops over all ranks.
        loss, gradient_norm: Numbers to follow, or `None` where the dump has none.
    """

    step: int | None
    step_label: str
    verdict: Literal["overflow", "clean", "no_evidence"]
    incomplete: bool
    first: FirstSummary | None
    findings: int
    ranks: int
    ranks_reached: int
    ops: int
    loss: Reading | None
    gradient_norm: Reading | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepSummary:
        """From the JSON contract."""
        made = {
            "first": FirstSummary(**data["first"]) if data["first"] else None,
            "loss": Reading.from_json(data["loss"]),
            "gradient_norm": Reading.from_json(data["gradient_norm"]),
        }
        return cls(**{**data, **made})
