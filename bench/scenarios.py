"""What is compared with what, and the goal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import contenders
from steps import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from contenders import Contender
    from table import Row

MB = 1e6


@dataclass(frozen=True)
class Scenario:
    """One table.

    Attributes:
        name: as given on the command line.
        title: over the table.
        pairs: step and contender of each row.
        goals: what the rows must show: a text, and a function from the rows to (the number that counts, whether it is
            reached), or None where a contender is not installed.
    """

    name: str
    title: str
    pairs: list[tuple[Recipe, Contender]]
    goals: list[tuple[str, Callable[[list[Row]], tuple[float, bool] | None]]] = field(default_factory=list)


def all_scenarios(scale: float, peer: str | None) -> list[Scenario]:
    """List the scenarios.

    Args:
        scale: factor on the size of every dump.
        peer: the interpreter that has msprobe; None for this one.

    Returns:
        The scenarios, in the order of the tables.
    """
    ovf, rg, msprobe = contenders.ovf, contenders.ripgrep(), contenders.msprobe(peer)
    json = contenders.python_json()
    grep = [rg] if rg else []

    def mb(size: float) -> float:
        return max(size * scale, 0.2)

    def ops(count: int) -> int:
        return max(round(count * scale), 300)

    step16 = Recipe("16 x 27 MB", 2, 4, 2, rank_mb=mb(27), fault="forward:5:1:50%", options=("--layers", "8"))
    step256 = Recipe("256 x 24 MB", 4, 4, 16, rank_mb=mb(24), fault="forward:3:50%:50%")
    clean = Recipe("clean", 2, 4, 1, ops_per_rank=ops(32000))
    bad = Recipe("mostly NaN", 2, 4, 1, ops_per_rank=ops(32000), fault="forward:0:0:0", spoilt=True)
    giant = Recipe("one rank of 2 GB", rank_mb=mb(100), fault="forward:0:50%:50%", copies=20)
    spellings = {"no white space": "none", "1 space": "1", "4 spaces": "4"}
    layouts = [
        Recipe(name, 2, 2, 2, ops_per_rank=ops(16000), fault="forward:1:50%:50%", options=("--indent", indent))
        for name, indent in spellings.items()
    ]
    ranks = [Recipe(f"{8 * n} ranks", 2, 2, 2 * n, rank_mb=mb(2), fault="forward:1:50%:50%") for n in (1, 4, 16, 64)]
    lengths = [
        Recipe(f"{n}k ops a rank", 2, 2, 2, ops_per_rank=ops(1000 * n), fault="forward:1:50%:50%") for n in (2, 8, 32)
    ]
    return [
        Scenario(
            "step16",
            "16 ranks x 27 MB, one planted NaN",
            [(step16, c) for c in [*grep, ovf(), ovf("--threads", "1"), json, *([msprobe] if msprobe else [])]],
            [
                ("at most 4 x the time of rg", ratio("ovf check", "rg -c NaN", most=4)),
                (
                    "msprobe overflow_check at least 150 x slower",
                    ratio("msprobe overflow_check", "ovf check", least=150),
                ),
            ],
        ),
        Scenario(
            "step256",
            "256 ranks x 24 MB, one planted NaN",
            [(step256, c) for c in [*grep, ovf(), ovf("--threads", "1")]],
            [
                ("at most 8 x the time of rg", ratio("ovf check", "rg -c NaN", most=8)),
                ("peak anonymous memory below 500 MB", anonymous("ovf check", 500 * MB)),
            ],
        ),
        Scenario(
            "nan",
            "8 ranks: clean, and every op after the first bad",
            [(clean, ovf()), (bad, ovf())],
            [("mostly NaN at most 2 x the time of clean", steps_ratio("mostly NaN", "clean", most=2))],
        ),
        Scenario(
            "layouts",
            "8 ranks, the same ops in three layouts",
            [(recipe, ovf()) for recipe in layouts],
            [("compact not slower than 1 space", steps_ratio("no white space", "1 space", most=1.05))],
        ),
        Scenario(
            "giant",
            "One rank file of 2 GB",
            [(giant, c) for c in [*grep, ovf("--threads", "1"), ovf("--threads", "2")]],
            [("2 threads at least 1.7 x faster", ratio("ovf check --threads 1", "ovf check --threads 2", least=1.7))],
        ),
        Scenario(
            "ranks",
            "From 8 to 512 ranks of 2 MB",
            [(recipe, ovf()) for recipe in ranks],
            [("time grows with bytes to the power of at most 1.1", exponent(most=1.1))],
        ),
        Scenario(
            "ops",
            "8 ranks, from 2,000 to 32,000 ops a rank",
            [(recipe, ovf()) for recipe in lengths],
            [("time grows with bytes to the power of at most 1.1", exponent(most=1.1))],
        ),
    ]


def ratio(
    over: str, under: str, *, most: float = math.inf, least: float = 0.0
) -> Callable[[list[Row]], tuple[float, bool] | None]:
    """Compare the wall times of two contenders."""

    def judge(rows: list[Row]) -> tuple[float, bool] | None:
        walls = {row.contender: row.wall for row in rows}
        if over not in walls or under not in walls:
            return None
        value = walls[over] / walls[under]
        return value, least <= value <= most

    return judge


def steps_ratio(over: str, under: str, *, most: float) -> Callable[[list[Row]], tuple[float, bool] | None]:
    """Compare the wall times of two steps with as many ops."""

    def judge(rows: list[Row]) -> tuple[float, bool] | None:
        walls = {row.step: row.wall / row.ops for row in rows}
        value = walls[over] / walls[under]
        return value, value <= most

    return judge


def anonymous(contender: str, most: float) -> Callable[[list[Row]], tuple[float, bool] | None]:
    """Bound the peak anonymous memory, in megabytes."""

    def judge(rows: list[Row]) -> tuple[float, bool] | None:
        found = next((row.anonymous for row in rows if row.contender == contender), None)
        return None if found is None else (found / MB, found < most)

    return judge


def exponent(most: float) -> Callable[[list[Row]], tuple[float, bool] | None]:
    """Fit CPU time = a * bytes^k over the rows, the time of an empty run taken off; k counts."""

    def judge(rows: list[Row]) -> tuple[float, bool] | None:
        points = [(math.log(row.size), math.log(max(row.cpu - row.start, 1e-4))) for row in rows]
        mean_x = sum(x for x, _ in points) / len(points)
        mean_y = sum(y for _, y in points) / len(points)
        k = sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
        return k, k <= most

    return judge
