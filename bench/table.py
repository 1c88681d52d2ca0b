"""Results as rows, JSON and Markdown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A contender on a step.

    Attributes:
        scenario: the table it belongs to.
        step: the name of the step.
        contender: the name of the program.
        ranks, ops, size: of the step; bytes.
        rounds: how often it ran; the numbers below are medians.
        wall, fastest, slowest: seconds.
        cpu: user and system seconds.
        start: CPU seconds of the same program with nothing to read.
        rss, anonymous: peak bytes.
        status: the exit status.
        right: whether ovf named the planted op; None for other programs.
    """

    scenario: str
    step: str
    contender: str
    ranks: int
    ops: int
    size: int
    rounds: int
    wall: float
    fastest: float
    slowest: float
    cpu: float
    start: float
    rss: int
    anonymous: int
    status: int
    right: bool | None


def markdown(title: str, rows: list[Row], goals: list[tuple[str, tuple[float, bool] | None]]) -> str:
    """Give one table with its goals.

    Args:
        title: what stands over it.
        rows: its rows.
        goals: texts, with what was reached.

    Returns:
        Markdown.
    """
    several = len({row.step for row in rows}) > 1
    base = next((row.wall for row in rows if row.contender.startswith("rg")), None)
    head = ["step"] * several + ["", "wall (range)", "CPU", "GB/s per core", "peak memory", "of it anonymous"]
    head += ["x rg"] if base else []
    head += ["answer"]
    lines = [f"**{title}** ({_size(rows[0])})", "", _line(head), _line(["---"] * len(head))]
    for row in rows:
        cells = [f"{row.step} ({row.size / 1e6:,.0f} MB)"] if several else []
        spread = f" ({row.fastest:.2f} to {row.slowest:.2f})" if row.rounds > 1 else " (once)"
        cells += [f"`{row.contender}`", f"{row.wall:.3f} s{spread}", f"{row.cpu:.2f} s"]
        cells += [f"{row.size / row.cpu / 1e9:.2f}" if row.cpu else "", f"{row.rss / 1e6:,.0f} MB"]
        cells += [f"{row.anonymous / 1e6:,.0f} MB"]
        cells += [f"{row.wall / base:.1f}"] if base else []
        cells += [{True: "right", False: "WRONG", None: ""}[row.right]]
        lines.append(_line(cells))
    lines.append("")
    for text, reached in goals:
        if reached is None:
            lines.append(f"- {text}: not measured, a contender is missing")
        else:
            lines.append(f"- {text}: **{reached[0]:.2f}**{'' if reached[1] else ' (not reached)'}")
    return "\n".join([*lines, ""])


def _size(row: Row) -> str:
    return f"{row.ranks} rank{'s' * (row.ranks > 1)}, {row.size / 1e6:,.0f} MB, {row.ops:,} ops"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
