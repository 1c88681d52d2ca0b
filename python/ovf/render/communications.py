"""Communications -> a table for people: who sent something bad, who got it, who has nothing bad."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from ovf.render.words import printable, ranks_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ovf.spread import Communication


def communications_table(communications: Sequence[Communication]) -> Table:
    """Source, propagated and normal ranks of each communication."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("communication", "members", "source", "propagated", "normal", "unmatched", "verdict"):
        table.add_column(title, overflow="fold")
    for c in communications:
        members = Text(printable(_members(c)))
        lost = (*c.missing_ranks, *c.unmatched_ranks)
        row = (c.source_ranks, c.propagated_ranks, c.normal_ranks, tuple(sorted(lost)))
        cells = [_cell(ranks) for ranks in row]
        style = "red" if c.verdict in {"overflow", "origin", "entered"} else None
        table.add_row(Text(printable(c.op_name)), members, *cells, Text(c.verdict), style=style)
    return table


def _members(c: Communication) -> str:
    """`2 -> 4` for a pair, the ranks of a group with its id otherwise."""
    pair = 2
    if c.api in {"send", "isend", "recv", "irecv"} and len(c.members) == pair:
        return f"{c.members[0].rank} -> {c.members[1].rank}"
    ranks = ranks_text(sorted(m.rank for m in c.members)).split(" ", 1)[1]
    return f"{ranks} ({c.group_id})" if c.group_id else ranks


def _cell(ranks: Sequence[int]) -> Text:
    return Text(ranks_text(ranks).split(" ", 1)[1] if ranks else "-")
