"""Report -> `anomaly_analyze_<timestamp>.json`, the file that `msprobe overflow_check` writes.

`{"rank_<R>": [{"op_name", "data_info": {"input_args", "input_kwargs", "output"}, "construct_info", "stack_info"}]}`.
Values stand as they were dumped, bare NaN included, as msProbe writes them. Listed are the first overflow and what is
concurrent with it; `construct_info` goes from the root to the op.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from ovf.output import write_new

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ovf.finding import Finding
    from ovf.report import Report

#: What msProbe prints when there is nothing to write.
NOTHING = "Cannot find any anomaly node, no need to generate analyze file."


def anomaly_analyze(report: Report) -> dict[str, list[dict[str, Any]]]:
    """The content of the file."""
    table: dict[str, list[dict[str, Any]]] = {}
    for finding in report.findings:
        if finding is report.first or finding.concurrent:
            table.setdefault(f"rank_{finding.rank}", []).append(_node(finding))
    return dict(sorted(table.items(), key=lambda item: int(item[0].removeprefix("rank_"))))


def write(report: Report, folder: Path, dump: Path | Sequence[Path]) -> Path | None:
    """Write the file into `folder` (made if absent).

    Returns:
        The new file, or `None` when there is no finding to write.

    Raises:
        ValueError: The folder lies in the dump.
        OSError: It cannot be written.
    """
    table = anomaly_analyze(report)
    if not table:
        return None
    path = folder / f"anomaly_analyze_{time.time_ns()}.json"
    write_new(path, json.dumps(table, indent=4, ensure_ascii=False) + "\n", dump, parents=True)
    return path


def _node(finding: Finding) -> dict[str, Any]:
    try:
        record = json.loads(finding.record) if finding.record else {}
    except (ValueError, RecursionError):
        record = {}
    if not isinstance(record, dict):
        record = {}
    return {
        "op_name": finding.op_name,
        "data_info": {
            "input_args": record.get("input_args", record.get("input", [])),
            "input_kwargs": record.get("input_kwargs", {}),
            "output": record.get("output", record if "parameters_grad" in finding.op_name else []),
        },
        "construct_info": list(reversed(finding.construct_chain)),
        "stack_info": {finding.op_name: list(finding.stack_info)} if finding.stack_info else {},
    }
