"""What is remembered of the steps that were looked at, as a report's `steps` have it."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes longer to import than a small dump to read
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


def seen_of(data: dict[str, Any]) -> dict[str, Any]:
    """What is remembered of a step that was looked at."""
    first, trend = data["first"], data.get("trend") or {}
    value = {name: (trend.get(name) or {}).get("value") for name in ("loss", "gradient_norm")}
    place = {k: first[k] for k in ("rank", "op_name", "exec_order")} if first else None
    return {"step": data["step"], "step_label": data["step_label"], "verdict": data["verdict"], "first": place, **value}


def settled(data: dict[str, Any], seen: list[dict[str, Any]], asked: int) -> dict[str, Any]:
    """The report of the last step that was looked at, with all that were; `asked` is the number that should be."""
    if data["verdict"] == "no_evidence" and any(s["verdict"] == "clean" for s in seen):
        data["verdict"], data["incomplete"] = "clean", True
    data["steps"] = seen
    data["steps_omitted"] = asked - len(seen)
    data["last_good"] = last_good(seen)
    return data


def last_good(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The last clean step in front of the first one with an overflow, or `None`; `steps` as in the JSON contract."""
    bad = next((i for i, s in enumerate(steps) if s["verdict"] == "overflow"), None)
    if bad is None:
        return None
    good = next((s for s in reversed(steps[:bad]) if s["verdict"] == "clean"), None)
    return {k: good[k] for k in ("step", "step_label", "loss", "gradient_norm")} if good else None
