"""`ovf check`: name the first overflow."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Literal

import ovf
from ovf.cli.framework import click
from ovf.cli.options import (
    exit_zero_option,
    incomplete_option,
    input_option,
    local_folders,
    output_option,
    parse_hosts,
    paths_argument,
    paths_of,
    quiet_option,
    ranks_option,
    rules_option,
    step_option,
    threads_option,
)
from ovf.cli.screen import complain, progress_bar, screen_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ovf.analyzer import Extra
    from ovf.report import Report


@click.command()
@paths_argument
@input_option
@output_option(
    "A new file for the chosen format (a name with a suffix), or a folder: it gets anomaly_analyze_TIME.json as msprobe writes it, or ovf_report.json with --json."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "jsonl", "msprobe", "trace"]),
    default="text",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@step_option
@ranks_option
@rules_option
@click.option("--top", type=click.IntRange(1), default=1, show_default=True, help="Findings to show in full.")
@click.option("--near", is_flag=True, help="Also near misses: values close to their dtype's end, sudden growth.")
@click.option("--levels", is_flag=True, help="Also critical, high and medium as msProbe's graph view has them.")
@threads_option
@click.option("--no-mmap", is_flag=True, help="Read large files instead of mapping them (also: OVF_NO_MMAP=1).")
@incomplete_option
@exit_zero_option
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="ray: a Ray cluster reads the ranks, the running one (RAY_ADDRESS) or a local one.",
)
@click.option(
    "--host",
    "hosts",
    metavar="NODE=PATH",
    multiple=True,
    callback=parse_hosts,
    help="With --engine ray, in place of PATH, for each node: its name or address, and the folder on its disk.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="The job is still running: look again and again, exit at the first step with an overflow.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 86_400),
    default=2.0,
    show_default=True,
    help="With --watch: seconds between two looks.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="With --watch: seconds without a change after which the last step counts as over.",
)
@quiet_option
@click.option("-v", "--verbose", is_flag=True, help="All frames, hops, note ops and the path.")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="auto: only on a terminal; NO_COLOR and FORCE_COLOR count.",
)
def check(
    paths: tuple[str, ...],
    input_path: str | None,
    output: Path | None,
    form: str,
    as_json: bool,
    step: str | None,
    ranks: list[int] | None,
    rules: Path | None,
    top: int,
    near: bool,
    levels: bool,
    threads: int | None,
    no_mmap: bool,
    allow_incomplete_ranks: bool,
    exit_zero: bool,
    engine: Literal["local", "ray"],
    hosts: dict[str, str],
    watch: bool,
    interval: float,
    settle: float,
    quiet: bool,
    verbose: bool,
    color: str,
) -> None:
    """Name the first overflow of a dump: rank, operator, line of code, why, and how sure.

    PATHS: a dump root (all steps, in order), a step, a rank folder, a dump.json, or summaries in place of dumps; plain,
    packed, in a tar or zip, or behind a URL. Several local paths hold one dump together.

    Exit status: 0 clean, 1 overflow, 2 usage, unreadable input, nothing to judge, or incomplete evidence.
    """
    dump = [] if hosts and not paths and input_path is None else paths_of(paths, input_path)
    if watch and (engine != "local" or hosts or len(local_folders(dump)) < len(dump)):
        msg = "--watch looks at local folders; leave --engine, URLs and archives out"
        raise click.UsageError(msg)
    if as_json and form not in {"text", "json"}:
        msg = f"--json and --format {form} ask for two formats; give one"
        raise click.UsageError(msg)
    form = "json" if as_json else form
    if form == "msprobe" and output is not None and output.suffix:
        msg = f"--format msprobe writes into a folder; {output} looks like a file"
        raise click.UsageError(msg)
    asked: dict[Extra, bool] = {"near": near, "levels": levels, "strip": form in {"text", "trace"}}
    also = [name for name, wanted in asked.items() if wanted]
    started = time.perf_counter()
    if watch:
        from ovf.watch import Watch  # noqa: PLC0415 - only for this mode

        say = lambda line: complain(line, quiet=quiet)  # noqa: E731 - a word for the screen
        looking = Watch(
            dump,
            step=step,
            ranks=ranks,
            rules=rules,
            threads=threads,
            settle=settle,
            allow_incomplete_ranks=allow_incomplete_ranks,
            say=say,
            also=also,
        )
        report = looking.until_overflow(interval)
    else:
        with progress_bar(quiet=quiet) as progress:
            report = ovf.find_first_overflow(
                dump or None,
                step=step,
                ranks=ranks,
                rules=rules,
                threads=threads,
                mmap=False if no_mmap else None,
                allow_incomplete_ranks=allow_incomplete_ranks,
                progress=progress,
                also=also,
                engine=engine,
                hosts=hosts or None,
            )
    seconds = time.perf_counter() - started
    folders = [] if output is None and form != "msprobe" else local_folders(dump)
    to_folder = output is not None and not output.suffix
    if output is not None and not to_folder and form != "msprobe":
        _write_file(report, form, output, folders, parents=False, seconds=seconds, top=top, verbose=verbose)
        complain(f"wrote {output}", quiet=quiet)
    elif not quiet and form != "msprobe" and not (to_folder and form != "text"):
        _print(report, form, seconds=seconds, top=top, verbose=verbose, color=color)
    if form == "msprobe" or (to_folder and form == "text"):
        _write_msprobe(report, output, folders, quiet=quiet)
    elif to_folder and output is not None:
        target = output / (f"ovf_report.{form}" if form != "trace" else "ovf_trace.json")
        _write_file(report, form, target, folders, parents=True, seconds=seconds, top=top, verbose=verbose)
        complain(f"wrote {target}", quiet=quiet)
    code = report.exit_code
    sys.exit(0 if exit_zero and code == 1 else code)


def _data(report: Report, form: str) -> str | None:
    """The report in a form for programs; `None` for the one for people."""
    if form == "json":
        return report.json()
    if form == "jsonl":
        from ovf.render.jsonl import jsonl  # noqa: PLC0415 - only for this form

        return "".join(f"{line}\n" for line in jsonl(report))
    if form == "trace":
        from ovf.render.trace import trace  # noqa: PLC0415 - only for this form

        return trace(report)
    return None


def _print(report: Report, form: str, *, seconds: float, top: int, verbose: bool, color: str) -> None:
    text = _data(report, form)
    if text is not None:
        click.echo(text, nl=False)
        return
    from ovf.render.text import render  # noqa: PLC0415 - only for this form

    render(report, screen_for(color), seconds=seconds, top=top, verbose=verbose)


def _write_file(
    report: Report,
    form: str,
    path: Path,
    dump: Sequence[Path],
    *,
    parents: bool,
    seconds: float,
    top: int,
    verbose: bool,
) -> None:
    text = _data(report, form)
    if text is None:
        import io  # noqa: PLC0415 - only for this form

        from ovf.render.line import Screen  # noqa: PLC0415 - only for this form
        from ovf.render.text import render  # noqa: PLC0415 - only for this form

        buffer = io.StringIO()
        render(report, Screen(buffer, width=160), seconds=seconds, top=top, verbose=verbose)
        text = buffer.getvalue()
    from ovf.output import write_new  # noqa: PLC0415 - only for a file

    write_new(path, text, dump, parents=parents)


def _write_msprobe(report: Report, folder: Path | None, dump: Sequence[Path], *, quiet: bool) -> None:
    from pathlib import Path  # noqa: PLC0415 - only for this form

    from ovf.render import msprobe  # noqa: PLC0415 - only for this form

    made = msprobe.write(report, folder or Path("output"), dump)
    if not quiet:
        click.echo(msprobe.NOTHING if made is None else f"wrote {made}")
