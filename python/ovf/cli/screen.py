"""Where a command's words go: the terminal, a progress bar on it, a new file."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ovf.cli.framework import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rich.console import Console

USAGE = 2
"""Exit status: usage, unreadable input, nothing to judge or incomplete evidence."""


def console_for(color: str = "auto") -> Console:
    """The screen; plain and wide where it is none."""
    from rich.console import Console  # noqa: PLC0415 - only for the screen

    if color == "always":
        return Console(force_terminal=True, color_system="standard")
    if color == "never":
        return Console(no_color=True, highlight=False)
    # A pipe has no width: nothing is folded for it.
    return Console() if sys.stdout.isatty() else Console(width=400)


def write_output(path: Path, text: str, dump: Path | Sequence[Path]) -> None:
    """Write a new file that is not inside the dump."""
    from ovf.report import write_new  # noqa: PLC0415 - the core is not needed for --help

    write_new(path, text, dump)


def json_out(data: dict[str, Any], folder: Path | None, name: str, dump: Path | Sequence[Path]) -> None:
    """Print JSON, or write it as `name` into a folder (or as a `.json` file of that name)."""
    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if folder is None:
        click.echo(text, nl=False)
        return
    target = folder if folder.suffix == ".json" else folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    write_output(target, text, dump)
    click.echo(f"wrote {target}")


def complain(text: str, *, quiet: bool = False) -> None:
    """Say something on standard error."""
    if not quiet:
        click.echo(f"ovf: {text}", err=True)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
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
