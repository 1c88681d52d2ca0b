"""`ovf trace`: one rank, every candidate in order."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import ovf
from ovf.cli.framework import click
from ovf.cli.options import (
    input_option,
    local_folders,
    output_option,
    path_argument,
    path_of,
    rules_option,
    step_option,
)
from ovf.cli.screen import complain, json_out

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@path_argument
@input_option
@click.option("--json", "_as_json", is_flag=True, expose_value=False, help="The trace is JSON anyway.")
@click.option("--rank", type=click.IntRange(0), help="Global rank; may be left out when there is only one.")
@output_option("A folder for single_rank_trace.json.")
@step_option
@rules_option
def trace(
    path: str | None,
    input_path: str | None,
    rank: int | None,
    output: Path | None,
    step: str | None,
    rules: Path | None,
) -> None:
    """Trace one rank to its root cause: every candidate in order, as JSON."""
    dump = path_of(path, input_path)
    data = ovf.trace_rank(dump, rank, step=step, rules=rules)
    for warning in data["warnings"]:
        complain(f"warning: {warning}")
    json_out(data, output, "single_rank_trace.json", local_folders([dump]))
    sys.exit(1 if data["first_anomaly"] else 0)
