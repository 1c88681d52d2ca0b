"""The `ovf` command: options in, exit status out; nothing but wiring.

Each command is a module of this package, imported when it is used. Exit status: 0 clean, 1 overflow found, 2 usage,
unreadable input, nothing to judge or incomplete evidence, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import ovf
from ovf.cli.framework import Group, click
from ovf.cli.screen import USAGE

_INTERRUPTED = 130

_COMMANDS = {
    "check": "ovf.cli.check",
    "export": "ovf.cli.export",
    "npu": "ovf.npu.cli",
    "ranks": "ovf.cli.ranks",
    "report": "ovf.cli.report",
    "rules": "ovf.cli.rules",
    "steps": "ovf.cli.steps",
    "summarize": "ovf.cli.summarize",
    "trace": "ovf.cli.trace",
}
"""Command and the module that holds it, under the same name."""


class _Lazy(Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of the commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """The command of that name."""
        home = _COMMANDS.get(cmd_name)
        if home is None:
            return None
        command: click.Command = getattr(importlib.import_module(home), cmd_name)
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ovf.__version__, prog_name="ovf")
def cli() -> None:
    """Find the operator that first turned finite numbers into NaN or Inf, from msProbe dumps."""


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
        sys.exit(USAGE)
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
    sys.exit(USAGE)
