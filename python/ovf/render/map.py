"""Report -> a map for the terminal: a row a rank (or a group of ranks), a column a part of the execution.

The report's strips are drawn, so the map costs the same for any size of dump. All rows share one axis: the place of an
op in its rank's file. A cell shows the worst state in it; a diamond marks the first overflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.render.line import Line
from ovf.render.words import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ovf.evidence import RankSummary
    from ovf.render.line import Screen
    from ovf.report import Report

_ROWS = 16
_WIDEST = 100
_NARROWEST = 10
_ORDER = " .ugiapoF"
"""States from nothing to the worst; `F` is the first overflow."""
_GLYPHS = {" ": " ", ".": "·", "u": "?", "g": "░", "i": "░", "a": "▒", "p": "█", "o": "▓", "F": "◆"}
_PLAIN = {" ": " ", ".": ".", "u": "?", "g": ":", "i": ":", "a": "+", "p": "#", "o": "O", "F": "X"}
_STYLE = {"u": "dim", "g": "cyan", "i": "cyan", "a": "yellow", "p": "red", "o": "bold red", "F": "bold magenta"}
_WORDS = (
    ("F", "first overflow"),
    ("o", "origin"),
    ("p", "bad"),
    ("a", "absorbed"),
    ("i", "intended"),
    ("g", "never written"),
    ("u", "not judged"),
)


def map_rows(report: Report, screen: Screen) -> Iterator[Line]:
    """The section, when the report holds strips."""
    ranks = [r for r in report.ranks if r.strip]
    first = report.first
    if not ranks or first is None:
        return
    ops = max(r.ops for r in ranks)
    groups = _groups(ranks)
    labels = [_label(g) for g in groups]
    left = max(map(len, labels)) + 4
    width = min(screen.width - left, _WIDEST, ops)
    if width < min(_NARROWEST, ops):
        return
    lines = [_row(g, width, ops, (first.rank, first.exec_order)) for g in groups]
    glyphs = _GLYPHS if screen.is_unicode else _PLAIN
    used = set("".join(lines))
    each = -(-ops // width)
    head = Line("MAP     ", style="bold")
    cell = "an op" if each == 1 else f"up to {plural(each, 'op')}"
    head.append(f"rank by rank, {cell} a cell:", style="dim")
    for state, word in _WORDS:
        if state in used and (state != "g" or "i" not in used):
            head.append(f"  {glyphs[state]}", style=_STYLE[state])
            head.append(f" {word}", style="dim")
    yield head
    for label, line in zip(labels, lines, strict=True):
        text = Line(f"  {label:<{left - 4}}  ")
        for state in line.rstrip():
            text.append(glyphs[state], style=_STYLE.get(state, "dim"))
        yield text


def _groups(ranks: Sequence[RankSummary]) -> list[Sequence[RankSummary]]:
    size = -(-len(ranks) // _ROWS)
    return [ranks[i : i + size] for i in range(0, len(ranks), size)]


def _label(group: Sequence[RankSummary]) -> str:
    return f"rank {group[0].rank}" if len(group) == 1 else f"ranks {group[0].rank}-{group[-1].rank}"


def _row(group: Sequence[RankSummary], width: int, ops: int, first: tuple[int, int]) -> str:
    """The worst state of each column over the ranks of a group."""
    row = [0] * width
    for rank in group:
        strip = rank.strip or ""
        cells = len(strip)
        for column in range(min(width, -(-rank.ops * width // ops))):
            # Cells whose first op lies in the column; where none does, the one that covers it.
            start, end = column * ops // width, (column + 1) * ops // width
            low, high = (-(-min(op, rank.ops) * cells // rank.ops) for op in (start, end))
            if low == high:
                low -= 1
            worst = max(_ORDER.index(state) for state in strip[low:high])
            row[column] = max(row[column], worst)
        if rank.rank == first[0]:
            cell = _part_of(first[1], rank.ops, cells)
            row[_part_of(cell * rank.ops // cells, ops, width)] = _ORDER.index("F")
    return "".join(_ORDER[state] for state in row)


def _part_of(op: int, ops: int, parts: int) -> int:
    """The part that an op falls into, when part `p` begins at op `p * ops // parts`."""
    return ((op + 1) * parts - 1) // ops
