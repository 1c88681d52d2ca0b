"""`ovf export`: the tables of a dump as a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import ovf
from ovf.cli.framework import click
from ovf.cli.options import (
    input_option,
    output_option,
    paths_argument,
    paths_of,
    ranks_option,
    rules_option,
    step_option,
    threads_option,
)
from ovf.cli.screen import USAGE, complain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ovf._core import Table

_FORMS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


@click.command()
@paths_argument
@input_option
@output_option("A new file: .csv, .jsonl or .parquet. Without it the table is printed.")
@click.option(
    "--table",
    type=click.Choice(["ops", "findings", "communications"]),
    default="ops",
    show_default=True,
    help="ops: every op of every rank (of all steps); the others: what the report of the step lists.",
)
@click.option("--format", "form", type=click.Choice(["csv", "jsonl", "parquet"]), help="Instead of the file's suffix.")
@step_option
@ranks_option
@rules_option
@threads_option
@click.option("--allow-incomplete-ranks", is_flag=True, help="Exit 0 even if some dump could not be read to its end.")
def export(
    paths: tuple[str, ...],
    input_path: str | None,
    output: Path | None,
    table: str,
    form: str | None,
    step: str | None,
    ranks: list[int] | None,
    rules: Path | None,
    threads: int | None,
    allow_incomplete_ranks: bool,
) -> None:
    """Write a table of the dump as CSV, JSON Lines or Parquet.

    Exit status: 0 written, 2 usage or unreadable input (a dump that ends early is written as far as it goes).
    """
    dump = paths_of(paths, input_path)
    form = _form(form, output)
    if table == "ops":
        found = ovf.op_table(dump, step=step, ranks=ranks, rules=rules, threads=threads)
        unreadable = None
    else:
        report = ovf.find_first_overflow(dump, step=step, ranks=ranks, rules=rules, threads=threads)
        found = report.to_arrow("findings" if table == "findings" else "communications")
        unreadable = [str(u) for u in report.unreadable]
    if output is None:
        for piece in found.text(form):
            click.echo(piece, nl=False)
    elif form == "parquet":
        _write_parquet(found, output, dump)
    else:
        from ovf.output import write_new  # noqa: PLC0415 - only for a file

        write_new(output, found.text(form), dump)
    if output is not None:
        complain(f"wrote {output}")
    unreadable = found.unreadable if unreadable is None else unreadable
    for line in unreadable:
        complain(f"warning: {line}")
    sys.exit(USAGE if unreadable and not allow_incomplete_ranks else 0)


def _form(form: str | None, output: Path | None) -> str:
    if form is None:
        form = "csv" if output is None else _FORMS.get(output.suffix.lower())
    if form is None:
        msg = f"{output}: no table form has this suffix; use .csv, .jsonl or .parquet, or give --format"
        raise click.UsageError(msg)
    if form == "parquet" and output is None:
        msg = "parquet is no text: give a file with -o"
        raise click.UsageError(msg)
    return form


def _write_parquet(table: Table, output: Path, dump: Sequence[str]) -> None:
    """Row group by row group with pyarrow; at once with polars where only that is installed."""
    from ovf.output import check_new  # noqa: PLC0415 - only for a file

    check_new(output, dump)
    try:
        import pyarrow as pa  # noqa: PLC0415 - an extra
        import pyarrow.parquet as pq  # noqa: PLC0415 - an extra
    except ImportError:
        _write_with_polars(table, output)
        return
    reader = pa.RecordBatchReader.from_stream(table)
    try:
        with pq.ParquetWriter(output, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except BaseException:
        output.unlink(missing_ok=True)
        raise


def _write_with_polars(table: Table, output: Path) -> None:
    try:
        import polars as pl  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "parquet needs pyarrow or polars: pip install 'ovf-npu[export]', or write .csv or .jsonl"
        raise click.UsageError(msg) from None
    pl.DataFrame(table).write_parquet(output)
