"""The `ovf` command: options in, exit status out; nothing but wiring.

Exit status: 0 clean, 1 overflow found, 2 usage, unreadable input, nothing to judge or incomplete evidence, 130
interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ovf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import rich_click as click
    from rich.console import Console
    from rich_click import RichGroup as _Group

    from ovf.report import Report
elif len(sys.argv) > 1 and not {"-h", "--help"} & set(sys.argv):
    # rich-click takes longer to import than most dumps to read; only help needs it.
    import click
    from click import Group as _Group
else:
    import rich_click as click
    from rich_click import RichGroup as _Group

    click.rich_click.TEXT_MARKUP = "markdown"

_USAGE = 2
_INTERRUPTED = 130


class _Lazy(_Group):
    """A group whose `npu` part is imported only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands."""
        return sorted({*super().list_commands(ctx), *self._npu()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name == "npu" and self._npu():
            from ovf.npu.cli import npu  # noqa: PLC0415 - only when it is used

            return npu
        return super().get_command(ctx, cmd_name)

    @staticmethod
    def _npu() -> list[str]:
        return ["npu"] if (Path(__file__).parent / "npu" / "cli.py").exists() else []


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ovf.__version__, prog_name="ovf")
def cli() -> None:
    """Find the operator that first turned finite numbers into NaN or Inf, from msProbe dumps."""


def _ranks(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[int] | None:
    """`0,3,8-15` as a list."""
    if value is None:
        return None
    ranks: list[int] = []
    for part in value.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            start = int(first)
            stop = int(last) if dash else start
        except ValueError:
            msg = f"{part!r} is no rank; write ranks like 0,3,8-15"
            raise click.BadParameter(msg) from None
        most = 1_000_000
        if not 0 <= start <= stop < most:
            msg = f"{part!r} is no range of ranks; write ranks like 0,3,8-15"
            raise click.BadParameter(msg)
        ranks.extend(range(start, stop + 1))
    return ranks


def _path_of(path: Path | None, input_path: Path | None) -> Path:
    if (path is None) == (input_path is None):
        msg = "give the dump once: as PATH or with -i/--input_path"
        raise click.UsageError(msg)
    chosen = path if path is not None else input_path
    if "" in sys.argv:
        msg = "the path is empty"
        raise click.UsageError(msg)
    assert chosen is not None  # noqa: S101 - for the type checker; said above
    return chosen


_path = click.argument("path", required=False, type=click.Path(path_type=Path))
_input = click.option(
    "-i",
    "--input_path",
    "--input-path",
    "input_path",
    type=click.Path(path_type=Path),
    help="The dump, as msProbe users type it.",
)
_rules = click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="A JSON file of rules laid over the built-in ones.",
)


def _output(text: str) -> Callable[[Any], Any]:
    """The -o option, spelled as msprobe users type it."""
    names = ("-o", "--output_path", "--output-path", "output")
    return click.option(*names, type=click.Path(path_type=Path), help=text)


_step = click.option("--step", help="Only this step: its number or folder.")
_exit_zero = click.option("--exit-zero", is_flag=True, help="Exit 0 even if an overflow was found.")


@cli.command()
@_path
@_input
@_output(
    "A new file for the chosen format (a name with a suffix), or a folder: it gets anomaly_analyze_TIME.json as msprobe writes it, or ovf_report.json with --json."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "jsonl", "msprobe"]),
    default="text",
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@_step
@click.option("--ranks", callback=_ranks, help="Only these ranks, like 0,3,8-15.")
@_rules
@click.option("--top", type=click.IntRange(1), default=1, show_default=True, help="Findings to show in full.")
@click.option("--threads", type=click.IntRange(1), help="Threads; all processors by default.")
@click.option(
    "--allow-incomplete-ranks",
    is_flag=True,
    help="Accept missing, cut and unreadable ranks in the exit status.",
)
@_exit_zero
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors; the exit status tells.")
@click.option("-v", "--verbose", is_flag=True, help="All frames, hops, note ops and the path.")
@click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="auto: only on a terminal; NO_COLOR and FORCE_COLOR count.",
)
def check(
    path: Path | None,
    input_path: Path | None,
    output: Path | None,
    form: str,
    as_json: bool,
    step: str | None,
    ranks: list[int] | None,
    rules: Path | None,
    top: int,
    threads: int | None,
    allow_incomplete_ranks: bool,
    exit_zero: bool,
    quiet: bool,
    verbose: bool,
    color: str,
) -> None:
    """Name the first overflow of a dump: rank, operator, line of code, why, and how sure.

    PATH is a dump root (all steps, in order), a step, a rank folder or a dump.json.

    Exit status: 0 clean, 1 overflow, 2 usage, unreadable input, nothing to judge, or incomplete evidence.
    """
    dump = _path_of(path, input_path)
    if as_json and form not in {"text", "json"}:
        msg = f"--json and --format {form} ask for two formats; give one"
        raise click.UsageError(msg)
    form = "json" if as_json else form
    if form == "msprobe" and output is not None and output.suffix:
        msg = f"--format msprobe writes into a folder; {output} looks like a file"
        raise click.UsageError(msg)
    started = time.perf_counter()
    with _progress(quiet=quiet) as progress:
        report = ovf.find_first_overflow(
            dump,
            step=step,
            ranks=ranks,
            rules=rules,
            threads=threads,
            allow_incomplete_ranks=allow_incomplete_ranks,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    to_folder = output is not None and not output.suffix
    if output is not None and not to_folder and form != "msprobe":
        _write_file(report, form, output, dump, seconds=seconds, top=top, verbose=verbose)
    elif not quiet and form != "msprobe" and not (to_folder and form != "text"):
        _print(report, form, seconds=seconds, top=top, verbose=verbose, color=color)
    if form == "msprobe" or (to_folder and form == "text"):
        _write_msprobe(report, output if to_folder and output else output or Path("output"), dump, quiet=quiet)
    elif to_folder and output is not None:
        output.mkdir(parents=True, exist_ok=True)
        target = output / f"ovf_report.{form}"
        _write_file(report, form, target, dump, seconds=seconds, top=top, verbose=verbose)
        _complain(f"wrote {target}", quiet=quiet)
    code = report.exit_code
    sys.exit(0 if exit_zero and code == 1 else code)


def _print(report: Report, form: str, *, seconds: float, top: int, verbose: bool, color: str) -> None:
    if form == "json":
        click.echo(report.json(), nl=False)
    elif form == "jsonl":
        from ovf.render.jsonl import jsonl  # noqa: PLC0415 - only for this form

        for line in jsonl(report):
            click.echo(line)
    else:
        from ovf.render.text import render  # noqa: PLC0415 - only for this form

        render(report, _console(color), seconds=seconds, top=top, verbose=verbose)


def _console(color: str = "auto") -> Console:
    from rich.console import Console  # noqa: PLC0415 - only for the screen

    if color == "always":
        return Console(force_terminal=True, color_system="standard")
    if color == "never":
        return Console(no_color=True, highlight=False)
    # A pipe has no width: nothing is folded for it.
    return Console() if sys.stdout.isatty() else Console(width=400)


def _write_file(report: Report, form: str, path: Path, dump: Path, *, seconds: float, top: int, verbose: bool) -> None:
    if form == "json":
        text = report.json()
    elif form == "jsonl":
        from ovf.render.jsonl import jsonl  # noqa: PLC0415 - only for this form

        text = "".join(f"{line}\n" for line in jsonl(report))
    else:
        import io  # noqa: PLC0415 - only for this form

        from rich.console import Console  # noqa: PLC0415 - only for this form

        from ovf.render.text import render  # noqa: PLC0415 - only for this form

        buffer = io.StringIO()
        render(report, Console(file=buffer, width=160), seconds=seconds, top=top, verbose=verbose)
        text = buffer.getvalue()
    _write_new(path, text, dump)


def _write_new(path: Path, text: str, dump: Path) -> None:
    from ovf.report import write_new  # noqa: PLC0415 - the core is not needed for --help

    write_new(path, text, dump)


def _write_msprobe(report: Report, folder: Path, dump: Path, *, quiet: bool) -> None:
    from ovf.render import msprobe  # noqa: PLC0415 - only for this form

    made = msprobe.write(report, folder, dump)
    if not quiet:
        click.echo(msprobe.NOTHING if made is None else f"wrote {made}")


def _complain(text: str, *, quiet: bool = False) -> None:
    if not quiet:
        click.echo(f"ovf: {text}", err=True)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, when that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only on a terminal
    from rich.progress import (  # noqa: PLC0415 - only on a terminal
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None)

        yield update


@cli.command()
@_path
@_input
@_output("A folder for cross_rank_analysis.json.")
@_step
@_rules
@click.option("--json", "as_json", is_flag=True, help="Print the JSON instead of the table.")
def ranks(
    path: Path | None,
    input_path: Path | None,
    output: Path | None,
    step: str | None,
    rules: Path | None,
    as_json: bool,
) -> None:
    """For each communication: which ranks sent something bad, which got it, which have nothing bad."""
    dump = _path_of(path, input_path)
    if as_json or output is not None:
        table = ovf.cross_rank(dump, step=step, rules=rules)
        _json_out(table, output, "cross_rank_analysis.json", dump)
        sys.exit(1 if table else 0)
    from ovf.render.text import communications_table  # noqa: PLC0415 - only for this form

    report = ovf.find_first_overflow(dump, step=step, rules=rules)
    console = _console()
    if report.communications:
        console.print(communications_table(report.communications))
    elif report.verdict == "no_evidence":
        console.print("nothing in this dump can be judged: it holds no Max and Min")
        sys.exit(_USAGE)
    elif report.total_communications == 0:
        console.print("no communication is recorded in this dump (level L0, or a single process)")
    else:
        console.print(f"none of {report.total_communications:,} communication records holds a non-finite value")
    bad = any(c.source_ranks or c.propagated_ranks for c in report.communications)
    sys.exit(1 if bad else 0)


@cli.command()
@_path
@_input
@click.option("--json", "_as_json", is_flag=True, expose_value=False, help="The trace is JSON anyway.")
@click.option("--rank", type=click.IntRange(0), help="Global rank; may be left out when there is only one.")
@_output("A folder for single_rank_trace.json.")
@_step
@_rules
def trace(
    path: Path | None,
    input_path: Path | None,
    rank: int | None,
    output: Path | None,
    step: str | None,
    rules: Path | None,
) -> None:
    """Trace one rank to its root cause: every candidate in order, as JSON."""
    dump = _path_of(path, input_path)
    data = ovf.trace_rank(dump, rank, step=step, rules=rules)
    for warning in data["warnings"]:
        _complain(f"warning: {warning}")
    _json_out(data, output, "single_rank_trace.json", dump)
    sys.exit(1 if data["first_anomaly"] else 0)


def _json_out(data: dict[str, Any], folder: Path | None, name: str, dump: Path) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if folder is None:
        click.echo(text, nl=False)
        return
    target = folder if folder.suffix == ".json" else folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    _write_new(target, text, dump)
    click.echo(f"wrote {target}")


@cli.command()
@_rules
def rules(rules: Path | None) -> None:
    """Print the operator table in force, as JSON: what is benign, in place, a buffer, a communication."""
    from ovf._core import effective_rules  # noqa: PLC0415 - the core is not needed for --help

    click.echo(effective_rules(rules))


def main() -> None:
    """Run the command; turn errors into one clear line and the right exit status."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller
            setattr(sys, stream, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif hasattr(getattr(sys, stream), "reconfigure"):
            getattr(sys, stream).reconfigure(errors="backslashreplace")  # a terminal that cannot show a sign
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(_USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (| head): not an error. The interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except FileExistsError as error:
        _fail(f"{error.filename}: exists; nothing is overwritten, choose another name", None)
    except (ovf.OvfError, ValueError) as error:
        _fail(str(error), getattr(error, "help", None))
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        _fail(where, getattr(error, "help", None))


def _fail(text: str, advice: str | None) -> None:
    click.echo(f"ovf: error: {text}", err=True)
    if advice:
        click.echo(f"help: {advice}", err=True)
    sys.exit(_USAGE)


if __name__ == "__main__":
    main()
