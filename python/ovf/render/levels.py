"""msProbe's levels -> lines for people who know its graph view."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.render.line import Line
from ovf.render.words import number, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ovf.extra import Levels

_SHOWN = 8
_SCENES = {
    "made": "finite in, non-finite out",
    "carried": "non-finite in and out",
    "ended": "non-finite in, finite out",
    "norm_jump": "the norm grew more than 100 times",
}
_STYLE = {"critical": "red", "high": "yellow", "medium": "cyan"}


def levels(found: Levels, *, verbose: bool) -> Iterator[Line]:
    """The section."""
    head = Line("LEVELS  ", style="bold")
    head.append(
        "as msProbe's graph view marks ops one by one (masks included); the answer above does not use them", style="dim"
    )
    yield head
    for count in found.counts:
        line = Line(f"  {count.level:<9}", style=_STYLE.get(count.level, "default"))
        line.append(f"{count.count:>9,}  {_SCENES.get(count.scene, printable(count.scene))}", style="default")
        yield line
    shown = found.ops if verbose else found.ops[:_SHOWN]
    for op in shown:
        line = Line(f"    {op.level:<9}", style=_STYLE.get(op.level, "default"))
        ratio = f"   norm {number(op.norm_ratio)}x" if op.scene == "norm_jump" else ""
        line.append(f"rank {op.rank:<4} {printable(op.op_name)}{ratio}", style="default")
        yield line
    omitted = found.ops_omitted + len(found.ops) - len(shown)
    if omitted:
        yield Line(
            f"    (+{omitted:,} more{', -v' if len(shown) < len(found.ops) else ''}; all of them: ovf export)",
            style="dim",
        )
