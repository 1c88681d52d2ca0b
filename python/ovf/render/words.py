"""Words of screen and page: names, numbers and lists as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANKS_SHOWN = 16
_LONGEST = 400

KINDS = {
    "compute": "computed here",
    "communication": "made by the communication",
    "parameter": "a weight that was bad before",
    "input": "data that entered bad",
    "corruption": "a buffer that changed",
    "missing_rank": "came from a rank without a dump",
}
"""What kind of origin a finding is."""


def printable(text: str) -> str:
    """The text with control characters (and bidirectional overrides) made visible, cut where nobody would read on."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text):,} characters)"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def module_name(name: str) -> str:
    """`layers.0.mlp (MLP)` for `Module.layers.0.mlp.MLP.forward.0`."""
    parts = name.split(".")
    direction_and_number = 2
    if parts[0] not in {"Module", "Cell"} or len(parts) < direction_and_number + 2:
        return name
    *path, kind = parts[1:-direction_and_number]
    return f"{'.'.join(path)} ({kind})" if path else kind


def number(value: float | None) -> str:
    """A statistic in at most nine characters."""
    return "-" if value is None else f"{value:.4g}"


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`; long lists are cut."""
    parts: list[str] = []
    at = 0
    while at < len(ranks):
        end = at
        while end + 1 < len(ranks) and ranks[end + 1] == ranks[end] + 1:
            end += 1
        parts.append(f"{ranks[at]}-{ranks[end]}" if end > at else str(ranks[at]))
        at = end + 1
    shown = ", ".join(parts[:_RANKS_SHOWN]) + (", ..." if len(parts) > _RANKS_SHOWN else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}"


def plural(count: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def bytes_text(count: int) -> str:
    """`6.1 GB`."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:  # noqa: PLR2004 - decimal units
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
