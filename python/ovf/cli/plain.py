"""The plainest calls, `ovf check PATH`, perhaps with `-q` and `--threads N`, understood without the option parser.

They are nearly all calls, and the parser takes longer to import than most dumps to read. What they do is what the
parser makes of them (`tests/test_start.py` compares the two); anything else is the parser's.
"""

from __future__ import annotations

import os
import time

MOST_THREADS = 65_536
"""More are the parser's to refuse."""


def plain(arguments: list[str]) -> int | None:
    """Run a plain call.

    Returns:
        The exit status; `None` where the parser has to look.
    """
    command, *rest = arguments or [""]
    path, quiet, threads = "", False, None
    while rest:
        argument = rest.pop(0)
        if argument in {"-q", "--quiet"}:
            quiet = True
        elif argument == "--threads" and rest and _is_count(rest[0]):
            threads = int(rest.pop(0))
        elif path or argument.startswith("-"):
            return None
        else:
            path = argument
    if command != "check" or not path or "::" in path or "://" in path or "_OVF_COMPLETE" in os.environ:
        return None
    import ovf  # noqa: PLC0415 - only for a plain call
    from ovf.cli.screen import progress_bar, screen_for  # noqa: PLC0415 - as above

    started = time.perf_counter()
    with progress_bar(quiet=quiet) as progress:
        report = ovf.find_first_overflow([path], threads=threads, progress=progress, also=["strip"])
    if not quiet:
        from ovf.render.text import render  # noqa: PLC0415 - only for the screen

        render(report, screen_for(), seconds=time.perf_counter() - started, top=1, verbose=False)
    return report.exit_code


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST_THREADS)) and 0 < int(text) <= MOST_THREADS
