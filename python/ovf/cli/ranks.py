"""`ovf ranks`: the communications, source, propagated and normal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import ovf
from ovf.cli.framework import click
from ovf.cli.options import (
    input_option,
    local_folders,
    output_option,
    paths_argument,
    paths_of,
    rules_option,
    step_option,
    threads_option,
)
from ovf.cli.screen import USAGE, console_for, json_out

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@paths_argument
@input_option
@output_option("A folder for cross_rank_analysis.json.")
@step_option
@rules_option
@threads_option
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the table.")
def ranks(
    paths: tuple[str, ...],
    input_path: str | None,
    output: Path | None,
    step: str | None,
    rules: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """For each communication: which ranks sent something bad, which got it, which have nothing bad."""
    dump = paths_of(paths, input_path)
    if as_json or output is not None:
        table = ovf.cross_rank(dump, step=step, rules=rules, threads=threads)
        json_out(table, output, "cross_rank_analysis.json", local_folders(dump))
        sys.exit(1 if table else 0)
    from ovf.render.communications import communications_table  # noqa: PLC0415 - only for this form

    report = ovf.find_first_overflow(dump, step=step, rules=rules, threads=threads)
    console = console_for()
    if report.communications:
        console.print(communications_table(report.communications))
    elif report.verdict == "no_evidence":
        console.print("nothing in this dump can be judged: it holds no Max and Min")
        sys.exit(USAGE)
    elif report.total_communications == 0:
        console.print("no communication is recorded in this dump (level L0, or a single process)")
    else:
        console.print(f"none of {report.total_communications:,} communication records holds a non-finite value")
    bad = any(c.source_ranks or c.propagated_ranks for c in report.communications)
    sys.exit(1 if bad else 0)
