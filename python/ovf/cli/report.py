"""`ovf report`: the answer as one page to look at."""

from __future__ import annotations

import sys
from pathlib import Path

import ovf
from ovf.cli.framework import click
from ovf.cli.options import (
    exit_zero_option,
    incomplete_option,
    input_option,
    local_folders,
    output_option,
    paths_argument,
    paths_of,
    quiet_option,
    ranks_option,
    rules_option,
    step_option,
    threads_option,
)
from ovf.cli.screen import complain, progress_bar
from ovf.output import check_new, write_new


@click.command()
@paths_argument
@input_option
@output_option("The page: a new file, or a folder for ovf_report.html; ovf_report.html here by default.")
@step_option
@ranks_option
@rules_option
@threads_option
@incomplete_option
@exit_zero_option
@quiet_option
def report(
    paths: tuple[str, ...],
    input_path: str | None,
    output: Path | None,
    step: str | None,
    ranks: list[int] | None,
    rules: Path | None,
    threads: int | None,
    allow_incomplete_ranks: bool,
    exit_zero: bool,
    quiet: bool,
) -> None:
    """Write the answer as one HTML page: the verdict, a map of all ranks, the path, the tables.

    The page needs no network and asks for none. PATHS are as for `ovf check`, and so is the exit status.
    """
    dump = paths_of(paths, input_path)
    target = output or Path("ovf_report.html")
    if target.is_dir() or not target.suffix:
        target /= "ovf_report.html"
    check_new(target, local_folders(dump))
    with progress_bar(quiet=quiet) as progress:
        found = ovf.find_first_overflow(
            dump,
            step=step,
            ranks=ranks,
            rules=rules,
            threads=threads,
            allow_incomplete_ranks=allow_incomplete_ranks,
            chart=True,
            progress=progress,
        )
    write_new(target, found.html(), local_folders(dump), parents=True)
    complain(f"wrote {target}", quiet=quiet)
    code = found.exit_code
    sys.exit(0 if exit_zero and code == 1 else code)
