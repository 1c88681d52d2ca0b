"""Options that several commands share, spelled as msprobe users type them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ovf.cli.framework import click
from ovf.cli.plain import MOST_THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


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


def parse_hosts(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """`NODE=PATH`, as often as there are nodes."""
    hosts: dict[str, str] = {}
    for value in values:
        node, equals, path = value.partition("=")
        if not (node and equals and path):
            msg = f"{value!r}: write NODE=PATH, such as node-a=/local/dump/step0"
            raise click.BadParameter(msg)
        if node in hosts:
            msg = f"{node} is given twice"
            raise click.BadParameter(msg)
        hosts[node] = path
    return hosts


class File(click.Path):
    """A local path as a `Path`, there or not."""

    def coerce_path_result(self, value: str | os.PathLike[str]) -> Any:  # noqa: ANN401 - click's signature
        """Make it one; `pathlib` takes its time and is not imported for the declaration."""
        from pathlib import Path  # noqa: PLC0415 - only for an option that is given

        return Path(value)


class Place(click.Path):
    """Where a dump lies: a local path without the parts that say nothing (`./a//b/` is `a/b`), or a URL as typed."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401, ARG002 - click's signature
        """As a `Path` would be written, without the import of `pathlib`."""
        text: str = os.fspath(value)
        if "://" in text or "::" in text:
            return text
        if os.name != "posix":
            from pathlib import Path  # noqa: PLC0415 - drives and backslashes are its business

            return str(Path(text))
        root = "" if not text.startswith("/") else "//" if text.startswith("//") and text[2:3] != "/" else "/"
        return root + "/".join(part for part in text.split("/") if part not in {"", "."}) or "."


class NewFile(File):
    """A file or folder to be made."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's signature
        """`-` is standard output to many programs: a file of that name was not meant."""
        if value == "-":
            self.fail("- is no name for a file; standard output cannot be chosen here", param, ctx)
        return super().convert(value, param, ctx)


def path_of(path: str | None, input_path: str | None) -> str:
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


def paths_of(paths: tuple[str, ...], input_path: str | None) -> list[str]:
    """The dump, given one way or the other, in one place or several."""
    if not paths or input_path is not None:
        return [path_of(paths[0] if paths else None, input_path)]
    return [path_of(path, None) for path in paths]


def local_folders(dump: Sequence[str]) -> list[Path]:
    """Where nothing may be written: the dump's places but for URLs and archives."""
    from pathlib import Path  # noqa: PLC0415 - only for an output

    from ovf.analyzer import is_elsewhere  # noqa: PLC0415 - the core is not needed for --help

    return [Path(place) for place in dump if not is_elsewhere(place)]


paths_argument = click.argument("paths", nargs=-1, type=Place())
path_argument = click.argument("path", required=False, type=Place())
input_option = click.option(
    "-i",
    "--input_path",
    "--input-path",
    "input_path",
    type=Place(),
    help="The dump, as msProbe users type it.",
)
rules_option = click.option(
    "--rules",
    type=File(),
    help="A JSON file of rules laid over the built-in ones.",
)


def output_option(text: str, *, dash: bool = False) -> Callable[[Any], Any]:
    """The -o option, spelled as msprobe users type it; `dash` where `-` means standard output."""
    names = ("-o", "--output_path", "--output-path", "output")
    return click.option(*names, type=File() if dash else NewFile(), help=text)


step_option = click.option("--step", help="Only this step: its number or folder.")
exit_zero_option = click.option("--exit-zero", is_flag=True, help="Exit 0 even if an overflow was found.")
ranks_option = click.option("--ranks", callback=parse_ranks, help="Only these ranks, like 0,3,8-15.")
THREADS = click.IntRange(1, MOST_THREADS)
threads_option = click.option("--threads", type=THREADS, help="Threads; all processors by default.")
incomplete_option = click.option(
    "--allow-incomplete-ranks",
    is_flag=True,
    help="Accept missing, cut and unreadable ranks in the exit status.",
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors; the exit status tells.")
