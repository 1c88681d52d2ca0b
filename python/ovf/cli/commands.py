"""The commands of `ovf`: each is a module of this package, imported when it is used."""

from __future__ import annotations

import importlib

import ovf
from ovf.cli.framework import Group, click

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
