"""`ovf rules`: the operator table in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovf.cli.framework import click
from ovf.cli.options import rules_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@rules_option
def rules(rules: Path | None) -> None:
    """Print the operator table in force, as JSON: what is benign, in place, a buffer, a communication."""
    from ovf._core import effective_rules  # noqa: PLC0415 - the core is not needed for --help

    click.echo(effective_rules(rules))
