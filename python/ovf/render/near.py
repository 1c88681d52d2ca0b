"""Near misses -> lines for people: where a finite value came close to the end of its dtype, or grew suddenly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.render.line import Line
from ovf.render.words import number, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ovf.extra import NearMiss

_SHOWN = 8


def near(found: Sequence[NearMiss], *, verbose: bool) -> Iterator[Line]:
    """The section."""
    head = Line("NEAR    ", style="bold")
    if not found:
        head.append("no finite value close to the end of its dtype, no sudden growth")
        yield head
        return
    head.append("hints, the nearest first", style="dim")
    yield head
    shown = found if verbose else found[:_SHOWN]
    for miss in shown:
        yield _line(miss)
    if len(found) > len(shown):
        yield Line(f"  (+{len(found) - len(shown)} more, -v)", style="dim")


def _line(miss: NearMiss) -> Line:
    line = Line(f"  rank {miss.rank:<4} {printable(miss.op_name)}   ")
    line.append(f"{printable(miss.slot)} {printable(miss.dtype)} {number(miss.value)}   ", style="default")
    grown = f"{number(miss.growth)}x the largest input" if miss.growth is not None and miss.growth > 1 else ""
    if miss.kind == "limit":
        line.append(f"{miss.share:.0%} of the {printable(miss.dtype)} range", style="yellow")
        line.append(f", {grown}" if grown else "")
    else:
        line.append(f"grew to {grown}", style="yellow")
    if not miss.before_first:
        line.append("   (behind the rank's first bad op)", style="dim")
    return line
