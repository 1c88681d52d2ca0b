"""Options that several commands share, spelled as msprobe users type them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ovf.cli.framework import click

if TYPE_CHECKING:
    from collections.abc import Callable


def parse_ranks(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[int] | None:
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


def path_of(path: Path | None, input_path: Path | None) -> Path:
    """The dump, given one way or the other."""
    if (path is None) == (input_path is None):
        msg = "give the dump once: as PATH or with -i/--input_path"
        raise click.UsageError(msg)
    chosen = path if path is not None else input_path
    if "" in sys.argv:
        msg = "the path is empty"
        raise click.UsageError(msg)
    assert chosen is not None  # noqa: S101 - for the type checker; said above
    return chosen


def paths_of(paths: tuple[Path, ...], input_path: Path | None) -> list[Path]:
    """The dump, given one way or the other, in one place or several."""
    if not paths or input_path is not None:
        return [path_of(paths[0] if paths else None, input_path)]
    return [path_of(path, None) for path in paths]


paths_argument = click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
path_argument = click.argument("path", required=False, type=click.Path(path_type=Path))
input_option = click.option(
    "-i",
    "--input_path",
    "--input-path",
    "input_path",
    type=click.Path(path_type=Path),
    help="The dump, as msProbe users type it.",
)
rules_option = click.option(
    "--rules",
    type=click.Path(path_type=Path),
    help="A JSON file of rules laid over the built-in ones.",
)


def output_option(text: str) -> Callable[[Any], Any]:
    """The -o option, spelled as msprobe users type it."""
    names = ("-o", "--output_path", "--output-path", "output")
    return click.option(*names, type=click.Path(path_type=Path), help=text)


step_option = click.option("--step", help="Only this step: its number or folder.")
exit_zero_option = click.option("--exit-zero", is_flag=True, help="Exit 0 even if an overflow was found.")
