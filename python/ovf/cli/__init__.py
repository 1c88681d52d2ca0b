"""The `ovf` command: options in, exit status out; nothing but wiring.

Exit status: 0 clean, 1 overflow found, 2 usage, unreadable input, nothing to judge or incomplete evidence, 130
interrupted. What takes time is imported inside `main`, so that Ctrl-C is understood meanwhile.
"""

from __future__ import annotations

import gc
import os
import sys

_USAGE = 2
_INTERRUPTED = 130


def main() -> None:
    """Run the command; turn errors into one clear line and the right exit status.

    Raises:
        SystemExit: Always; its code is the exit status.
    """
    try:
        _prepare_streams()
        from ovf.cli.plain import plain  # noqa: PLC0415 - see above

        code = plain(sys.argv[1:])
        sys.exit(_parsed() if code is None else code)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (| head): not an error. The interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except FileExistsError as error:
        _fail(f"{error.filename}: exists; nothing is overwritten, choose another name", None)
    except Exception as error:
        core = sys.modules.get("ovf._core")  # an error of the core's only where it was needed
        if isinstance(error, ValueError if core is None else (core.OvfError, ValueError)):
            text = str(error)
        elif isinstance(error, OSError):
            text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        else:
            raise
        _fail(text, getattr(error, "help", None))


def _parsed() -> int:
    """Let the option parser run a command; the exit status."""
    gc.enable()  # it may run for hours
    from ovf.cli.commands import cli  # noqa: PLC0415 - not needed for plain calls
    from ovf.cli.framework import click  # noqa: PLC0415 - as above

    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return _USAGE
    except click.Abort:
        return _INTERRUPTED
    return code if isinstance(code, int) else 0


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end, no pathlib
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a sign


def _fail(text: str, advice: str | None) -> None:
    print(f"ovf: error: {text}", file=sys.stderr)
    if advice:
        print(f"help: {advice}", file=sys.stderr)
    sys.exit(_USAGE)
