"""The plainest calls, `ovf check PATH` and the same with `-q`, understood without the option parser.

They are nearly all calls, and the parser takes longer to import than most dumps to read. What they do is what the
parser makes of them (`tests/test_start.py` compares the two); anything else is the parser's.
"""

from __future__ import annotations

import os
import time


def plain(arguments: list[str]) -> int | None:
    """Run a plain call.

    Returns:
        The exit status; `None` where the parser has to look.
    """
    command, *rest = arguments or [""]
    paths = [a for a in rest if a not in {"-q", "--quiet"}]
    if command != "check" or len(paths) != 1 or "_OVF_COMPLETE" in os.environ:
        return None
    path, quiet = paths[0], len(rest) > 1
    if not path or path.startswith("-") or "::" in path or "://" in path:
        return None
    import ovf  # noqa: PLC0415 - only for a plain call
    from ovf.cli.screen import progress_bar, screen_for  # noqa: PLC0415 - as above

    started = time.perf_counter()
    with progress_bar(quiet=quiet) as progress:
        report = ovf.find_first_overflow([path], progress=progress, also=["strip"])
    if not quiet:
        from ovf.render.text import render  # noqa: PLC0415 - only for the screen

        render(report, screen_for(), seconds=time.perf_counter() - started, top=1, verbose=False)
    return report.exit_code
