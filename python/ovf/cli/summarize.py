"""`ovf summarize`: one small file a rank, to be moved in place of the dump."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING

from ovf.cli.framework import click
from ovf.cli.options import (
    THREADS,
    incomplete_option,
    input_option,
    output_option,
    paths_argument,
    paths_of,
    ranks_option,
    rules_option,
    step_option,
)
from ovf.cli.screen import USAGE, complain, progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ovf.summaries import Summary


@click.command()
@paths_argument
@input_option
@output_option("Folder that gets STEP/rankR.ovfs, or - for a tar archive on standard output.", dash=True)
@step_option
@ranks_option
@rules_option
@click.option("--threads", type=THREADS, help="Ranks read at once; one a processor by default.")
@incomplete_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def summarize(
    paths: tuple[str, ...],
    input_path: str | None,
    output: Path | None,
    step: str | None,
    ranks: list[int] | None,
    rules: Path | None,
    threads: int | None,
    allow_incomplete_ranks: bool,
    quiet: bool,
) -> None:
    """Write one small file a rank with all that `ovf check` needs, where the dump lies.

    PATHS are dump roots, steps, rank folders. Copy the output of all hosts into one folder and check that.

    Exit status: 0 written, 2 usage, unreadable input, or a rank that is missing, cut or unreadable (its summary says
    so).
    """
    from ovf.summaries import each_summary, write_all, write_tar  # noqa: PLC0415 - the core is not needed for --help

    dump = paths_of(paths, input_path)
    if output is None:
        msg = "say where the summaries go: -o DIR, or -o - for a tar archive on standard output"
        raise click.UsageError(msg)
    to_stdout = str(output) == "-"
    if to_stdout and sys.stdout.isatty():
        msg = "-o - writes an archive: pipe it, as in `ssh HOST ovf summarize DUMP -o - | tar -x -C DIR`"
        raise click.UsageError(msg)
    seen: list[tuple[str, int, int, str | None]] = []

    def noted(summaries: Iterator[Summary]) -> Iterator[Summary]:
        for summary in summaries:
            seen.append((summary.step_label, len(summary.content), summary.dump_bytes, summary.problem))
            yield summary

    with progress_bar(quiet=quiet) as progress:
        made = noted(
            each_summary(dump, step=step, ranks=ranks, rules=rules, threads=threads, progress=progress),
        )
        if to_stdout:
            write_tar(made, sys.stdout.buffer)
        else:
            write_all(made, output, dump)
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for label, size, dumped, _ in sorted(seen, key=lambda s: s[:3]):
        steps[label].append((size, dumped))
    for label, sizes in steps.items():
        small, large = (sum(column) for column in zip(*sizes, strict=True))
        share = f", {100 * small / large:.2f} % of {large / 1e6:,.1f} MB" if large else ""
        where = "standard output" if to_stdout else str(output / label)
        ranks_text = f"{len(sizes)} {'rank' if len(sizes) == 1 else 'ranks'}"
        complain(f"{label}: {ranks_text}, {small / 1e6:,.2f} MB{share}, in {where}", quiet=quiet)
    problems = sorted(problem for *_, problem in seen if problem)
    for problem in problems:
        complain(f"warning: {problem}")
    if not seen:
        complain("no rank was asked for that is there")
    sys.exit(USAGE if not seen or (problems and not allow_incomplete_ranks) else 0)
