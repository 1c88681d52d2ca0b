"""Where a command's words go: the terminal, a progress bar on it, a new file."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack, contextmanager

TYPE_CHECKING = False  # typing itself takes longer to import than a small dump to read
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    from rich.console import Console

    from ovf.render.line import Screen

USAGE = 2
"""Exit status: usage, unreadable input, nothing to judge or incomplete evidence."""
_BAR_AFTER = 0.3
"""Seconds after which a bar is drawn: what ends before needs none, nor the import of rich."""
_PIPE, _NARROW = 400, 80
"""Columns where there is no terminal, and where one does not say."""


def console_for() -> Console:
    """The screen for tables; plain and wide where it is none."""
    from rich.console import Console  # noqa: PLC0415 - only for tables

    # A pipe has no width: nothing is folded for it.
    return Console() if sys.stdout.isatty() else Console(width=_PIPE)


def screen_for(color: str = "auto") -> Screen:
    """Standard output as a screen, by the same signs as rich goes by.

    Styled is a terminal that is not a dumb one (`TERM`), or what `FORCE_COLOR` or `TTY_COMPATIBLE` call a terminal, or
    anything if `color` is `always`. `NO_COLOR` and `never` leave bold and dim to a terminal. A pipe has no width.
    """
    from ovf.render.line import Screen  # noqa: PLC0415 - only for the screen

    always = color == "always"
    terminal = always or _is_terminal()
    dumb = terminal and os.environ.get("TERM", "").lower() in {"dumb", "unknown"}
    width = _PIPE if color == "auto" and not sys.stdout.isatty() and not dumb else _NARROW if dumb else _columns()
    styled = always or (terminal and not dumb)
    colored = color != "never" and not os.environ.get("NO_COLOR")
    return Screen(sys.stdout, width, styled=styled, colored=colored)


def _is_terminal() -> bool:
    compatible = os.environ.get("TTY_COMPATIBLE", "")
    if compatible in {"0", "1"}:
        return compatible == "1"
    forced = os.environ.get("FORCE_COLOR")
    return sys.stdout.isatty() if forced is None else forced != ""


def _columns() -> int:
    """`COLUMNS`, else those of the terminal that any standard stream is."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns)
    for descriptor in range(3):
        if os.isatty(descriptor):
            return os.get_terminal_size(descriptor).columns or _NARROW
    return _NARROW


def json_out(data: dict[str, Any], folder: Path | None, name: str, dump: Sequence[Path]) -> None:
    """Print JSON, or write it as `name` into a folder (or as a `.json` file of that name)."""
    import json  # noqa: PLC0415 - only for this form

    text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
    if folder is None:
        sys.stdout.write(text)
        return
    target = folder if folder.suffix == ".json" else folder / name
    from ovf.output import write_new  # noqa: PLC0415 - only for a file

    write_new(target, text, dump, parents=True)
    print(f"wrote {target}")


def complain(text: str, *, quiet: bool = False) -> None:
    """Say something on standard error."""
    if not quiet:
        print(f"ovf: {text}", file=sys.stderr)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error, when that is a terminal and there is time to look at it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as bar:
        due = time.monotonic() + _BAR_AFTER
        show: Callable[[int, int], None] | None = None

        def update(done: int, total: int) -> None:
            nonlocal show
            if show is None and time.monotonic() >= due:
                show = _bar(bar)
            if show is not None:
                show(done, total)

        yield update


def _bar(until: ExitStack) -> Callable[[int, int], None]:
    """Draw a bar that is taken away at the end of `until`; a function that moves it."""
    from rich.console import Console  # noqa: PLC0415 - only for runs that take their time
    from rich.progress import (  # noqa: PLC0415 - as above
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    progress = until.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = progress.add_task("reading", total=None)
    return lambda done, total: progress.update(task, completed=done, total=total or None)
