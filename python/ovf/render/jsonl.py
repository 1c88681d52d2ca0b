"""Report -> JSON Lines: one object a line, its `type` first.

`begin` (verdict, step, totals), then `finding`, `path`, `communication`, `rank`, `unreadable` and `note` lines, in that
order and each in report order. Fields are those of the JSON contract.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ovf.report import Report

_LISTS = {
    "findings": "finding",
    "path": "path",
    "communications": "communication",
    "ranks": "rank",
    "unreadable": "unreadable",
    "notes": "note",
}


def jsonl(report: Report) -> Iterator[str]:
    """The lines, without line ends."""
    data = report.to_dict()
    head = {k: v for k, v in data.items() if k not in _LISTS and k != "first"}
    yield json.dumps({"type": "begin", **head}, allow_nan=False)
    for key, kind in _LISTS.items():
        for item in data[key]:
            yield json.dumps({"type": kind, **item}, allow_nan=False)
