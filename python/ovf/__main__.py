"""`python -m ovf` is the `ovf` command, as a process of its own.

What only a process that soon ends may do stands here, not in `ovf.cli`: a plain call collects no garbage (all others
do); Ctrl-C is understood from the first import on; and when all is said, the process ends without taking its objects
apart one by one.
"""

from __future__ import annotations

import gc
import os
import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command and end the process."""
    try:
        _run()
    except KeyboardInterrupt:  # before or behind the command, which has its own answer
        sys.exit(_INTERRUPTED)


def _run() -> None:
    gc.disable()
    from ovf.cli import main as command  # noqa: PLC0415 - Ctrl-C is understood from here on

    try:
        command()
    except SystemExit as end:
        _leave(end.code)
        raise


def _leave(code: object) -> None:
    """End the process at once, unless somebody waits for its end: a debugger, a profiler, a thread, an extra."""
    import atexit  # noqa: PLC0415 - built in

    threading = sys.modules.get("threading")
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    watched = (
        sys.gettrace() is not None
        or sys.getprofile() is not None
        or sys.flags.inspect
        or sys.flags.interactive
        or (monitoring is not None and any(monitoring.get_tool(tool) for tool in range(6)))
    )
    alone = threading is None or threading.active_count() == 1
    run_exit_functions = getattr(atexit, "_run_exitfuncs", None)
    plain = sys.argv[1:2] == ["check"] and "ovf.remote" not in sys.modules
    if watched or not alone or not plain or run_exit_functions is None or not isinstance(code, int):
        return
    run_exit_functions()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the interpreter has words and a status for it
        return
    os._exit(code)


if __name__ == "__main__":
    main()
