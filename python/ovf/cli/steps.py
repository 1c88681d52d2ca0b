"""`ovf steps`: the steps of a dump root side by side."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import ovf
from ovf.cli.framework import click
from ovf.cli.options import (
    exit_zero_option,
    input_option,
    local_folders,
    output_option,
    paths_argument,
    paths_of,
    ranks_option,
    rules_option,
    threads_option,
)
from ovf.cli.screen import USAGE, json_out, progress_bar, screen_for

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@paths_argument
@input_option
@output_option("A folder for ovf_steps.json.")
@ranks_option
@rules_option
@threads_option
@click.option("--allow-incomplete-ranks", is_flag=True, help="Accept missing, cut and unreadable ranks.")
@exit_zero_option
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the table.")
def steps(
    paths: tuple[str, ...],
    input_path: str | None,
    output: Path | None,
    ranks: list[int] | None,
    rules: Path | None,
    threads: int | None,
    allow_incomplete_ranks: bool,
    exit_zero: bool,
    as_json: bool,
) -> None:
    """Look at every step: which one goes bad first, on which rank, and how loss and gradient norm went before.

    Exit status: 0 clean, 1 overflow in some step, 2 usage, unreadable input, nothing to judge or incomplete evidence.
    """
    dump = paths_of(paths, input_path)
    with progress_bar(quiet=False) as progress:
        found = ovf.steps(dump, ranks=ranks, rules=rules, threads=threads, progress=progress)
    if as_json or output is not None:
        from ovf.render.steps import steps_json  # noqa: PLC0415 - only for this form

        json_out(steps_json(found), output, "ovf_steps.json", local_folders(dump))
    else:
        from ovf.render.steps import overview  # noqa: PLC0415 - only for this form

        screen_for().show(overview(found))
    verdicts = {s.verdict for s in found}
    incomplete = any(s.incomplete for s in found) and not allow_incomplete_ranks
    if incomplete or verdicts == {"no_evidence"}:
        sys.exit(USAGE)
    sys.exit(1 if "overflow" in verdicts and not exit_zero else 0)
